package cacheflush

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// trimmer plays the volumes: it answers the bites in turn, and counts the ends.
type trimmer struct {
	Flusher

	bites  []func() (volumes.Trimmed, error)
	starts []int64
	ends   int
	endErr error
}

func (f *trimmer) Trim(_ context.Context, _ string, start int64, _ time.Duration) (volumes.Trimmed, error) {
	f.starts = append(f.starts, start)
	next := f.bites[min(len(f.starts), len(f.bites))-1]
	return next()
}

func (f *trimmer) EndTrim(context.Context, string) error {
	f.ends++
	return f.endErr
}

func bite(next int64, done bool, err error) func() (volumes.Trimmed, error) {
	return func() (volumes.Trimmed, error) {
		return volumes.Trimmed{Node: "n2", Bytes: 1000, Next: next, Done: done}, err
	}
}

func failing(err error) func() (volumes.Trimmed, error) {
	return func() (volumes.Trimmed, error) { return volumes.Trimmed{}, err }
}

// trims asks for a trim of a volume of 1 GiB that no node has.
func trims(t *testing.T, timeout int32, bites ...func() (volumes.Trimmed, error)) (*world, *trimmer) {
	t.Helper()
	w, f := newWorld(t), &trimmer{bites: bites}
	w.attach("a", "n1", 0)
	w.r.Flusher = f
	w.flush(v1alpha1.CacheFlushSpec{Volume: "a", Mode: v1alpha1.FlushModeTrim, TimeoutSeconds: timeout})
	return w, f
}

func TestATrimGoesOnInBitesAndAddsUp(t *testing.T) {
	busy := fmt.Errorf("a call runs: %w", volumes.ErrBusy)
	w, f := trims(t, 3600, bite(256*mib, false, nil), failing(busy), bite(512*mib, false, nil), bite(1024*mib, true, nil))
	if now := w.pass(); now.Status.Phase != v1alpha1.FlushRunning || now.Status.Percent != 25 || *of(t, now, "a").TrimmedBytes != 1000 {
		t.Errorf("after a bite: %+v", now.Status)
	}
	if now := of(t, w.pass(), "a"); now.Phase != v1alpha1.FlushRunning || !strings.Contains(now.Message, "a call runs") {
		t.Errorf("while it is busy: %+v", now)
	}
	w.pass()
	now := w.pass()
	if v := of(t, now, "a"); now.Status.Phase != v1alpha1.FlushComplete || *v.TrimmedBytes != 3000 || v.Node != "n2" || now.Status.Percent != 100 {
		t.Errorf("at the end: %+v", now.Status)
	}
	if got := fmt.Sprint(f.starts); got != fmt.Sprint([]int64{0, 256 * mib, 256 * mib, 512 * mib}) {
		t.Errorf("the bites began at %s", got)
	}
	var said []string
	for len(w.events.Events) > 0 {
		said = append(said, <-w.events.Events)
	}
	if all := strings.Join(said, "\n"); !strings.Contains(all, "Normal Trimmed its filesystem has discarded 2.9Ki of free space, on node n2") {
		t.Errorf("the Events say %s", all)
	}
}

// All is trimmed, and only the host has to give the volume back.
func TestATrimIsNotDoneBeforeTheHostGivesTheVolumeBack(t *testing.T) {
	w, f := trims(t, 3600, bite(1024*mib, false, errors.New("the host does not answer")))
	f.endErr = errors.New("it still does not")
	for range 2 {
		if now := w.pass(); now.Status.Phase != v1alpha1.FlushRunning {
			t.Errorf("%+v", now.Status)
		}
	}
	f.endErr = nil
	if now := w.pass(); now.Status.Phase != v1alpha1.FlushComplete || len(f.starts) != 1 || *of(t, now, "a").TrimmedBytes != 1000 {
		t.Errorf("%+v, after %d bites", now.Status, len(f.starts))
	}
}

func TestATrimThatIsRefusedFailsAtOnce(t *testing.T) {
	w, f := trims(t, 3600, failing(fmt.Errorf("stop its pods: %w", volumes.ErrRefused)))
	f.endErr = errors.New("the host does not answer")
	if now := w.pass(); now.Status.Phase != v1alpha1.FlushRunning {
		t.Errorf("nobody would take it from its host any more: %+v", now.Status)
	}
	f.endErr = nil
	now := w.pass()
	if v := of(t, now, "a"); now.Status.Phase != v1alpha1.FlushFailed || !strings.Contains(v.Message, "stop its pods") || f.ends != 2 {
		t.Errorf("%+v, %d ends", now.Status, f.ends)
	}
}

func TestATrimWhoseTimeIsUpGivesTheVolumeBack(t *testing.T) {
	w, f := trims(t, 60, bite(256*mib, false, nil))
	w.pass()
	w.wait(time.Minute)
	f.endErr = errors.New("the host does not answer")
	if now := w.pass(); now.Status.Phase != v1alpha1.FlushRunning || !strings.Contains(of(t, now, "a").Message, "n2 has to give it back") {
		t.Errorf("the host has it: %+v", now.Status)
	}
	f.endErr = nil
	if now := w.pass(); now.Status.Phase != v1alpha1.FlushFailed || !strings.Contains(of(t, now, "a").Message, "given up after 60 s") {
		t.Errorf("%+v", now.Status)
	}
}

func TestATrimThatIsDeletedGivesTheVolumeBack(t *testing.T) {
	w, f := trims(t, 3600, bite(256*mib, false, nil))
	w.pass()
	w.remove()
	f.endErr = errors.New("the host does not answer")
	if now := w.pass(); now == nil {
		t.Fatal("it is gone, and the host has the volume")
	}
	f.endErr = nil
	if now := w.pass(); now != nil || f.ends != 2 {
		t.Errorf("%+v, %d ends", now, f.ends)
	}
}

// Who drains a host is about to restart it. While it is away, it could not give back what it trims, and no pod would get
// that.
func TestAHostThatIsDrainedGivesBackWhatItTrims(t *testing.T) {
	w, f := newWorld(t), &trimmer{endErr: errors.New("the host does not answer")}
	v := w.attach("a", "n1", 0)
	v.Status.AttachedNode, v.Status.FlushEpoch, v.Status.Authority = "n2", v.Status.Epoch, v1alpha1.AuthorityCeph
	v.Status.Uncached, v.Status.Outdated = &v1alpha1.UncachedAttachment{Epoch: v.Status.Epoch}, v.Spec.Replicas
	must(t, w.api.Status().Update(t.Context(), v))
	w.r.Flusher = f
	w.flush(v1alpha1.CacheFlushSpec{Node: "n2", Mode: v1alpha1.FlushModeDrain})
	if now := w.pass(); now.Status.Phase != v1alpha1.FlushRunning || !strings.Contains(of(t, now, "a").Message, "does not answer") {
		t.Errorf("it still has the volume: %+v", now.Status)
	}
	f.endErr = nil
	if now := of(t, w.pass(), "a"); now.Phase != v1alpha1.FlushComplete || f.ends != 2 {
		t.Errorf("%+v, %d ends", now, f.ends)
	}
}
