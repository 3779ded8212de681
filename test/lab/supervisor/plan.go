// Package supervisor runs a laboratory of real parts on one machine: Ceph, hosts with a stock
// kernel, and a network between them that can be cut. All of it runs in its own namespaces below
// one supervisor process, and ends when that process ends.
package supervisor

import (
	"fmt"
	"time"

	"github.com/escache/escache-csi/test/internal/hostimage"
	"github.com/escache/escache-csi/test/lab/labclient"
)

// Addresses inside the lab. Node I has the host number 10 + I in both networks.
const (
	dataNetwork = "10.77.0"
	mgmtNetwork = "10.78.0"
	hostNumber  = ".1"

	// CentralAddress is where Ceph, the control plane and the arbiter are.
	CentralAddress = dataNetwork + hostNumber
	// ArbiterPort is where the arbiter record is served on CentralAddress.
	ArbiterPort = 7790
	// EscachedPort is where each node's escached listens.
	EscachedPort = 7443

	// What replicas may have on every node; escached and csi-controller have to agree.
	drbdFirstPort, drbdLastPort   = 7800, 7999
	drbdFirstMinor, drbdLastMinor = 100, 299
)

// Options describe the lab to start.
type Options struct {
	Nodes      int
	Kubernetes bool
	Driver     bool // the CSI driver on the nodes and beside them; needs Kubernetes
	// Bare hosts have no escached and no way to Ceph: whoever wants them there brings them, as the
	// chart does.
	Bare bool
	// Images are archives of container images that the nodes have beside those of CSI's sidecars;
	// needs Kubernetes.
	Images    []string
	MemoryMiB int
	DiskMiB   int
	NoCeph    bool
	// ForgetfulDisks lose with the power what was not flushed.
	ForgetfulDisks bool
	// Share leaves other sessions of the machine as much processor time as the lab has; see comeFirst.
	Share bool
}

// Plan is all that the supervisor needs to know; the process that starts it has prepared it.
type Plan struct {
	Options

	Location labclient.Location
	// Begun is when `up` began.
	Begun time.Time
	Image hostimage.Image
	// Programs is a tar of the programs under test, the same for all nodes.
	Programs string
	// Tools are the paths of programs that run beside the nodes, by name; only a Kubernetes lab
	// needs any.
	Tools map[string]string
	// Snapshots is the directory of the module with the kinds of VolumeSnapshots, in a Kubernetes
	// lab.
	Snapshots string
	// Controller is csi-controller's path in a lab with the driver.
	Controller string
	// HasEscached is false in a checkout that has no escached yet.
	HasEscached bool
}

// nodeName is n1 for the first node.
func nodeName(i int) string { return fmt.Sprintf("n%d", i+1) }

func dataAddress(i int) string { return fmt.Sprintf("%s.%d", dataNetwork, 11+i) }
func mgmtAddress(i int) string { return fmt.Sprintf("%s.%d", mgmtNetwork, 11+i) }

func dataTap(i int) string { return nodeName(i) + "-data" }
func mgmtTap(i int) string { return nodeName(i) + "-mgmt" }

func dataMAC(i int) string { return fmt.Sprintf("52:54:00:77:00:%02x", 11+i) }
func mgmtMAC(i int) string { return fmt.Sprintf("52:54:00:78:00:%02x", 11+i) }
