package watch

import (
	"context"
	"encoding/json"
	"log/slog"
	"slices"
	"strconv"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/kube"
)

// world is an escached with one volume, and the Kubernetes API with its compare-and-swap.
type world struct {
	t      *testing.T
	watch  *Watch
	now    time.Time
	status escache.VolumeStatus
	gone   bool
	silent bool
	// beforeStatus is called once before a single volume's status is answered.
	abandoned    []int64 // epochs
	abandonError error
	beforeStatus func()
	progress     blockdev.Progress

	object        v1alpha1.CacheVolume
	version       int
	reads, writes int
	events        []string
	message       string // of the last Event
	apiDown       bool
}

func newWorld(t *testing.T) *world {
	dirty := int64(0)
	w := &world{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	w.status = escache.VolumeStatus{
		VolumeRef: escache.VolumeRef{Pool: "p", Image: "v"}, State: escache.StateConnected, Role: escache.RolePrimary, Epoch: 3, Mode: escache.ModeWriteback,
		Device: "/dev/escache/p/v", CacheBytes: 1 << 30, DirtyBytes: &dirty, DiskState: "UpToDate", SyncedPercent: 100, ClientAddress: "10.0.0.1:0/7",
		Peers: []escache.Peer{{Name: "n2", ConnectionState: "Connected", DiskState: "UpToDate"}},
	}
	w.object.Name, w.object.ResourceVersion = "v", "0"
	w.object.Spec = v1alpha1.CacheVolumeSpec{Pool: "p", Image: "v", Replicas: []string{"n1", "n2"}}
	w.object.Status = v1alpha1.CacheVolumeStatus{AttachedNode: "n1", Epoch: 3, Authority: v1alpha1.AuthorityCache}
	w.restart()
	return w
}

func (w *world) restart() {
	w.watch = New(Options{
		Node: "n1", Cache: w, Kube: w, Now: func() time.Time { return w.now }, Logger: slog.New(slog.DiscardHandler),
		Progress: func(string) (blockdev.Progress, bool) { return w.progress, true },
	})
}

func (w *world) polls(n int) {
	for range n {
		w.watch.poll(w.t.Context())
		w.now = w.now.Add(Interval)
	}
}

// healthyWorld is a world whose volume has been connected and well for a while.
func healthyWorld(t *testing.T) *world {
	w := newWorld(t)
	w.polls(6)
	w.reads, w.writes, w.events = 0, 0, nil
	return w
}

func (w *world) lose() {
	w.status.Peers[0].ConnectionState, w.status.Peers[0].DiskState = "WFConnection", "DUnknown"
}

func (w *world) find() {
	w.status.Peers[0].ConnectionState, w.status.Peers[0].DiskState = "Connected", "UpToDate"
}

func (w *world) condition(kind string) string {
	c := meta.FindStatusCondition(w.object.Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return string(c.Status) + " " + c.Reason
}

func (w *world) Status(context.Context) (*escache.Status, error) {
	if w.silent {
		return nil, escacheclient.ErrUnreachable
	}
	if w.gone {
		return &escache.Status{}, nil
	}
	s := w.status
	s.Peers = slices.Clone(s.Peers)
	return &escache.Status{Volumes: []escache.VolumeStatus{s}}, nil
}

func (w *world) VolumeStatus(context.Context, escache.VolumeRef) (*escache.VolumeStatus, error) {
	if w.beforeStatus != nil {
		hook := w.beforeStatus
		w.beforeStatus = nil
		hook()
	}
	s := w.status
	s.Peers = slices.Clone(s.Peers)
	return &s, nil
}

// takeOver is what the record and the host show once another node has the volume that was cut off
// here.
func (w *world) takeOver(node string) {
	w.object.Status.Epoch++
	w.object.Status.AttachedNode = node
	w.touch()
	w.status.IOSuspended = true
}

func (w *world) Abandon(_ context.Context, _ escache.VolumeRef, epoch int64) error {
	w.abandoned = append(w.abandoned, epoch)
	if w.abandonError == nil {
		w.status.IOSuspended = false
		return &escache.Problem{Code: escache.CodeDeviceOpen}
	}
	return w.abandonError
}

func (w *world) Volume(context.Context, string) (*v1alpha1.CacheVolume, error) {
	w.reads++
	if w.apiDown {
		return nil, kube.ErrUnavailable
	}
	return w.object.DeepCopy(), nil
}

func (w *world) VolumeOf(ctx context.Context, _ escache.VolumeRef) (*v1alpha1.CacheVolume, error) {
	return w.Volume(ctx, "")
}

func (w *world) PatchStatus(_ context.Context, v *v1alpha1.CacheVolume, status map[string]any) (*v1alpha1.CacheVolume, error) {
	w.writes++
	if w.apiDown {
		return nil, kube.ErrUnavailable
	}
	if v.ResourceVersion != w.object.ResourceVersion {
		return nil, kube.ErrConflict
	}
	// Through JSON, so that each field's name has to be right. A list replaces the list, as in a
	// merge patch.
	data, err := json.Marshal(status)
	if err != nil {
		w.t.Fatal(err)
	}
	if _, ok := status["conditions"]; ok {
		w.object.Status.Conditions = nil
	}
	if _, ok := status["outdated"]; ok {
		w.object.Status.Outdated = nil
	}
	if err := json.Unmarshal(data, &w.object.Status); err != nil {
		w.t.Fatal(err)
	}
	w.touch()
	return w.object.DeepCopy(), nil
}

func (w *world) touch() {
	w.version++
	w.object.ResourceVersion = strconv.Itoa(w.version)
}

func (w *world) Emit(_ context.Context, _ string, _ *v1alpha1.CacheVolume, e kube.Event) error {
	if w.apiDown {
		return kube.ErrUnavailable
	}
	w.events, w.message = append(w.events, e.Reason), e.Message
	return nil
}
