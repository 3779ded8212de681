package repair

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/pace"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/placement"
)

// work does what a volume needs next, and returns how far it is. The next poll repeats what failed.
func (r *Repairer) work(ctx context.Context, w *work) {
	var progress string
	var err error
	name := w.volume.Name
	switch w.step.Action {
	case Begin, End:
		err = r.store(ctx, name, w.step, w.seen)
	case Drain:
		progress, err = r.drain(ctx, name)
	case Substitute, Copy:
		if w.hold != "" {
			r.drainAgain(ctx, w)
			w.step.Action, progress = Wait, w.hold
			break
		}
		progress, err = r.copy(ctx, w)
	case Finish:
		err = r.finish(ctx, w)
	case Flush:
		switch {
		case w.hold != "":
			w.step.Action, progress = Wait, w.hold
		case w.redundant(w.volume) == nil: // else that is put on record first: once a node has it, that node speaks
			progress, err = r.flush(ctx, name)
		}
	case Wait:
		r.drainAgain(ctx, w)
	case Nothing, Stay:
	}
	if err != nil {
		progress = err.Error()
		if !passing(err) {
			r.Log.WarnContext(ctx, "repair goes on later", "volume", name, "action", w.step.Action, "error", err)
		}
	}
	if err := r.report(ctx, w, progress); err != nil && !passing(err) {
		r.Log.WarnContext(ctx, "cannot write the condition of a repair", "volume", name, "error", err)
	}
	if w.step.nothingToRepair() && w.seen.Asked {
		if err := r.answer(ctx, w); err != nil && !passing(err) {
			r.Log.WarnContext(ctx, "cannot answer who asked for a repair", "volume", name, "error", err)
		}
	}
}

// passing reports whether an error only means that somebody else's write came first.
func passing(err error) bool {
	return volumes.Code(err) == codes.Aborted
}

// store writes or removes the repair on record, if the record still asks for that.
func (r *Repairer) store(ctx context.Context, name string, step Step, seen Seen) error {
	done, err := r.Locks.Begin(name, "repair record update")
	if err != nil {
		return err
	}
	defer done()
	v := &v1alpha1.CacheVolume{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: name}, v); err != nil {
		return client.IgnoreNotFound(err)
	}
	now := Judge(v, seen, r.Policy, r.Now())
	if now.Action != step.Action || now.Lost != step.Lost {
		return nil // it has changed since; the next poll sees what it needs
	}
	if step.Action == Begin {
		v.Status.Repair = &v1alpha1.ReplicaRepair{Epoch: v.Status.Epoch, Lost: step.Lost, Since: metav1.NewTime(r.Now())}
	} else {
		v.Status.Repair = nil
		v.Status.Outdated = slices.DeleteFunc(v.Status.Outdated, func(node string) bool { return !v.Spec.HasReplica(node) })
	}
	v.Status.Summarize()
	if err := r.Client.Status().Update(ctx, v); err != nil {
		return fmt.Errorf("record the repair of volume %s: %w", name, err)
	}
	if step.Action == Begin {
		crashpoint.Reach("repair/begun")
	} else {
		crashpoint.Reach("repair/ended")
	}
	return nil
}

// drain makes the volume write through, and returns how much is left to be written.
func (r *Repairer) drain(ctx context.Context, name string) (string, error) {
	if _, err := r.Drainer.Turn(ctx, name, Owner); err != nil {
		return "", err
	}
	clean, status, err := r.Drainer.Settle(ctx, name)
	switch {
	case err != nil:
		return "", err
	case clean:
		return "everything is in Ceph, and stays there until the repair is over", nil
	case status.DirtyBytes == nil:
		return "it is not known how much is left", nil
	default:
		return r.left(name, *status.DirtyBytes), nil
	}
}

// drainAgain drains a volume that writes through for its repair, and waits for something else. The drain may have been
// given up, and Ceph may be back. Or the volume has been turned back since, by a call that came late: then that is put on record.
func (r *Repairer) drainAgain(ctx context.Context, w *work) {
	name := w.volume.Name
	if !r.Drain || !slices.Contains(authority.Claims(w.volume), Owner) {
		return
	}
	if _, err := r.drain(ctx, name); err != nil && !passing(err) {
		r.Log.DebugContext(ctx, "the repair waits, and its volume cannot be drained", "volume", name, "error", err)
	}
}

// flushBite is how long a volume is written back before another operation may have its turn. flushLongest
// bounds all that this takes in one poll: the other repairs wait.
const (
	flushBite    = 5 * time.Second
	flushLongest = 30 * time.Second
)

// flush takes a bite of the write-back of a volume that no pod has, and returns how much is left.
func (r *Repairer) flush(ctx context.Context, name string) (string, error) {
	r.mu.Lock()
	r.flushed[name] = r.Now()
	r.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, flushLongest)
	defer cancel()
	err := r.Volumes.WriteBackDetached(ctx, name, flushBite)
	switch unfinished, goesOn := errors.AsType[*volumes.UnfinishedError](err); {
	case err == nil:
		r.Log.InfoContext(ctx, "wrote back a volume that no pod has", "volume", name)
		return "everything is in Ceph", nil
	case goesOn:
		return r.left(name, unfinished.LeftBytes), nil
	default:
		return "", err
	}
}

