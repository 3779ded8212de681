package drain

import (
	"context"
	"fmt"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// Apply makes the attached node's cache work as the volume's record says now, and records that. A
// volume that writes through on request stays so; its own mode returns with Restore. Nothing is done
// for a volume that was not changed since, is attached to no node, or is gone. ErrAttaching means
// that the device is not there yet.
func (d *Drainer) Apply(ctx context.Context, volume string) error {
	if err := d.answers(ctx, volume, (*v1alpha1.CacheVolume).ModificationPending); err != nil {
		return err
	}
	done, err := d.config.Locks.Begin(volume, "change of options")
	if err != nil {
		return err
	}
	defer done()
	v, err := d.read(ctx, volume)
	if apierrors.IsNotFound(err) {
		return nil
	}
	if err != nil || !v.ModificationPending() {
		return err
	}
	status, err := d.holding(ctx, v)
	if err != nil {
		return err
	}
	// Without a claim, authority is Cache here, so that it may write back.
	if own := escache.Mode(v.Spec.CacheMode); len(authority.Claims(v)) == 0 && status.Mode != own {
		if err := d.setMode(ctx, v, own); err != nil {
			return err
		}
		crashpoint.Reach("modification/mode_set")
	}
	if err := d.setOptions(ctx, v); err != nil {
		return err
	}
	crashpoint.Reach("modification/options_set")
	v.Status.Applied = &v1alpha1.AppliedModification{Modification: v.Spec.Modifications, Epoch: v.Status.Epoch}
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionModified, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonModificationApplied,
		Message: "the cache on node " + v.Status.AttachedNode + " works as its record says", ObservedGeneration: v.Generation,
	})
	return d.write(ctx, v, "its node has the newest mode and options")
}

// holding returns the status of the attachment's own device. ErrAttaching means that it is not there
// yet, or is from an earlier attachment, which may have begun with other options.
func (d *Drainer) holding(ctx context.Context, v *v1alpha1.CacheVolume) (escache.VolumeStatus, error) {
	node := v.Status.AttachedNode
	if v.Status.FlushAttached() || authority.InCeph(v) && len(authority.Claims(v)) == 0 {
		return escache.VolumeStatus{}, fmt.Errorf("volume %s is %w to node %s", v.Name, ErrAttaching, node)
	}
	status, err := d.config.Hosts.Status(ctx, node, cachevolume.Ref(v))
	if err == nil && (!connected(status) || status.Epoch != v.Status.Epoch) {
		err = fmt.Errorf("volume %s is %w to node %s: its device is not there", v.Name, ErrAttaching, node)
	}
	return status, err
}

func (d *Drainer) setOptions(ctx context.Context, v *v1alpha1.CacheVolume) error {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	request := escache.OptionsRequest{VolumeRef: cachevolume.Ref(v), Epoch: v.Status.Epoch, Options: cachevolume.Options(v)}
	if err := d.config.Hosts.SetOptions(ctx, v.Status.AttachedNode, request); err != nil {
		return fmt.Errorf("change the options of volume %s on node %s: %w", v.Name, v.Status.AttachedNode, err)
	}
	return nil
}
