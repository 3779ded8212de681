package csi_test

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

// boundTo makes the PersistentVolume of a volume, bound to a claim.
func (w *world) boundTo(volume, namespace, claim string) {
	w.T.Helper()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: volume}}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: volume}
	if claim != "" {
		pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: namespace, Name: claim}
	}
	csitest.Must(w.T, w.API.Create(context.Background(), pv))
}

// TestTheClaimOnRecordIsThatOfToday: with the reclaim policy Retain, a volume can be given to another claim.
func TestTheClaimOnRecordIsThatOfToday(t *testing.T) {
	for name, tc := range map[string]struct {
		prepare func(w *world)
		want    string
	}{
		"bound to another claim":              {func(w *world) { w.boundTo("a", "shop", "new") }, "shop/new"},
		"bound to nothing":                    {func(w *world) { w.boundTo("a", "", "") }, "shop/old"},
		"without a PersistentVolume":          {func(*world) {}, "shop/old"},
		"a PersistentVolume of another one's": {func(w *world) { w.boundTo("b", "shop", "new") }, "shop/old"},
		"the API server takes no note of it": {func(w *world) {
			w.boundTo("a", "shop", "new")
			w.Cached = interceptor.NewClient(w.API.(client.WithWatch), interceptor.Funcs{
				Patch: func(context.Context, client.WithWatch, client.Object, client.Patch, ...client.PatchOption) error {
					return csitest.ErrSlow
				},
			})
			w.Restart()
		}, "shop/old"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.Create("a")
			v.Annotations = map[string]string{v1alpha1.AnnotationClaim: "shop/old"}
			csitest.Must(t, w.API.Update(t.Context(), v))
			tc.prepare(w)
			node := v.Spec.Replicas[0]
			_, err := w.Publish("a", node)
			csitest.Must(t, err)
			now := w.Volume("a")
			if got := now.Annotations[v1alpha1.AnnotationClaim]; got != tc.want {
				t.Errorf("the claim on record is %s, want %s", got, tc.want)
			}
			if now.Status.AttachedNode != node || now.Status.Epoch != 1 {
				t.Errorf("status %+v", now.Status)
			}
		})
	}
}
