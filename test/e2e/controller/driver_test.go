//go:build e2e

package controller

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// driver is one replica of csi-controller.
type driver struct {
	csi.ControllerClient
	csi.GroupControllerClient
	csi.IdentityClient

	name    string
	dir     string // socket, log, crash points
	world   *world
	command *exec.Cmd
	ended   chan struct{}
	conn    *grpc.ClientConn
}

// soon makes another replica take over soon after bury, for tests that kill leaders all the time;
// and on a machine that is busy with other things, no lease is lost for that.
var soon = []string{"--lease-duration=30s", "--lease-renew-deadline=20s", "--lease-retry-period=200ms"}

// brief makes another replica take over without bury, not much later than it has to; on a machine
// that is busy with other things leaders go without renewing for seconds.
var brief = []string{"--lease-duration=12s", "--lease-renew-deadline=10s", "--lease-retry-period=500ms"}

// launch starts a replica. It ends with the test; its log is shown when the test has failed.
func (w *world) launch(t *testing.T, name string, args ...string) *driver {
	t.Helper()
	d := w.start(t, name, args...)
	t.Cleanup(func() {
		d.bury()
		if t.Failed() {
			t.Logf("log of %s:\n%s", name, d.log())
		}
	})
	return d
}

// start is launch for a test with so many replicas that nobody wants all their logs.
func (w *world) start(t *testing.T, name string, args ...string) *driver {
	t.Helper()
	dir, err := os.MkdirTemp("", "csi-") //nolint:usetesting // a socket's path has 108 characters at most
	must(t, err)
	d := &driver{name: name, dir: dir, world: w}
	conn, err := grpc.NewClient("unix://"+d.socket(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		// Sidecars look for the socket every second; tests that kill leaders all the time would
		// only wait for that.
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{
			BaseDelay: 50 * time.Millisecond, Multiplier: 1, MaxDelay: 50 * time.Millisecond,
		}, MinConnectTimeout: time.Second}))
	must(t, err)
	d.conn, d.ControllerClient, d.IdentityClient = conn, csi.NewControllerClient(conn), csi.NewIdentityClient(conn)
	d.GroupControllerClient = csi.NewGroupControllerClient(conn)
	d.run(t, w, args)
	t.Cleanup(func() {
		conn.Close()
		d.bury()
		os.RemoveAll(dir)
	})
	return d
}

func (d *driver) run(t *testing.T, w *world, args []string) {
	t.Helper()
	must(t, os.MkdirAll(d.crashDir(), 0o755))
	log, err := os.OpenFile(filepath.Join(d.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	must(t, err)
	defer log.Close()
	all := append([]string{
		"--kubeconfig", w.account.Kubeconfig, "--ceph-dir", w.cephDir, "--csi-socket", d.socket(), "--identity", d.name,
		"--lease-namespace", w.account.Namespace, "--escached-plaintext", "--escached-port", fmt.Sprint(w.fleet.Port),
		"--metrics-address", "0", "--health-address", "0", "--poll-interval", "1s", "--replication-secret-file", w.linkKey,
		"--uncached-fallback", "--repair-after", "0s", // the copies stay where a test wants them
	}, args...)
	d.command = exec.Command(w.binary, all...)
	d.command.Stdout, d.command.Stderr = log, log
	d.command.Env = append(os.Environ(), "ESCACHE_CRASHPOINTS="+d.crashDir())
	d.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	must(t, d.command.Start())
	d.ended = make(chan struct{})
	go func(c *exec.Cmd, ended chan struct{}) {
		_ = c.Wait()
		close(ended)
	}(d.command, d.ended)
}

func (d *driver) socket() string   { return filepath.Join(d.dir, "csi.sock") }
func (d *driver) crashDir() string { return filepath.Join(d.dir, "crash") }

func (d *driver) log() string {
	text, _ := os.ReadFile(filepath.Join(d.dir, "log"))
	return string(text[max(0, len(text)-20000):])
}

func (d *driver) alive() bool {
	select {
	case <-d.ended:
		return false
	default:
		return true
	}
}

// kill ends the replica as a power loss would.
func (d *driver) kill() {
	if d.alive() {
		_ = d.command.Process.Signal(syscall.SIGCONT)
		_ = d.command.Process.Kill()
	}
	<-d.ended
}

// bury kills the replica, and takes the lease from it without waiting: it is certain that nobody
// holds it any more. What else the lease has on record stays.
func (d *driver) bury() {
	d.kill()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	free := fmt.Appendf(nil, `[{"op":"test","path":"/spec/holderIdentity","value":%q},{"op":"remove","path":"/spec/holderIdentity"}]`, d.name)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: d.world.account.Namespace, Name: "escache-csi-controller"}}
	_ = d.world.api.Patch(ctx, lease, client.RawPatch(types.JSONPatchType, free)) // refused if somebody else holds it
}

