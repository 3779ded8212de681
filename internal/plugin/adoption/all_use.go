package adoption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
)

// makeUse makes the PersistentVolume and the claim of a volume whose record is, or would be, re-created, as
// far as its image knows them. It enters them in r, and what is left to do. Without apply it makes
// nothing.
func makeUse(ctx context.Context, api client.Client, r *rebuilt, known claims.Uses, apply bool) error {
	if !r.fine() || r.PersistentVolume == "" && r.Claim == "" {
		return nil
	}
	t, err := twinOf(ctx, api, r)
	if err != nil {
		return err
	}
	if has, there := known[r.Volume]; there {
		t.name = has.PersistentVolume
		// One that a claim has had knows better than the image. If that claim was deleted, a new one would not get it.
		pv := &corev1.PersistentVolume{}
		if err := api.Get(ctx, client.ObjectKey{Name: t.name}, pv); err != nil || !freeFor(pv, t.namespace, t.claim) {
			return client.IgnoreNotFound(err)
		}
	} else if err := r.makeObject(ctx, api, t.persistentVolume(), apply, func(o client.Object) bool {
		pv, ok := o.(*corev1.PersistentVolume)
		return ok && pv.Spec.CSI != nil && pv.Spec.CSI.Driver == v1alpha1.DriverName && pv.Spec.CSI.VolumeHandle == r.Volume
	}); err != nil || len(r.Left) > 0 {
		return err
	}
	claim := t.persistentVolumeClaim()
	if claim == nil {
		return nil
	}
	err = api.Get(ctx, client.ObjectKey{Name: t.namespace}, &corev1.Namespace{})
	if apierrors.IsNotFound(err) {
		r.Left = append(r.Left, fmt.Sprintf("there is no namespace %s for claim %s: make it, and run this again", t.namespace, t.claim))
		return nil
	}
	if err != nil {
		return err
	}
	return r.makeObject(ctx, api, claim, apply, func(o client.Object) bool {
		pvc, ok := o.(*corev1.PersistentVolumeClaim)
		return ok && pvc.Spec.VolumeName == claim.Spec.VolumeName
	})
}

// makeObject makes an object, unless it is there already and is the volume's.
func (r *rebuilt) makeObject(ctx context.Context, api client.Client, o client.Object, apply bool, its func(client.Object) bool) error {
	kind := strings.ToLower(o.GetObjectKind().GroupVersionKind().Kind)
	name := strings.TrimPrefix(o.GetNamespace()+"/"+o.GetName(), "/")
	has, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return errors.New(kind + " is no object")
	}
	err := api.Get(ctx, client.ObjectKeyFromObject(o), has)
	switch {
	case err == nil && its(has):
		return nil
	case err == nil:
		r.Left = append(r.Left, fmt.Sprintf("%s %s exists, and is not this volume's", kind, name))
		return nil
	case !apierrors.IsNotFound(err):
		return err
	}
	if apply {
		if err := api.Create(ctx, o); err != nil {
			return fmt.Errorf("make %s %s: %w", kind, name, err)
		}
	}
	r.Made = append(r.Made, kind+" "+name)
	return nil
}

// twinOf returns what the image knows of a volume's use. What an image of an older version does not know is
// as in most StorageClasses.
func twinOf(ctx context.Context, api client.Reader, r *rebuilt) (*twin, error) {
	t := &twin{
		clusterID: r.ClusterID, pool: r.Pool, image: r.Image, class: r.StorageClass, volume: r.Volume, placed: r.Group,
		sizeBytes: r.SizeBytes, name: cmp.Or(r.PersistentVolume, r.Volume), fsType: r.FSType, options: r.MountOptions,
		mode:   corev1.PersistentVolumeMode(cmp.Or(r.VolumeMode, string(corev1.PersistentVolumeFilesystem))),
		access: corev1.PersistentVolumeAccessMode(cmp.Or(r.AccessMode, string(corev1.ReadWriteOnce))),
	}
	t.namespace, t.claim, _ = strings.Cut(r.Claim, "/")
	if t.fsType == "" && r.StorageClass != "" {
		class := &storagev1.StorageClass{}
		if err := api.Get(ctx, client.ObjectKey{Name: r.StorageClass}, class); client.IgnoreNotFound(err) != nil {
			return nil, err
		}
		t.fsType = class.Parameters["csi.storage.k8s.io/fstype"]
	}
	t.fsType = cmp.Or(t.fsType, "ext4")
	return t, nil
}
