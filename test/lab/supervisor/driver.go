package supervisor

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/internal/kubernetes"
	"github.com/escache/escache-csi/test/internal/process"
	"github.com/escache/escache-csi/test/lab/labclient"
)

const (
	// controllerReplicas is two: one leads, one waits.
	controllerReplicas = 2
	driverReadyTime    = 2 * time.Minute
	// restartDelay is the kubelet's first back-off in spirit, without its growth: tests kill often.
	restartDelay = time.Second
	// endGrace is for a csi-controller that is told to end.
	endGrace = 5 * time.Second
	// Where the replicas' metrics and health are served: port + number of the replica, on loopback.
	controllerMetricsPort = 9820
	controllerHealthPort  = 9830
	// linkKeyFile has what the secrets of the replication links are derived from.
	linkKeyFile = "link-key"
)

// replica is one csi-controller with CSI's sidecars: what a pod of the Deployment would hold. What
// ends is started again, as the kubelet would.
type replica struct {
	name       string
	metrics    string // address of csi-controller's
	controller process.Spec
	sidecars   kubernetes.SidecarConfig
	// flags wait for the goroutine that runs the replica.
	flags chan controllerFlags
}

// controllerFlags follow those that the lab itself gives a csi-controller. done is closed once the
// one without them has ended.
type controllerFlags struct {
	flags []string
	done  chan struct{}
}

// buildController compiles csi-controller, the one program that is linked with Ceph's libraries.
func (p *Plan) buildController(ctx context.Context) error {
	tags, err := exec.CommandContext(ctx, filepath.Join(p.Location.Checkout, "hack", "ceph-tags.sh")).Output()
	if err != nil {
		return fmt.Errorf("which Ceph is there to build against (hack/ceph-tags.sh): %w", err)
	}
	p.Controller = filepath.Join(p.Location.StateDir, "driver", "csi-controller")
	list := "crashpoint," + strings.TrimSpace(string(tags))
	cmd := exec.CommandContext(ctx, "go", "build", "-ldflags", "-s -w", "-tags", list, "-o", p.Controller, "./cmd/csi-controller")
	cmd.Dir = p.Location.Checkout
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("build cmd/csi-controller: %w\n%s", err, out)
	}
	return nil
}

// startDriver runs the driver's controllers, and returns when a leader serves and every kubelet
// knows the driver.
func (l *lab) startDriver(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, driverReadyTime)
	defer cancel()
	config, err := l.writeCephDir()
	if err != nil {
		return err
	}
	kubeconfig, err := l.writeAccount("controller")
	if err != nil {
		return err
	}
	for i := range controllerReplicas {
		r := l.newReplica(i, config, kubeconfig)
		l.replicas = append(l.replicas, r)
		go l.runReplica(r)
	}
	for _, n := range l.nodes {
		if err := l.kube.WaitDriver(ctx, n.name, v1alpha1.DriverName); err != nil {
			return fmt.Errorf("%w (see `lab logs %s/csi-node`)", err, n.name)
		}
	}
	return l.waitLeader(ctx)
}

// writeCephDir makes the directory that csi-controller finds its Ceph clusters in, by their ids.
func (l *lab) writeCephDir() (string, error) {
	dir := l.path("driver", "ceph")
	cluster := filepath.Join(dir, l.ceph.FSID())
	err := errors.Join(os.MkdirAll(cluster, 0o755),
		os.Symlink(l.ceph.Conf(), filepath.Join(cluster, "ceph.conf")),
		os.Symlink(l.ceph.AdminKeyring(), filepath.Join(cluster, "keyring")),
		os.WriteFile(l.path("driver", linkKeyFile), []byte(rand.Text()+rand.Text()), 0o600))
	if err != nil {
		return "", fmt.Errorf("the way to Ceph for csi-controller: %w", err)
	}
	return dir, nil
}

func (l *lab) newReplica(i int, cephDir, kubeconfig string) *replica {
	name := fmt.Sprintf("csi-controller-%d", i)
	socket := filepath.Join(l.plan.Location.RunDir, fmt.Sprintf("csi-%d.sock", i))
	metrics := fmt.Sprintf("127.0.0.1:%d", controllerMetricsPort+i)
	return &replica{
		name: name, metrics: metrics, flags: make(chan controllerFlags),
		controller: process.Spec{
			Name: name, Path: l.plan.Controller, Log: l.path("driver", name+".log"),
			Args: []string{
				"--kubeconfig=" + kubeconfig, "--ceph-dir=" + cephDir, "--csi-socket=" + socket, "--identity=" + name,
				"--lease-namespace=" + driverNamespace,
				"--metrics-address=" + metrics,
				fmt.Sprintf("--health-address=127.0.0.1:%d", controllerHealthPort+i),
				fmt.Sprintf("--escached-port=%d", EscachedPort),
				"--escached-ca=" + l.path("tls", caFile), "--escached-server-name={node}",
				"--escached-cert=" + l.path("tls", clientCertFile), "--escached-key=" + l.path("tls", clientKeyFile),
				"--replication-secret-file=" + l.path("driver", linkKeyFile),
				fmt.Sprintf("--drbd-ports=%d-%d", drbdFirstPort, drbdLastPort),
				fmt.Sprintf("--drbd-minors=%d-%d", drbdFirstMinor, drbdLastMinor),
				"--repair-after=0s", // tests have hosts and disks fail, and want the copies where they are
			},
		},
		sidecars: kubernetes.SidecarConfig{
			Name: name, Dir: l.path("driver"), Socket: socket, Kubeconfig: kubeconfig, Namespace: driverNamespace, Programs: l.plan.Tools,
			Snapshots: true,
		},
	}
}

