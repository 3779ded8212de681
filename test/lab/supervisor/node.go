package supervisor

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/escache/escache-csi/test/internal/process"
	"github.com/escache/escache-csi/test/internal/vm"
	"github.com/escache/escache-csi/test/lab/internal/remote"
	"github.com/escache/escache-csi/test/lab/labclient"
)

const (
	bootTime    = 4 * time.Minute // a machine with ten times the load it can bear still makes it
	serviceTime = 2 * time.Minute
	pollEvery   = 100 * time.Millisecond
)

// node is one host of the lab.
type node struct {
	lab     *lab
	index   int
	name    string
	machine *vm.Machine

	power sync.Mutex // held while the node is powered on or off

	mu         sync.Mutex
	state      labclient.NodeState
	since      time.Time
	bootTook   time.Duration
	diskFailed bool
	conns      map[net.Conn]struct{}
}

func newNode(l *lab, index int) *node {
	n := &node{lab: l, index: index, name: nodeName(index), conns: map[net.Conn]struct{}{}, since: time.Now()}
	n.setState(labclient.NodeOff)
	codeMiB := 0
	if l.plan.Kubernetes {
		codeMiB = kubernetesCodeMiB
	}
	n.machine = vm.New(vm.Config{
		Name: n.name, Kernel: l.plan.Image.Kernel, Initrd: l.plan.Image.Initrd, MemoryMiB: l.plan.MemoryMiB, CodeMiB: codeMiB,
		Disks: []vm.Disk{
			{Path: n.path(rootDisk), Forgetful: l.plan.ForgetfulDisks}, {Path: n.path(nvmeDisk), Forgetful: l.plan.ForgetfulDisks},
			{Path: n.path("config.tar"), ReadOnly: true}, {Path: l.plan.Programs, ReadOnly: true},
		},
		NICs:    []vm.NIC{{Tap: dataTap(index), MAC: dataMAC(index)}, {Tap: mgmtTap(index), MAC: mgmtMAC(index)}},
		Console: n.path("console.log"), Log: n.path("qemu.log"),
	})
	return n
}

func (n *node) path(name string) string { return n.lab.path("nodes", n.name, name) }

func (n *node) setState(state labclient.NodeState) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state, n.since = state, time.Now()
}

// boot makes the node's disks and powers it on for the first time.
func (n *node) boot(ctx context.Context) error {
	if err := os.MkdirAll(n.path(""), 0o755); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	if err := n.makeRoot(n.path(rootDisk)); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	if err := n.makeNVMe(n.path(nvmeDisk)); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	n.power.Lock()
	defer n.power.Unlock()
	return n.start(ctx)
}

// powerOn returns when the node is as usable as it was after `up`.
func (n *node) powerOn(ctx context.Context) error {
	n.power.Lock()
	defer n.power.Unlock()
	if n.machine.Running() {
		return fmt.Errorf("%s is on already", n.name)
	}
	if err := n.start(ctx); err != nil {
		return err
	}
	return errors.Join(n.waitServices(ctx), n.waitKubelet(ctx))
}

