package claims

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
)

// VolumeOf returns the CacheVolume of a claim.
func VolumeOf(ctx context.Context, api client.Reader, namespace, name string) (*v1alpha1.CacheVolume, error) {
	pvc := &corev1.PersistentVolumeClaim{}
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pvc); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no PersistentVolumeClaim %s in namespace %s; choose another namespace with -n",
				name, namespace)
		}
		return nil, err
	}
	if pvc.Spec.VolumeName == "" {
		return nil, fmt.Errorf("PersistentVolumeClaim %s/%s is not bound yet; kubectl describe shows what it waits for", namespace, name)
	}
	pv := &corev1.PersistentVolume{}
	if err := api.Get(ctx, client.ObjectKey{Name: pvc.Spec.VolumeName}, pv); err != nil {
		return nil, err
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
		return nil, fmt.Errorf("PersistentVolumeClaim %s/%s is not a volume of %s", namespace, name, v1alpha1.DriverName)
	}
	return ReadVolume(ctx, api, pv.Spec.CSI.VolumeHandle)
}

// ReadVolume returns the CacheVolume of that name.
func ReadVolume(ctx context.Context, api client.Reader, name string) (*v1alpha1.CacheVolume, error) {
	v := &v1alpha1.CacheVolume{}
	err := api.Get(ctx, client.ObjectKey{Name: name}, v)
	if apierrors.IsNotFound(err) && !failure.IsNoResource(err) {
		return nil, fmt.Errorf("there is no CacheVolume %s; kubectl escache status lists them, and kubectl get readonlyvolumes "+
			"those with ReadOnlyMany", name)
	}
	return v, err
}
