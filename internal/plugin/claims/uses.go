// Package claims finds the volume of a claim, and who uses a volume: the PersistentVolume that
// names it, the claim that is bound to that, and the pods that wait for it.
package claims

import (
	"cmp"
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/paging"
)

// Young is the age below which a volume is no orphan: its PersistentVolume may not be created yet.
const Young = 10 * time.Minute

// Use is the PersistentVolume that names a volume.
type Use struct {
	PersistentVolume string
	Namespace, Claim string // "" if no claim is bound to it
	StorageClass     string
	// Block: pods have it as a raw block device.
	Block bool
}

// Uses are the PersistentVolumes by the volume that they name. nil means that they cannot be read.
type Uses map[string]Use

// ReadUses reads all PersistentVolumes. A user who may not read them gets nil.
func ReadUses(ctx context.Context, api client.Reader) (Uses, error) {
	out := Uses{}
	err := paging.Each(ctx, api, &corev1.PersistentVolumeList{}, func(pv *corev1.PersistentVolume) error {
		if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
			return nil
		}
		u := Use{PersistentVolume: pv.Name, StorageClass: pv.Spec.StorageClassName}
		u.Block = pv.Spec.VolumeMode != nil && *pv.Spec.VolumeMode == corev1.PersistentVolumeBlock
		if c := pv.Spec.ClaimRef; c != nil && pv.Status.Phase != corev1.VolumeReleased && pv.Status.Phase != corev1.VolumeFailed {
			u.Namespace, u.Claim = c.Namespace, c.Name
		}
		if out[pv.Spec.CSI.VolumeHandle].Claim == "" { // of several, the one with a claim counts
			out[pv.Spec.CSI.VolumeHandle] = u
		}
		return nil
	})
	if apierrors.IsForbidden(err) {
		return nil, nil //nolint:nilnil // nil is an answer, see Uses
	}
	return out, err
}

// ClaimOf returns NAMESPACE/NAME of the claim that has a volume now; "-" if none has. Where that
// cannot be read, it is the claim on record.
func (all Uses) ClaimOf(v metav1.Object) string {
	if all == nil {
		return OnRecord(v)
	}
	u := all[v.GetName()]
	if u.Claim == "" {
		return "-"
	}
	return u.Namespace + "/" + u.Claim
}

// OnRecord returns NAMESPACE/NAME of the claim that had the volume when it was last attached, or that it was
// created for; "-" if not known.
func OnRecord(v metav1.Object) string {
	return cmp.Or(v.GetAnnotations()[v1alpha1.AnnotationClaim], "-")
}