// start powers the machine on and returns when commands can be run on it.
func (n *node) start(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	if err := n.writeConfig(); err != nil {
		return err
	}
	n.setState(labclient.NodeBooting)
	began := time.Now()
	if err := n.machine.PowerOn(); err != nil {
		n.setState(labclient.NodeOff)
		return err
	}
	if err := n.waitBooted(ctx); err != nil {
		console := n.path("console.log")
		return fmt.Errorf("%s does not boot: %w; the end of %s:\n%s", n.name, err, console, process.Tail(console, 15))
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.state, n.since, n.bootTook, n.diskFailed = labclient.NodeUp, time.Now(), time.Since(began), false
	return nil
}

func (n *node) waitBooted(ctx context.Context) error {
	for {
		if !n.machine.Running() {
			return errors.New("the machine has lost its power")
		}
		failed, err := n.try(ctx, "sh", "-c", "cat /run/lab/failed 2>/dev/null || true")
		if err == nil {
			if failed != "" {
				return errors.New(strings.TrimSpace(failed))
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pollEvery):
		}
	}
}

// serve gives a booted node what the lab has learned meanwhile, and waits until its services run.
func (n *node) serve(ctx context.Context) error {
	var files bytes.Buffer
	if err := writeTar(&files, n.lab.cephFiles()); err != nil {
		return err
	}
	if _, err := n.run(ctx, &files, "tar", "-x", "-C", "/"); err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	return errors.Join(n.waitServices(ctx), n.waitKubelet(ctx))
}

// waitServices waits until escached listens on a freshly booted node. escached moves its socket
// into place after it listens, so the file is enough.
func (n *node) waitServices(ctx context.Context) error {
	if !n.lab.plan.HasEscached || n.lab.plan.NoCeph {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, serviceTime)
	defer cancel()
	script := "until test -S /run/escache/escached.sock; do sleep 0.1; done"
	if _, err := n.run(ctx, nil, "sh", "-c", script); err != nil {
		late, stop := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
		defer stop()
		tail, _ := n.run(late, nil, "tail", "-n", "15", "/var/log/escached.log") // best effort: there may be no log
		return fmt.Errorf("%s: escached does not serve: %w; the end of %s:/var/log/escached.log:\n%s", n.name, err, n.name, tail)
	}
	return nil
}

// powerOff takes the power away, and with it every connection to the node.
func (n *node) powerOff() error {
	n.power.Lock()
	defer n.power.Unlock()
	if err := n.machine.PowerOff(); err != nil {
		return err
	}
	n.setState(labclient.NodeOff)
	n.mu.Lock()
	defer n.mu.Unlock()
	for conn := range n.conns {
		conn.Close()
	}
	return nil
}

// freeze returns when the node stands still. Connections to it stay.
func (n *node) freeze(ctx context.Context) error {
	n.power.Lock()
	defer n.power.Unlock()
	if err := n.machine.Freeze(ctx); err != nil {
		return err
	}
	n.setState(labclient.NodeFrozen)
	return nil
}

func (n *node) thaw() error {
	n.power.Lock()
	defer n.power.Unlock()
	if err := n.machine.Thaw(); err != nil {
		return err
	}
	n.setState(labclient.NodeUp)
	return nil
}

// dial connects to the node's agent. The connection is closed when the node loses its power.
func (n *node) dial(ctx context.Context) (net.Conn, error) {
	if !n.machine.Running() {
		return nil, fmt.Errorf("%s is off", n.name)
	}
	dialer := net.Dialer{Timeout: time.Minute} // an emulated host may stand still for seconds
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(mgmtAddress(n.index), strconv.Itoa(remote.Port)))
	if err != nil {
		return nil, fmt.Errorf("reach %s: %w", n.name, err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	n.conns[conn] = struct{}{}
	return &watched{Conn: conn, node: n}, nil
}

// watched is forgotten by its node when it is closed.
type watched struct {
	net.Conn

	node *node
}

func (w *watched) Close() error {
	w.node.mu.Lock()
	delete(w.node.conns, w.Conn)
	w.node.mu.Unlock()
	return w.Conn.Close()
}

// try is run for a node that may not be there yet: it gives up soon where nobody answers, and has
// patience where somebody does.
func (n *node) try(ctx context.Context, args ...string) (string, error) {
	soon, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := n.dial(soon)
	if err != nil {
		return "", err
	}
	ctx, stop := context.WithTimeout(ctx, 20*time.Second)
	defer stop()
	return runOn(ctx, conn, nil, args...)
}

// run runs a command on the node and returns what it printed; another exit status than 0 is an
// error.
func (n *node) run(ctx context.Context, in *bytes.Buffer, args ...string) (string, error) {
	conn, err := n.dial(ctx)
	if err != nil {
		return "", err
	}
	return runOn(ctx, conn, in, args...)
}

func runOn(ctx context.Context, conn net.Conn, in *bytes.Buffer, args ...string) (string, error) {
	var out, complaints bytes.Buffer
	streams := remote.Streams{Out: &out, Err: &complaints}
	if in != nil {
		streams.In = in
	}
	code, err := remote.Run(ctx, conn, remote.Command{Args: args}, streams)
	if err == nil && code != 0 {
		err = fmt.Errorf("%q ended with status %d: %s", args, code, strings.TrimSpace(complaints.String()))
	}
	return out.String(), err
}

func (n *node) status() labclient.Node {
	running := n.machine.Running()
	n.mu.Lock()
	defer n.mu.Unlock()
	state := n.state
	if !running {
		state = labclient.NodeOff
	}
	return labclient.Node{
		Name: n.name, State: state, Since: n.since, Boot: n.bootTook, DiskFailed: n.diskFailed, Cuts: n.lab.net.of(n.index),
		DataAddress: dataAddress(n.index), MgmtAddress: mgmtAddress(n.index), Console: n.path("console.log"),
	}
}
