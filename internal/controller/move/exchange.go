package move

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

const retain = corev1.PersistentVolumeReclaimRetain

// movable refuses a volume that a pod is about to use, or whose PersistentVolume could not be re-created. It
// returns what the record of the move has to keep of that.
func (r *Reconciler) movable(ctx context.Context, v *v1alpha1.CacheVolume, group string) (volumes.KeptVolume, error) {
	none := volumes.KeptVolume{}
	pv, err := r.find(ctx, v)
	if err != nil {
		return none, err
	}
	if pv == nil {
		if v.Status.Epoch == 0 {
			return none, fmt.Errorf("no PersistentVolume names volume %s yet, which may be being created: %w", v.Name, volumes.ErrBusy)
		}
		return none, nil
	}
	if err := r.unused(ctx, pv); err != nil {
		return none, err
	}
	fresh, needed := anew(pv, group)
	if !needed {
		return none, nil
	}
	switch {
	case !pv.DeletionTimestamp.IsZero():
		return none, fmt.Errorf("PersistentVolume %s is being deleted: %w", pv.Name, volumes.ErrRefused)
	case pv.Status.Phase == corev1.VolumeReleased || pv.Status.Phase == corev1.VolumeFailed:
		return none, fmt.Errorf("PersistentVolume %s is %s: its claim is gone, and the volume may be deleted at any moment: %w",
			pv.Name, pv.Status.Phase, volumes.ErrRefused)
	}
	if left := foreign(pv); len(left) > 0 {
		return none, fmt.Errorf("PersistentVolume %s has to be re-created, and somebody keeps it from being deleted "+
			"with the finalizer %s: %w", pv.Name, strings.Join(left, ", "), volumes.ErrRefused)
	}
	// The real one can only be made after the old one is deleted. That would be too late to find out that
	// somebody does not allow it.
	trial := fresh.DeepCopy()
	trial.Name += "-escache-move"
	err = r.Client.Create(ctx, trial, client.DryRunAll)
	switch {
	case apierrors.IsForbidden(err), apierrors.IsInvalid(err), apierrors.IsBadRequest(err):
		return none, fmt.Errorf("PersistentVolume %s has to be re-created, and that is not allowed: %w: %w", pv.Name,
			volumes.ErrRefused, err)
	case err != nil && !apierrors.IsAlreadyExists(err):
		return none, fmt.Errorf("try to re-create PersistentVolume %s: %w", pv.Name, err)
	}
	text, err := encode(fresh, pv.Spec.PersistentVolumeReclaimPolicy)
	return volumes.KeptVolume{UID: string(pv.UID), Text: text}, err
}

// find returns the PersistentVolume that names the volume, nil if there is none.
func (r *Reconciler) find(ctx context.Context, v *v1alpha1.CacheVolume) (*corev1.PersistentVolume, error) {
	all := &corev1.PersistentVolumeList{}
	if err := r.Client.List(ctx, all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, fmt.Errorf("look for the PersistentVolume of volume %s: %w", v.Name, err)
	}
	candidates := []string{v.Name} // external-provisioner's name for it, which the cache may not have yet
	for i := range all.Items {
		if pv := &all.Items[i]; names(pv, v.Name) && pv.Name != v.Name {
			candidates = append(candidates, pv.Name)
		}
	}
	var found []*corev1.PersistentVolume
	for _, name := range candidates {
		pv := &corev1.PersistentVolume{}
		err := r.Live.Get(ctx, client.ObjectKey{Name: name}, pv)
		if client.IgnoreNotFound(err) != nil {
			return nil, fmt.Errorf("read PersistentVolume %s: %w", name, err)
		}
		if err == nil && names(pv, v.Name) {
			found = append(found, pv)
		}
	}
	switch len(found) {
	case 0:
		return nil, nil //nolint:nilnil // there is none
	case 1:
		return found[0], nil
	default:
		return nil, fmt.Errorf("%d PersistentVolumes name volume %s, such as %s and %s; delete all but one: %w",
			len(found), v.Name, found[0].Name, found[1].Name, volumes.ErrRefused)
	}
}

