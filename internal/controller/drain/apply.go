package drain

import (
	"context"
	"errors"
	"fmt"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// ErrRefused means that a host does not take a change, and would not take it the next time either.
var ErrRefused = errors.New("refused")

// Apply makes the attached node's cache work as the volume's record says now, and records that. A
// volume that writes through on request stays so; its own mode returns with Restore. Nothing is done
// for a volume that was not changed since, is attached to no node, or is gone. ErrAttaching means
// that the device is not there yet, ErrRefused that the host does not take the change, which is on
// record then.
func (d *Drainer) Apply(ctx context.Context, volume string) error {
	v, done, err := d.begin(ctx, volume, "change of options", (*v1alpha1.CacheVolume).ModificationPending)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer done()
	if !v.ModificationPending() {
		return nil
	}
	failure := d.change(ctx, v)
	if failure != nil && !errors.Is(failure, ErrRefused) {
		return failure
	}
	node := v.Status.AttachedNode
	condition := metav1.Condition{
		Type: v1alpha1.ConditionModified, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonModificationApplied,
		Message: "the cache on node " + node + " has the mode and the options that are on record", ObservedGeneration: v.Generation,
	}
	if failure != nil {
		condition.Status, condition.Reason = metav1.ConditionFalse, v1alpha1.ReasonModificationRefused
		condition.Message = failure.Error() + "; give the claim a VolumeAttributesClass with other values, " +
			"or the volume cannot be used after it was detached"
	}
	v.Status.Applied = &v1alpha1.AppliedModification{Modification: v.Spec.Modifications, Epoch: v.Status.Epoch, Refused: failure != nil}
	meta.SetStatusCondition(&v.Status.Conditions, condition)
	return errors.Join(failure, d.write(ctx, v, "its node was given the newest mode and options"))
}

// change gives the attachment's own device the volume's mode and options.
func (d *Drainer) change(ctx context.Context, v *v1alpha1.CacheVolume) error {
	status, err := d.device(ctx, v)
	if err != nil {
		return err
	}
	if status.Epoch != v.Status.Epoch { // an earlier attachment, which may have begun with other options
		return fmt.Errorf("volume %s is %w to node %s: its device is not there", v.Name, ErrAttaching, v.Status.AttachedNode)
	}
	// Without a claim, authority is Cache here, so that it may write back. The mode is set also if the status has it: an
	// earlier call may still be under way, and what it says while it is may not stay.
	if len(authority.Claims(v)) == 0 {
		if err := d.setMode(ctx, v, escache.Mode(v.Spec.CacheMode)); err != nil {
			return explained(v, err)
		}
		crashpoint.Reach("modification/mode_set")
	}
	if err := d.setOptions(ctx, v); err != nil {
		return explained(v, err)
	}
	crashpoint.Reach("modification/options_set")
	return nil
}

func (d *Drainer) setOptions(ctx context.Context, v *v1alpha1.CacheVolume) error {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	if err := d.config.Hosts.SetOptions(ctx, cachevolume.On(v, v.Status.AttachedNode), cachevolume.Options(v)); err != nil {
		return fmt.Errorf("change the options of volume %s on node %s: %w", v.Name, v.Status.AttachedNode, err)
	}
	return nil
}

// explained adds to a host's refusal what it means for the change.
func explained(v *v1alpha1.CacheVolume, err error) error {
	problem, answered := errors.AsType[*escache.Problem](err)
	switch {
	case answered && problem.Code == escache.CodeInvalidRequest:
		return fmt.Errorf("%w: %w", ErrRefused, err)
	case answered && problem.Code == escache.CodeUnknownPath:
		return fmt.Errorf("%w; upgrade escached on node %s, or detach the volume and attach it again", err, v.Status.AttachedNode)
	}
	return err
}
