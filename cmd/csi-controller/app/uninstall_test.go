package app

import (
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"

	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestUninstallIsRefusedWhileThereAreVolumes(t *testing.T) {
	scheme, err := newScheme()
	if err != nil {
		t.Fatal(err)
	}
	kube := fake.NewClientBuilder().WithScheme(scheme).Build()
	if err := checkUninstall(t.Context(), kube); err != nil {
		t.Errorf("nothing is there: %v", err)
	}
	for i := range 7 {
		v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pvc-%d", i)}}
		if err := kube.Create(t.Context(), v); err != nil {
			t.Fatal(err)
		}
	}
	err = checkUninstall(t.Context(), kube)
	if err == nil || !strings.Contains(err.Error(), "7 volumes") || !strings.Contains(err.Error(), "pvc-0") ||
		!strings.Contains(err.Error(), "kubectl escache release") || strings.Contains(err.Error(), "pvc-6") {
		t.Errorf("refusal: %v", err)
	}
}