// unused refuses a PersistentVolume that Kubernetes attaches, or is about to: a pod that has a node in the
// former group can never start once the volume has left.
func (r *Reconciler) unused(ctx context.Context, pv *corev1.PersistentVolume) error {
	attachments := &storagev1.VolumeAttachmentList{}
	if err := r.Live.List(ctx, attachments); err != nil {
		return fmt.Errorf("look for attachments of PersistentVolume %s: %w", pv.Name, err)
	}
	for i := range attachments.Items {
		if a := &attachments.Items[i]; a.Spec.Source.PersistentVolumeName != nil && *a.Spec.Source.PersistentVolumeName == pv.Name {
			return fmt.Errorf("VolumeAttachment %s has PersistentVolume %s on node %s: %w",
				a.Name, pv.Name, a.Spec.NodeName, authority.ErrAttached)
		}
	}
	claim := pv.Spec.ClaimRef
	if claim == nil {
		return nil
	}
	pods := &corev1.PodList{}
	if err := r.Live.List(ctx, pods, client.InNamespace(claim.Namespace)); err != nil {
		return fmt.Errorf("look for pods that use claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	for i := range pods.Items {
		if pod := &pods.Items[i]; pod.Spec.NodeName != "" && uses(pod, claim.Name) {
			return fmt.Errorf("pod %s/%s, which uses the volume, has node %s: %w", pod.Namespace, pod.Name, pod.Spec.NodeName,
				authority.ErrAttached)
		}
	}
	return nil
}

// uses reports whether a pod that has not ended uses the claim. The claim of a generic ephemeral volume is
// named after its pod.
func uses(pod *corev1.Pod, claim string) bool {
	if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
		return false
	}
	return slices.ContainsFunc(pod.Spec.Volumes, func(v corev1.Volume) bool {
		return v.PersistentVolumeClaim != nil && v.PersistentVolumeClaim.ClaimName == claim ||
			v.Ephemeral != nil && pod.Name+"-"+v.Name == claim
	})
}

// errNotYet means that Kubernetes has something to do first. It takes moments.
var errNotYet = fmt.Errorf("not yet: %w", volumes.ErrBusy)

// exchange re-creates the PersistentVolume, with a node affinity for the new group: Kubernetes does not let
// the affinity change. The new one has the same name and the same claim, by its UID, so that the claim stays bound. The
// old one gets the reclaim policy Retain first, and the new one has it too: neither can be a reason to delete
// the volume. Before the old one is gone, the record has all that is in it. Each step is repeated from what
// is there.
func (r *Reconciler) exchange(ctx context.Context, v *v1alpha1.CacheVolume) error {
	m := v.Status.Move
	if m.PersistentVolume == "" {
		return nil
	}
	kept, err := decode(m.PersistentVolume)
	if err != nil {
		return err
	}
	pv := &corev1.PersistentVolume{}
	err = r.Live.Get(ctx, client.ObjectKeyFromObject(kept), pv)
	switch {
	case client.IgnoreNotFound(err) != nil:
		return fmt.Errorf("read PersistentVolume %s: %w", kept.Name, err)
	case err == nil && string(pv.UID) != m.PersistentVolumeUID:
		return isAnew(pv, v)
	case err == nil:
		if err := r.take(ctx, v, pv, kept); err != nil {
			return err
		}
	}
	fresh := kept.DeepCopy()
	fresh.Spec.PersistentVolumeReclaimPolicy = retain
	if err := r.Client.Create(ctx, fresh); err != nil {
		return fmt.Errorf("re-create PersistentVolume %s: %w", fresh.Name, err)
	}
	crashpoint.Reach("move/pv_made")
	return nil
}

// isAnew returns an error if the PersistentVolume is neither the old one nor the one that was created in its place.
func isAnew(pv *corev1.PersistentVolume, v *v1alpha1.CacheVolume) error {
	if _, needed := anew(pv, v.Status.Move.Group); needed || !names(pv, v.Name) {
		return fmt.Errorf("somebody has made another PersistentVolume %s; delete it, and the move goes on: %w", pv.Name, volumes.ErrRefused)
	}
	return nil
}

