package claims

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// WithoutPods refuses a claim that pods use. Pods that have ended do not count.
func WithoutPods(ctx context.Context, api client.Reader, claim *corev1.ObjectReference) error {
	if claim == nil {
		return nil
	}
	pods := &corev1.PodList{}
	if err := api.List(ctx, pods, client.InNamespace(claim.Namespace)); err != nil {
		return err
	}
	var names []string
	for _, pod := range pods.Items {
		if pod.Status.Phase == corev1.PodSucceeded || pod.Status.Phase == corev1.PodFailed {
			continue
		}
		for _, volume := range pod.Spec.Volumes {
			if volume.PersistentVolumeClaim != nil && volume.PersistentVolumeClaim.ClaimName == claim.Name {
				names = append(names, pod.Namespace+"/"+pod.Name)
			}
		}
	}
	if len(names) > 0 {
		return fmt.Errorf("pods use claim %s/%s: %s; stop them first", claim.Namespace, claim.Name, strings.Join(names, ", "))
	}
	return nil
}

// Retain has Kubernetes keep what a PersistentVolume stands for.
func Retain(ctx context.Context, api client.Client, pv *corev1.PersistentVolume) error {
	if pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain {
		return nil
	}
	before := pv.DeepCopy()
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
	patch := client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})
	if err := api.Patch(ctx, pv, patch); err != nil {
		return fmt.Errorf("set the reclaim policy of PersistentVolume %s to Retain: %w", pv.Name, err)
	}
	return nil
}
