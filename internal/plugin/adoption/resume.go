package adoption

import (
	"context"
	"errors"
	"fmt"
	"slices"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/paging"
)

// leftRequest returns the request for the same image that an earlier command has left, because it ended before
// csi-controller did. It is nil if there is none. A request that asks for something else is an error:
// of two, csi-controller would carry out either.
func (t *twin) leftRequest(ctx context.Context, api client.Reader, f options) (*v1alpha1.CacheAdoption, error) {
	if !f.apply {
		return nil, nil //nolint:nilnil // a dry run waits for nothing
	}
	want := t.request(f, false).Spec
	all, err := t.requests(ctx, api)
	for i := range all {
		a := &all[i]
		switch {
		case a.Status.Phase != "" && a.Status.Phase != v1alpha1.AdoptionPending:
			continue
		case equality.Semantic.DeepEqual(a.Spec, want):
			return a, nil
		}
		return nil, fmt.Errorf("CacheAdoption %s asks for image %s/%s already, with other flags (%s); repeat that command, or withdraw "+
			"it: kubectl delete cacheadoption %s", a.Name, want.Pool, want.Image, flagsAsked(a.Spec), a.Name)
	}
	return nil, err
}

// requests returns those for the same image that are, or were, to be carried out.
func (t *twin) requests(ctx context.Context, api client.Reader) ([]v1alpha1.CacheAdoption, error) {
	all := &v1alpha1.CacheAdoptionList{}
	err := api.List(ctx, all)
	return slices.DeleteFunc(all.Items, func(a v1alpha1.CacheAdoption) bool {
		s := &a.Spec
		return s.DryRun || s.Rebuild != nil || s.ClusterID != t.clusterID || s.Pool != t.pool || s.Image != t.image
	}), err
}

// forget removes the request for the volume that an earlier command has left. csi-controller is done with it.
func (t *twin) forget(ctx context.Context, api client.Client) error {
	all, err := t.requests(ctx, api)
	for i := range all {
		if all[i].Status.Volume == t.volume {
			err = errors.Join(err, client.IgnoreNotFound(api.Delete(ctx, &all[i])))
		}
	}
	return err
}

func flagsAsked(s v1alpha1.CacheAdoptionSpec) string {
	claim := ""
	if s.Claim != nil {
		claim = s.Claim.Namespace + "/" + s.Claim.Name
	}
	return fmt.Sprintf("--storage-class %q, --group %q, --claim %q, --format-if-blank=%t", s.StorageClass, s.Group, claim, s.FormatIfBlank)
}

// resume looks for the volume of an adoption that was interrupted: csi-controller has made it, and its
// PersistentVolume or its claim is missing. It enters it in t and reports true. What only csi-controller
// decides stays as the earlier command asked for it; the claim and the StorageClass are those that are named now.
func (t *twin) resume(ctx context.Context, c *console.Console, api client.Reader, f options) (bool, error) {
	var v *v1alpha1.CacheVolume
	err := paging.Each(ctx, api, &v1alpha1.CacheVolumeList{}, func(has *v1alpha1.CacheVolume) error {
		if s := &has.Spec; s.ClusterID == t.clusterID && s.Pool == t.pool && s.Image == t.image {
			v = has.DeepCopy()
		}
		return nil
	})
	if err != nil || v == nil || !adoptedAndFree(v) {
		return false, err
	}
	if missing, err := t.missing(ctx, api, v.Name); err != nil || !missing {
		return false, err
	}
	switch {
	case f.group != "" && f.group != v.Spec.Group:
		return false, fmt.Errorf("image %s/%s was adopted by an earlier command, as volume %s in group %s, not %s; leave --group out, and "+
			"move the volume afterwards", t.pool, t.image, v.Name, v.Spec.Group, f.group)
	case f.formatIfBlank != v.Spec.Adoption.FormatIfBlank:
		return false, fmt.Errorf("image %s/%s was adopted by an earlier command, as volume %s, with --format-if-blank=%t; repeat it "+
			"with that, or give the image up first: kubectl escache release --volume %s",
			t.pool, t.image, v.Name, v.Spec.Adoption.FormatIfBlank, v.Name)
	}
	t.volume, t.placed, t.sizeBytes = v.Name, v.Spec.Group, v.Spec.SizeBytes
	c.Printf("# Image %s/%s was adopted by an earlier command, which has not made all objects. It is volume %s in group %s, with a\n"+
		"# cache of %s (engine %s, %s) on each of two hosts, whatever StorageClass is named now.\n",
		t.pool, t.image, v.Name, v.Spec.Group, v1alpha1.HumanBytes(v.Spec.CacheBytes), v.Spec.Engine(), v.Spec.CacheMode)
	if !f.apply {
		c.Printf("# With --apply this is made:\n")
	}
	return true, nil
}

// adoptedAndFree reports whether a volume was made by an adoption that is finished, and is nobody else's to
// give up or to make again.
func adoptedAndFree(v *v1alpha1.CacheVolume) bool {
	return v.Spec.Adoption != nil && !v.Spec.Adoption.Rebuilt && v.Status.Phase == v1alpha1.VolumeReady && !v.BeingReleased() &&
		v.DeletionTimestamp.IsZero()
}

// missing reports whether something is not there that stands for the volume: its PersistentVolume, or the
// claim that is to have that. It takes from a PersistentVolume that is there what the claim needs.
func (t *twin) missing(ctx context.Context, api client.Reader, volume string) (bool, error) {
	var has []*corev1.PersistentVolume
	err := paging.Each(ctx, api, &corev1.PersistentVolumeList{}, func(pv *corev1.PersistentVolume) error {
		if pv.Spec.CSI != nil && pv.Spec.CSI.Driver == v1alpha1.DriverName && pv.Spec.CSI.VolumeHandle == volume {
			has = append(has, pv.DeepCopy())
		}
		return nil
	})
	switch {
	case err != nil || len(has) == 0:
		return true, err
	case len(has) > 1 || t.claim == "" || t.claimExists || !freeFor(has[0], t.namespace, t.claim):
		return false, nil
	}
	pv := has[0]
	if pv.Spec.StorageClassName != t.class {
		return false, fmt.Errorf("volume %s has PersistentVolume %s already, of StorageClass %q; name that one, not %q",
			volume, pv.Name, pv.Spec.StorageClassName, t.class)
	}
	t.name, t.access = pv.Name, pv.Spec.AccessModes[0]
	if pv.Spec.VolumeMode != nil {
		t.mode = *pv.Spec.VolumeMode
	}
	return true, nil
}

// freeFor reports whether no claim has had the PersistentVolume yet, and this one may have it.
func freeFor(pv *corev1.PersistentVolume, namespace, claim string) bool {
	has := pv.Spec.ClaimRef
	return has == nil || has.UID == "" && has.Namespace == namespace && has.Name == claim
}