// serves reports whether this replica leads and is ready.
func (d *driver) serves(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := d.Probe(ctx, &csi.ProbeRequest{})
	return err == nil && r.GetReady().GetValue()
}

// places reports whether this replica has seen hosts with room: the first leader ever serves before
// it has asked them.
func (d *driver) places(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	r, err := d.GetCapacity(ctx, &csi.GetCapacityRequest{})
	return err == nil && r.GetAvailableCapacity() > 0
}

// leader waits until one of the replicas serves, and can place volumes.
func leader(t *testing.T, within time.Duration, drivers ...*driver) *driver {
	t.Helper()
	var found *driver
	eventually(t, within, func() bool {
		for _, d := range drivers {
			if d.alive() && d.serves(context.Background()) && d.places(context.Background()) {
				found = d
				return true
			}
		}
		return false
	}, func() string {
		out := "nobody serves"
		for _, d := range drivers {
			out += "\n" + d.name + ":\n" + d.log()
		}
		return out
	})
	return found
}

// dieAt has the replica kill itself when it reaches the crash point.
func (d *driver) dieAt(t *testing.T, point string) {
	t.Helper()
	must(t, os.WriteFile(filepath.Join(d.crashDir(), "at"), []byte(point), 0o600))
}

// reached are the crash points that were passed since the last call, each once, in order.
func (d *driver) reached(t *testing.T) []string {
	t.Helper()
	path := filepath.Join(d.crashDir(), "trace")
	text, err := os.ReadFile(path)
	if os.IsNotExist(err) {
		return nil
	}
	must(t, err)
	must(t, os.Remove(path))
	var out []string
	seen := map[string]bool{}
	for line := range bytes.Lines(text) {
		if name := strings.TrimSpace(string(line)); !seen[name] {
			seen[name] = true
			out = append(out, name)
		}
	}
	return out
}

func capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

func creation(name string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: gib}, VolumeCapabilities: []*csi.VolumeCapability{capability()},
		Parameters: map[string]string{"clusterID": clusterID, "pool": "rbd", "cacheSize": "16Mi"},
	}
}

func (d *driver) create(ctx context.Context, name string) error {
	_, err := d.CreateVolume(ctx, creation(name))
	return err
}

func (d *driver) delete(ctx context.Context, id string) error {
	_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

func (d *driver) publish(ctx context.Context, id, node string) error {
	_, err := d.ControllerPublishVolume(ctx, &csi.ControllerPublishVolumeRequest{VolumeId: id, NodeId: node, VolumeCapability: capability()})
	return err
}

func (d *driver) unpublish(ctx context.Context, id, node string) error {
	_, err := d.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: id, NodeId: node})
	return err
}

func (d *driver) expand(ctx context.Context, id string, size int64) error {
	_, err := d.ControllerExpandVolume(ctx, &csi.ControllerExpandVolumeRequest{
		VolumeId: id, CapacityRange: &csi.CapacityRange{RequiredBytes: size}, VolumeCapability: capability(),
	})
	return err
}

func (d *driver) modify(ctx context.Context, id string, attributes map[string]string) error {
	_, err := d.ControllerModifyVolume(ctx, &csi.ControllerModifyVolumeRequest{VolumeId: id, MutableParameters: attributes})
	return err
}

func (d *driver) snapshot(ctx context.Context, name, volume string) error {
	_, err := d.CreateSnapshot(ctx, &csi.CreateSnapshotRequest{Name: name, SourceVolumeId: volume})
	return err
}

func (d *driver) deleteSnapshot(ctx context.Context, id string) error {
	_, err := d.DeleteSnapshot(ctx, &csi.DeleteSnapshotRequest{SnapshotId: id})
	return err
}

// slack is how much later than its deadline a call may end: a busy machine takes seconds to answer. Ceph's own limits are
// half a minute and more.
const slack = 8 * time.Second

// within gives a call a deadline, as a sidecar does, and fails the test if it takes longer by more than slack.
func within(t *testing.T, limit time.Duration, call func(ctx context.Context) error) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	begun := time.Now()
	err := call(ctx)
	if took := time.Since(begun); took > limit+slack {
		t.Errorf("took %s, and the deadline was %s", took, limit)
	}
	return err
}

// wants fails unless the call's error has one of the codes and its text all of the words.
func wants(t *testing.T, err error, allowed []codes.Code, words ...string) {
	t.Helper()
	for _, code := range allowed {
		if status.Code(err) == code {
			for _, word := range words {
				if !strings.Contains(fmt.Sprint(err), word) {
					t.Errorf("the error does not say %q: %v", word, err)
				}
			}
			return
		}
	}
	t.Fatalf("got %s, want %v: %v", status.Code(err), allowed, err)
}
