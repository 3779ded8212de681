// Package labclient is the client of a running lab, for the command line and for end-to-end tests.
package labclient

import "time"

// Paths of the lab's own HTTP API on its unix socket. A node's verb is PathNodes + NODE + "/" +
// VERB.
const (
	PathStatus     = "/v1/status"
	PathNodes      = "/v1/nodes/"
	PathHeal       = "/v1/heal"
	PathStallCeph  = "/v1/stall-ceph"
	PathResumeCeph = "/v1/resume-ceph"
	PathDown       = "/v1/down"

	PathStopAPIServer  = "/v1/stop-api-server"
	PathStartAPIServer = "/v1/start-api-server"
	PathSaveEtcd       = "/v1/save-etcd"
	PathRestoreEtcd    = "/v1/restore-etcd"

	PathControllerFlags = "/v1/controller-flags"

	// PathArbiter is where the lab's arbiter record is served, beside its own address inside the
	// lab.
	PathArbiter = "/arbiter"
)

// Verbs of a node.
const (
	VerbExec      = "exec"
	VerbPowerOff  = "power-off"
	VerbPowerOn   = "power-on"
	VerbCut       = "cut"
	VerbFill      = "fill"
	VerbFailDisk  = "fail-disk"
	VerbFreeze    = "freeze"
	VerbThaw      = "thaw"
	VerbNewDisk   = "new-disk"
	VerbReinstall = "reinstall"
)

// ExecProtocol is the protocol of a connection for one command; package remote speaks it.
const ExecProtocol = "lab-exec"

// Status is the lab as it is now.
type Status struct {
	Name     string    `json:"name"`
	StateDir string    `json:"stateDir"`
	Started  time.Time `json:"started"`
	// Ready is how long `up` took.
	Ready time.Duration `json:"ready"`
	Parts []Part        `json:"parts"`
	Nodes []Node        `json:"nodes"`
	// Environment is the environment of commands inside the lab: CEPH_CONF, KUBECONFIG and LAB_….
	Environment map[string]string `json:"environment"`
}

// Part is something that runs beside the nodes.
type Part struct {
	Name string `json:"name"`
	// State is up, stalled, or what is wrong.
	State   string `json:"state"`
	Address string `json:"address,omitempty"`
	Log     string `json:"log,omitempty"`
}

// NodeState says what a node does.
type NodeState string

// States of a node.
const (
	NodeOff     NodeState = "off"
	NodeBooting NodeState = "booting"
	NodeUp      NodeState = "up"
	NodeFrozen  NodeState = "frozen"
)

// Node is one machine.
type Node struct {
	Name  string    `json:"name"`
	State NodeState `json:"state"`
	// Cuts says what the node is cut from, a sentence each.
	Cuts        []string `json:"cuts,omitempty"`
	DataAddress string   `json:"dataAddress"`
	MgmtAddress string   `json:"mgmtAddress"`
	// Boot is how long the last power-on took until the node was usable.
	Boot       time.Duration `json:"boot"`
	Since      time.Time     `json:"since"`
	DiskFailed bool          `json:"diskFailed,omitempty"`
	Console    string        `json:"console"`
}

// Cut says what a node is cut from. The zero value cuts it from everything, both ways; exec still
// works.
type Cut struct {
	// From is another node, "ceph" or "control-plane". Empty: everything.
	From string `json:"from,omitempty"`
	// OneWay loses only what the node sends: it still hears the others.
	OneWay bool `json:"oneWay,omitempty"`
	// Slow loses only what is more than SlowRate.
	Slow bool `json:"slow,omitempty"`
}

// SlowRate is the rate of a slow cut, in KiB a second, in both directions together.
const SlowRate = 128

// Targets of a cut that are not nodes.
const (
	CutCeph         = "ceph"
	CutControlPlane = "control-plane"
)

// Fill is the body of a fill. Undo frees the room again.
type Fill struct {
	Undo bool `json:"undo,omitempty"`
}

// FailDisk is the body of a fail-disk. Restore makes the disk work again.
type FailDisk struct {
	Restore bool `json:"restore,omitempty"`
}

// ControllerFlags are flags of csi-controller that follow the lab's own.
type ControllerFlags struct {
	Flags []string `json:"flags"`
}

// Failure is the body of every answer that is not a success.
type Failure struct {
	Error string `json:"error"`
}
