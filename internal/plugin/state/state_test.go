package state_test

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
	"github.com/escache/escache-csi/internal/plugin/state"
	"github.com/escache/escache-csi/internal/records/trouble"
)

func TestFailedFlushSaysWhy(t *testing.T) {
	f := v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "node-x"}}
	f.Status.Phase = v1alpha1.FlushFailed
	f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.FlushConditionComplete, Status: metav1.ConditionFalse, Message: "there is no node zz"}}
	all := (&state.State{Flushes: []v1alpha1.CacheFlush{f}}).Troubles(plugintest.Noon)
	if len(all) != 1 || all[0].What != "there is no node zz" {
		t.Errorf("%+v", all)
	}
}

func TestAReleaseThatWaitsIsTold(t *testing.T) {
	s := plugintest.Sample()
	v := &s.Volumes[0]
	v.Spec.Release = true
	v.Status.Conditions = append(v.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReleased, Reason: v1alpha1.ReasonReleaseRefused, Message: "it has snapshots"})
	told := false
	for _, p := range s.Troubles(plugintest.Noon) {
		told = told || strings.Contains(p.What, "it has snapshots") && strings.Contains(p.Todo, "--cancel --volume pvc-busy")
	}
	if !told || !strings.Contains(trouble.NextStep(v), "being released") {
		t.Errorf("problems %+v, next step %s", s.Troubles(plugintest.Noon), trouble.NextStep(v))
	}
}