// take removes the old PersistentVolume.
func (r *Reconciler) take(ctx context.Context, v *v1alpha1.CacheVolume, pv, kept *corev1.PersistentVolume) error {
	policy := finalPolicy(pv, kept)
	if pv.Spec.PersistentVolumeReclaimPolicy != retain {
		before := pv.DeepCopy()
		pv.Spec.PersistentVolumeReclaimPolicy = retain
		metav1.SetMetaDataAnnotation(&pv.ObjectMeta, retainedByMove, v.Status.Move.Group)
		if err := r.Client.Patch(ctx, pv, lockedPatch(before)); err != nil {
			return fmt.Errorf("set the reclaim policy of PersistentVolume %s to Retain: %w", pv.Name, err)
		}
		crashpoint.Reach("move/pv_retained")
	}
	// Somebody may have changed it since, for example the resizer, or who wants the volume kept.
	fresh, _ := anew(pv, v.Status.Move.Group)
	text, err := encode(fresh, policy)
	if err != nil {
		return err
	}
	if text != v.Status.Move.PersistentVolume {
		if err := r.Volumes.KeepVolume(ctx, v.Name, volumes.KeptVolume{UID: string(pv.UID), Text: text}); err != nil {
			return err
		}
		return fmt.Errorf("PersistentVolume %s has changed meanwhile: %w", pv.Name, errNotYet)
	}
	if left := foreign(pv); len(left) > 0 {
		return fmt.Errorf("the finalizer %s keeps PersistentVolume %s from being re-created; remove what has set it: %w",
			strings.Join(left, ", "), pv.Name, volumes.ErrRefused)
	}
	if pv.DeletionTimestamp.IsZero() {
		asSeen := client.Preconditions{UID: &pv.UID, ResourceVersion: &pv.ResourceVersion}
		if err := r.Client.Delete(ctx, pv, asSeen); err != nil {
			return fmt.Errorf("delete PersistentVolume %s, to re-create it: %w", pv.Name, err)
		}
		crashpoint.Reach("move/pv_marked")
		uid := pv.UID
		err := r.Live.Get(ctx, client.ObjectKeyFromObject(pv), pv)
		if apierrors.IsNotFound(err) {
			return nil
		}
		if err != nil || pv.UID != uid {
			return errors.Join(err, fmt.Errorf("PersistentVolume %s is being deleted: %w", pv.Name, errNotYet))
		}
		if now, _ := anew(pv, v.Status.Move.Group); !same(now, fresh) {
			return fmt.Errorf("PersistentVolume %s has changed meanwhile: %w", pv.Name, errNotYet)
		}
	}
	// Only finalizers keep it now. The patch is refused if anything has changed.
	before := pv.DeepCopy()
	pv.Finalizers = nil
	if err := r.Client.Patch(ctx, pv, lockedPatch(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("remove the finalizers of PersistentVolume %s: %w", pv.Name, err)
	}
	crashpoint.Reach("move/pv_removed")
	return nil
}

func same(a, b *corev1.PersistentVolume) bool {
	x, errA := encode(a, retain)
	y, errB := encode(b, retain)
	return errA == nil && errB == nil && x == y
}

func lockedPatch(before client.Object) client.Patch {
	return client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
}

// restore gives the new PersistentVolume its reclaim policy, once its claim is bound to it. If the claim is gone, or
// is being deleted, it stays Retain: who has deleted the claim may have relied on that.
func (r *Reconciler) restore(ctx context.Context, v *v1alpha1.CacheVolume) error {
	if v.Status.Move.PersistentVolume == "" {
		return nil
	}
	kept, err := decode(v.Status.Move.PersistentVolume)
	if err != nil {
		return err
	}
	pv := &corev1.PersistentVolume{}
	err = r.Live.Get(ctx, client.ObjectKeyFromObject(kept), pv)
	switch {
	case apierrors.IsNotFound(err):
		return nil // somebody has deleted it since
	case err != nil:
		return fmt.Errorf("read PersistentVolume %s: %w", kept.Name, err)
	}
	claimed, err := r.bound(ctx, pv)
	if err != nil {
		return err
	}
	policy := kept.Spec.PersistentVolumeReclaimPolicy
	if pv.Spec.PersistentVolumeReclaimPolicy == policy || v.Spec.Release { // a release wants Retain
		return nil
	}
	if !claimed {
		r.Events.Eventf(v, nil, corev1.EventTypeWarning, "VolumeRetained", "Move", "its claim %s/%s was deleted during the move, so "+
			"PersistentVolume %s keeps the reclaim policy Retain; if nobody needs the volume, set it to %s again",
			pv.Spec.ClaimRef.Namespace, pv.Spec.ClaimRef.Name, pv.Name, policy)
		return nil
	}
	before := pv.DeepCopy()
	pv.Spec.PersistentVolumeReclaimPolicy = policy
	if err := r.Client.Patch(ctx, pv, lockedPatch(before)); err != nil {
		return fmt.Errorf("set the reclaim policy of PersistentVolume %s back: %w", pv.Name, err)
	}
	crashpoint.Reach("move/pv_restored")
	return nil
}

// bound returns an error while Kubernetes has not bound the claim to its PersistentVolume again. It does not wait for
// a claim that is gone or is being deleted, and reports false then.
func (r *Reconciler) bound(ctx context.Context, pv *corev1.PersistentVolume) (claimed bool, err error) {
	of := pv.Spec.ClaimRef
	if of == nil {
		return true, nil // it had none before
	}
	if pv.Status.Phase == "" || pv.Status.Phase == corev1.VolumePending {
		return false, fmt.Errorf("PersistentVolume %s is not bound to its claim again: %w", pv.Name, errNotYet)
	}
	claim := &corev1.PersistentVolumeClaim{}
	err = r.Live.Get(ctx, client.ObjectKey{Namespace: of.Namespace, Name: of.Name}, claim)
	switch {
	case of.UID == "":
		return true, nil // it is kept for a claim that was never bound to it
	case apierrors.IsNotFound(err):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("read claim %s/%s: %w", of.Namespace, of.Name, err)
	case claim.UID != of.UID || !claim.DeletionTimestamp.IsZero():
		return false, nil
	case claim.Status.Phase != corev1.ClaimBound:
		return false, fmt.Errorf("claim %s/%s is not bound to its PersistentVolume again: %w", of.Namespace, of.Name, errNotYet)
	}
	return true, nil
}