// runReplica runs a replica until the lab ends.
func (l *lab) runReplica(r *replica) {
	var controller *process.Process
	var sidecars *kubernetes.Sidecars
	own := r.controller.Args
	for {
		var err error
		if controller == nil || controller.Err() != nil {
			if controller != nil {
				slog.Info("starting again", "replica", r.name, "error", controller.Err())
			}
			controller, err = process.Start(r.controller)
		}
		if sidecars == nil {
			var started error
			sidecars, started = kubernetes.StartSidecars(context.Background(), r.sidecars)
			err = errors.Join(err, started)
		} else {
			err = errors.Join(err, sidecars.StartEnded())
		}
		if err != nil {
			slog.Error("replica", "name", r.name, "error", err)
		}
		select {
		case <-l.down:
			return
		case change := <-r.flags:
			r.controller.Args = slices.Concat(own, change.flags)
			r.endController(controller)
			close(change.done)
		case <-time.After(restartDelay):
		}
	}
}

// endController ends what was started, in good order.
func (r *replica) endController(controller *process.Process) {
	if controller == nil {
		return
	}
	if err := controller.Stop(context.Background(), endGrace); err != nil {
		slog.Error("end csi-controller", "replica", r.name, "error", err)
	}
}

// setControllerFlags starts all replicas of csi-controller again with these flags after the lab's
// own, and with the rights that they need. It returns when one leads.
func (l *lab) setControllerFlags(ctx context.Context, flags []string) error {
	if len(l.replicas) == 0 {
		return errors.New("this lab has no csi-controller (lab up --driver)")
	}
	ctx, cancel := context.WithTimeout(ctx, driverReadyTime)
	defer cancel()
	if err := l.applyRights(ctx, flags); err != nil {
		return err
	}
	for _, r := range l.replicas {
		change := controllerFlags{flags, make(chan struct{})}
		select {
		case r.flags <- change:
			<-change.done
		case <-ctx.Done():
			return fmt.Errorf("new flags for %s: %w", r.name, ctx.Err())
		}
	}
	return l.waitLeader(ctx)
}

// leads asks a replica's metrics whether it has the lease. One that does not answer has not.
func (r *replica) leads(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+r.metrics+"/metrics", nil)
	if err != nil {
		return false
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return false
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	return err == nil && leading.Match(text)
}

var leading = regexp.MustCompile(`(?m)^leader_election_master_status\{.*\} 1$`)

// waitLeader returns when one replica leads.
func (l *lab) waitLeader(ctx context.Context) error {
	for {
		for _, r := range l.replicas {
			if r.leads(ctx) {
				return nil
			}
		}
		select {
		case <-ctx.Done():
			r := l.replicas[0]
			log := r.controller.Log
			return fmt.Errorf("no csi-controller leads: %w; the end of %s:\n%s", ctx.Err(), log, process.Tail(log, 15))
		case <-time.After(pollEvery):
		}
	}
}

func (l *lab) kubectl(ctx context.Context, in []byte, args ...string) error {
	cmd := exec.CommandContext(ctx, l.path("bin", "kubectl"), args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+l.kube.Kubeconfig())
	cmd.Stdin = bytes.NewReader(in)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("kubectl %s: %w: %s", args[0], err, out)
	}
	return nil
}

// csiNodeFiles make csi-node a service of the host, beside escached.
func (n *node) csiNodeFiles() ([]file, error) {
	config, err := n.lab.account("node")
	if err != nil {
		return nil, err
	}
	service := "#!/bin/sh\n" +
		"# The kubelet makes the directory in which plugins announce themselves.\n" +
		"while [ ! -d /var/lib/kubelet/plugins_registry ]; do sleep 0.1; done\n" +
		"exec /usr/local/bin/csi-node --node-name=" + n.name + " --kubeconfig=/etc/escache/csi-node.kubeconfig\n"
	return []file{
		{"etc/escache/csi-node.kubeconfig", 0o600, string(config)},
		{"etc/lab/services/csi-node", 0o755, service},
	}, nil
}

func (l *lab) driverParts() []labclient.Part {
	var parts []labclient.Part
	for _, r := range l.replicas {
		state := "standby"
		if r.leads(context.Background()) {
			state = "leads"
		}
		parts = append(parts, labclient.Part{Name: r.name, State: state, Address: r.sidecars.Socket, Log: r.controller.Log})
		for _, sidecar := range r.sidecars.Names() {
			log := filepath.Join(r.sidecars.Dir, r.name+"."+sidecar+".log")
			parts = append(parts, labclient.Part{Name: r.name + "." + sidecar, State: "up", Log: log})
		}
	}
	return parts
}
