package claims

import (
	"context"
	"errors"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/records/binding"
)

// ErrNoVolume says that there is no CacheVolume of a name.
var ErrNoVolume = errors.New("no CacheVolume")

// VolumeOf returns the CacheVolume of a claim.
func VolumeOf(ctx context.Context, api client.Reader, namespace, name string) (*v1alpha1.CacheVolume, error) {
	volume, err := NameOf(ctx, api, namespace, name)
	if err != nil {
		return nil, err
	}
	return ReadVolume(ctx, api, volume)
}

// NameOf returns the name of a claim's volume. It may be that of a CacheVolume or of a
// ReadOnlyVolume.
func NameOf(ctx context.Context, api client.Reader, namespace, name string) (string, error) {
	pvc := &corev1.PersistentVolumeClaim{}
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pvc); err != nil {
		if apierrors.IsNotFound(err) {
			return "", fmt.Errorf("there is no PersistentVolumeClaim %s in namespace %s; choose another namespace with -n",
				name, namespace)
		}
		return "", err
	}
	if pvc.Spec.VolumeName == "" {
		return "", fmt.Errorf("PersistentVolumeClaim %s/%s is not bound yet; kubectl describe shows what it waits for", namespace, name)
	}
	pv := &corev1.PersistentVolume{}
	if err := api.Get(ctx, client.ObjectKey{Name: pvc.Spec.VolumeName}, pv); err != nil {
		return "", err
	}
	if !binding.Has(pvc, pv) {
		return "", notIts(pvc, pv)
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
		return "", fmt.Errorf("PersistentVolumeClaim %s/%s is not a volume of %s", namespace, name, v1alpha1.DriverName)
	}
	return pv.Spec.CSI.VolumeHandle, nil
}

// notIts says whose a PersistentVolume is that a claim names and does not have.
func notIts(pvc *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) error {
	of := pv.Spec.ClaimRef
	if of == nil {
		return fmt.Errorf("PersistentVolumeClaim %s/%s is not bound yet, also not to PersistentVolume %s, which it names; "+
			"kubectl describe shows what it waits for", pvc.Namespace, pvc.Name, pv.Name)
	}
	whose := "claim " + of.Namespace + "/" + of.Name + "; name that claim if you mean its volume"
	if of.Namespace == pvc.Namespace && of.Name == pvc.Name {
		whose = "an earlier claim of that name; use --volume if you mean its volume"
	}
	return fmt.Errorf("PersistentVolumeClaim %s/%s names PersistentVolume %s, and does not have it: it belongs to %s",
		pvc.Namespace, pvc.Name, pv.Name, whose)
}

// ReadVolume returns the CacheVolume of that name. If there is none, the error is ErrNoVolume.
func ReadVolume(ctx context.Context, api client.Reader, name string) (*v1alpha1.CacheVolume, error) {
	v := &v1alpha1.CacheVolume{}
	err := api.Get(ctx, client.ObjectKey{Name: name}, v)
	if apierrors.IsNotFound(err) && !failure.IsNoResource(err) {
		return nil, fmt.Errorf("there is %w %s; kubectl escache status lists them, and read-only volumes, which have no cache",
			ErrNoVolume, name)
	}
	return v, err
}