// left says how much is still to be written to Ceph, and once it is known, how fast that is done.
func (r *Repairer) left(name string, bytes int64) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	m := r.paces[name]
	if m == nil {
		m = &pace.Meter{}
		r.paces[name] = m
	}
	text := v1alpha1.HumanBytes(bytes) + " are left"
	if rate, remaining := m.Look(bytes, r.Now()); rate > 0 {
		text += fmt.Sprintf(", %s/s, %s remaining", v1alpha1.HumanBytes(rate), remaining)
	}
	return text
}

// copy replaces the lost replica if that is not on record yet, and makes the holder copy.
func (r *Repairer) copy(ctx context.Context, w *work) (string, error) {
	name, epoch := w.volume.Name, w.volume.Status.Epoch
	if r.Drain {
		// The drain may have been given up, and Ceph may be back: make the claim again, so that the
		// truth moves as soon as it can.
		if _, err := r.drain(ctx, name); err != nil && !passing(err) {
			r.Log.DebugContext(ctx, "copying without a drain", "volume", name, "error", err)
		}
	}
	if w.step.Action == Substitute {
		err := w.nowhere
		if err == nil {
			if err = r.Volumes.Substitute(ctx, name, epoch, w.step.Lost, w.to, w.step.Place); err != nil {
				r.tried(name, err)
			}
		}
		switch {
		case errors.Is(err, placement.ErrNoFit), errors.Is(err, authority.ErrRefused):
			w.step.Action = Wait
			return "", err
		case err != nil:
			return "", err
		}
		w.step.Action = Copy
		r.Log.InfoContext(ctx, "replacing a lost replica", "volume", name, "holder", w.step.Holder, "lost", w.step.Lost, "substitute", w.to)
	}
	c, err := r.Volumes.Copy(ctx, name, epoch)
	r.tried(name, err)
	switch {
	case err != nil:
		return "", err
	case c.Done:
		r.Log.InfoContext(ctx, "the volume has two copies again", "volume", name, "holder", w.step.Holder, "on", c.To)
		return "the copy on " + c.To + " is current", nil
	case !c.Linked:
		return fmt.Sprintf("%s and %s become partners", w.step.Holder, c.To), nil
	default:
		return fmt.Sprintf("%s copies to %s; status.resync says how far it is", w.step.Holder, c.To), nil
	}
}

// finish ends the repair's claim of write-through, and then the repair.
func (r *Repairer) finish(ctx context.Context, w *work) error {
	name := w.volume.Name
	// By the record as it is now, before the claim ends and after it: what was judged may be older than a copy's
	// replacement.
	ended, err := r.finished(ctx, w)
	if err != nil || !ended {
		return err
	}
	if err := r.Drainer.Restore(ctx, name, Owner); err != nil {
		return err
	}
	if ended, err = r.finished(ctx, w); err != nil || !ended {
		return err
	}
	return r.store(ctx, name, w.step, w.seen)
}

// finished reports whether both copies are current, by the record as it is now.
func (r *Repairer) finished(ctx context.Context, w *work) (bool, error) {
	v := &v1alpha1.CacheVolume{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: w.volume.Name}, v); err != nil {
		return false, client.IgnoreNotFound(err)
	}
	step := Judge(v, w.seen, r.Policy, r.Now())
	return step.Action == Finish && step.Lost == w.step.Lost, nil
}

// nothingToRepair reports whether two copies are current, or none is needed. One of them may be to leave its host.
func (s Step) nothingToRepair() bool { return s.Action == Nothing || s.Action == Stay }

// answer takes a request for a repair off the record once there is nothing to do.
func (r *Repairer) answer(ctx context.Context, w *work) error {
	v := &v1alpha1.CacheVolume{}
	if err := r.Live.Get(ctx, client.ObjectKey{Name: w.volume.Name}, v); err != nil {
		return client.IgnoreNotFound(err)
	}
	step := Judge(v, w.seen, r.Policy, r.Now())
	if _, asked := v.Annotations[v1alpha1.AnnotationRepair]; !asked || !step.nothingToRepair() {
		return nil
	}
	before := v.DeepCopy()
	delete(v.Annotations, v1alpha1.AnnotationRepair)
	err := r.Client.Patch(ctx, v, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{}))
	if err != nil {
		return client.IgnoreNotFound(err)
	}
	note := w.seen.Message
	switch {
	case v.WithoutPod() && w.seen.Whole():
		note += "; no node has it, and not everything is in Ceph: kubectl escache flush --volume=" + v.Name + " writes it back"
	case v.WithoutPod():
	case v.Status.AttachedNode == "":
		note = "the volume is not attached: its next attachment creates two copies where there are hosts"
	}
	r.Events.Eventf(v, nil, corev1.EventTypeNormal, "RepairNotNeeded", "Repair", "there is nothing to repair: %s", note)
	return nil
}
