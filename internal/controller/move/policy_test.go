package move_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/test/csitest"
)

// TestRetainThatSomebodyAsksForStays: while a move waits, somebody has the PersistentVolume kept, as kubectl
// escache release does. The move sets Retain, too, for a while, and must not take the one for the other.
func TestRetainThatSomebodyAsksForStays(t *testing.T) {
	const begun = 3 // writes: the finalizer of the group, the record of the move, and that the replicas are removed
	for writes := begun; ; writes++ {
		w := twoGroups(t)
		w.AskMove(moved, "g2")
		died := w.dieAfter(writes)
		w.turn()
		pv := w.pv()
		own := pv == nil || pv.UID != "first" || pv.Spec.PersistentVolumeReclaimPolicy == corev1.PersistentVolumeReclaimRetain
		if own || !*died {
			if writes == begun {
				t.Fatalf("the move has not waited: %+v", pv)
			}
			return
		}
		pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimRetain
		csitest.Must(t, w.API.Update(t.Context(), pv))
		w.Cached = w.API
		w.Restart()
		w.PollBoth()
		for range 8 {
			if !w.turn() {
				break
			}
		}
		if policy := w.pv().Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimRetain {
			t.Errorf("after %d writes: the move has set the policy to %s", writes, policy)
		}
		if v := w.Volume(moved); v.Spec.Group != "g2" || v.Status.Move != nil {
			t.Errorf("after %d writes: not moved: %+v", writes, v.Status.Move)
		}
	}
}

// TestAVolumeIsKeptIfItsClaimGoesWhileItIsRetained: who deletes the claim may have seen Retain.
func TestAVolumeIsKeptIfItsClaimGoesWhileItIsRetained(t *testing.T) {
	for name, lose := range map[string]func(*testing.T, *world, *corev1.PersistentVolumeClaim){
		"gone": func(t *testing.T, w *world, claim *corev1.PersistentVolumeClaim) {
			t.Helper()
			csitest.Must(t, w.API.Delete(t.Context(), claim))
		},
		"another of its name": func(t *testing.T, w *world, claim *corev1.PersistentVolumeClaim) {
			t.Helper()
			csitest.Must(t, w.API.Delete(t.Context(), claim))
			other := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data", UID: "another"}}
			csitest.Must(t, w.API.Create(t.Context(), other))
		},
		"being deleted": func(t *testing.T, w *world, claim *corev1.PersistentVolumeClaim) {
			t.Helper()
			claim.Finalizers = []string{"kubernetes.io/pvc-protection"}
			csitest.Must(t, w.API.Update(t.Context(), claim))
			csitest.Must(t, w.API.Delete(t.Context(), claim))
		},
		"to be released": func(t *testing.T, w *world, _ *corev1.PersistentVolumeClaim) {
			t.Helper()
			w.claimIs(corev1.ClaimBound)
			w.AskRelease(moved, true)
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := twoGroups(t)
			claim := w.claimIs(corev1.ClaimLost)
			w.AskMove(moved, "g2")
			for range 5 {
				if !w.turn() {
					t.Fatal("it has ended before the claim was bound")
				}
			}
			if w.pv().UID == "first" || w.pv().Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
				t.Fatalf("not where it should be: %+v", w.pv())
			}
			lose(t, w, claim)
			w.turn()
			if policy := w.pv().Spec.PersistentVolumeReclaimPolicy; policy != corev1.PersistentVolumeReclaimRetain {
				t.Errorf("the policy is %s, and Kubernetes deletes the volume", policy)
			}
			if v := w.Volume(moved); v.Spec.Group != "g2" || v.Status.Move != nil {
				t.Errorf("not moved: %+v", v.Status.Move)
			}
			if event := <-w.events.Events; !w.Volume(moved).Spec.Release && !strings.Contains(event, "VolumeRetained its claim shop/data was deleted") {
				t.Errorf("event %q", event)
			}
		})
	}
}
