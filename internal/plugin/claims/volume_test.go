package claims_test

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// TestAClaimHasTheVolumeThatIsBoundToIt: whoever makes a claim can write any PersistentVolume into it. What counts is
// the claim that the PersistentVolume names.
func TestAClaimHasTheVolumeThatIsBoundToIt(t *testing.T) {
	for name, tc := range map[string]struct {
		ref  *corev1.ObjectReference
		says string // "": the claim has the volume
	}{
		"it has it":                  {&corev1.ObjectReference{Namespace: "user", Name: "static", UID: "u1"}, ""},
		"it is to have it":           {&corev1.ObjectReference{Namespace: "user", Name: "static"}, ""},
		"of another namespace":       {&corev1.ObjectReference{Namespace: "shop", Name: "static", UID: "u1"}, "belongs to claim shop/static"},
		"of another name":            {&corev1.ObjectReference{Namespace: "user", Name: "a"}, "belongs to claim user/a"},
		"an earlier one of its name": {&corev1.ObjectReference{Namespace: "user", Name: "static", UID: "u0"}, "an earlier claim of that name"},
		"nobody's":                   {nil, "not bound yet"},
	} {
		t.Run(name, func(t *testing.T) {
			pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: "static", UID: "u1"}}
			pvc.Spec.VolumeName = "again"
			api := plugintest.Cluster(t, pvc)
			pv := &corev1.PersistentVolume{}
			plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: "again"}, pv))
			pv.Spec.ClaimRef = tc.ref
			plugintest.Must(t, api.Update(t.Context(), pv))
			volume, err := claims.NameOf(t.Context(), api, "user", "static")
			if tc.says == "" && (err != nil || volume != "pvc-1") {
				t.Errorf("got %q, %v", volume, err)
			}
			if tc.says != "" && (err == nil || !strings.Contains(err.Error(), tc.says)) {
				t.Errorf("got %q, %v; want %q", volume, err, tc.says)
			}
		})
	}
}
