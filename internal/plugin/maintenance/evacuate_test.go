package maintenance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// second is a volume on n1 with its second copy on n2.
func second(name string, truth v1alpha1.Authority) *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	v.Spec = v1alpha1.CacheVolumeSpec{Group: "g", Replicas: []string{"n1", "n2"}}
	v.Status = v1alpha1.CacheVolumeStatus{AttachedNode: "n1", Epoch: 3, Authority: truth, DirtyBytes: 4096}
	return v
}

func drained(name string) *v1alpha1.CacheFlush {
	f := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.CacheFlushSpec{Node: "n2", Mode: "Drain", SecondCopies: true}}
	f.Status.Phase = v1alpha1.FlushDrained
	f.Status.Conditions = []metav1.Condition{{Type: v1alpha1.FlushConditionComplete, Status: metav1.ConditionTrue, Message: "drained"}}
	return f
}

func TestEvacuateSaysWhatBecomesOfSecondCopies(t *testing.T) {
	detached, elsewhere, here := second("detached", ""), second("elsewhere", ""), second("here", "")
	detached.Status.AttachedNode, elsewhere.Spec.Replicas, here.Status.AttachedNode = "", []string{"n1", "n3"}, "n2"
	others := []client.Object{detached, elsewhere, here}
	for _, tc := range []struct {
		name   string
		copies bool
		of     []client.Object
		says   string
		never  string
	}{
		{"none", false, []client.Object{second("a", ""), second("b", "")}, "2 volumes have one copy until n2 is back\n", "write through"},
		{"none, one", false, []client.Object{second("a", "")}, "1 volume has one copy until n2 is back\n", "write through"},
		{"none, nothing there", false, nil, "is cordoned", "one copy"},
		{"drain", true, []client.Object{second("a", ""), second("b", "")}, "2 volumes attached elsewhere have their second copy there: they write through to Ceph until node n2 is uncordoned and that copy is current", "one copy"},
		{"drain, nothing there", true, nil, "is cordoned", "write through"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			api := plugintest.Cluster(t, append(append([]client.Object{plugintest.Group("g")}, others...), tc.of...)...)
			var out bytes.Buffer
			c := plugintest.Console(&out, time.Now)
			if err := runEvacuate(t.Context(), c, api, evacuating{node: "n2", copies: tc.copies}); err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), tc.says) || strings.Contains(out.String(), tc.never) {
				t.Errorf("it says\n%s", out.String())
			}
			f := &v1alpha1.CacheFlush{}
			if err := api.Get(t.Context(), client.ObjectKey{Name: "evacuate-n2"}, f); err != nil {
				t.Fatal(err)
			}
			if f.Spec.SecondCopies != tc.copies || f.Spec.Node != "n2" || f.Spec.Mode != v1alpha1.FlushModeDrain {
				t.Errorf("CacheFlush %+v", f.Spec)
			}
		})
	}
}

func TestEvacuateMayBeRepeated(t *testing.T) {
	for name, tc := range map[string]struct {
		asks evacuating
		fine bool
	}{
		"the same":                   {evacuating{copies: true, chosen: true}, true},
		"another, not said":          {evacuating{copies: false}, true},
		"another, said":              {evacuating{copies: false, chosen: true}, false},
		"the same, as it is default": {evacuating{copies: true}, true},
	} {
		t.Run(name, func(t *testing.T) {
			api := plugintest.Cluster(t, plugintest.Group("g"), drained("evacuate-n2"), second("a", v1alpha1.AuthorityCeph))
			var out bytes.Buffer
			c := plugintest.Console(&out, time.Now)
			tc.asks.node = "n2"
			err := runEvacuate(t.Context(), c, api, tc.asks)
			if (err == nil) != tc.fine {
				t.Fatalf("%v\n%s", err, out.String())
			}
			if err != nil && !strings.Contains(err.Error(), "kubectl escache uncordon n2") {
				t.Errorf("it does not say what to do: %v", err)
			}
			if err == nil && !strings.Contains(out.String(), "1 volume attached elsewhere has its second copy there: it writes through") {
				t.Errorf("it says what is not so:\n%s", out.String())
			}
		})
	}
}

// After uncordon the CacheFlush stays until every second copy is current. It drains nothing any more.
func TestEvacuateDoesNotTakeAnEvacuationThatEndsForItsOwn(t *testing.T) {
	ending := drained("evacuate-n2")
	ending.Finalizers, ending.DeletionTimestamp = []string{v1alpha1.FlushFinalizer}, &metav1.Time{Time: time.Now()}
	for _, wait := range []bool{false, true} {
		api := plugintest.Cluster(t, plugintest.Group("g"), ending.DeepCopy(), second("a", v1alpha1.AuthorityCeph))
		var out bytes.Buffer
		c := plugintest.Console(&out, time.Now)
		err := runEvacuate(t.Context(), c, api, evacuating{node: "n2", copies: true, wait: wait, timeout: 10 * time.Millisecond})
		if err == nil || !strings.Contains(err.Error(), "evacuate-n2") {
			t.Errorf("waiting %t: %v\n%s", wait, err, out.String())
		}
	}
}

// broken is the state of an evacuation that began while Kubernetes had no such node. It drains nothing, and does not
// begin again when the node is back.
func broken() v1alpha1.CacheFlushStatus {
	return v1alpha1.CacheFlushStatus{
		Phase: v1alpha1.FlushFailed, StartTime: &metav1.Time{Time: time.Now()}, CompletionTime: &metav1.Time{Time: time.Now()},
		Conditions: []metav1.Condition{{
			Type: v1alpha1.FlushConditionComplete, Status: metav1.ConditionFalse, Reason: "NotFound", Message: "Kubernetes has no node n2",
		}},
	}
}

func TestEvacuateReplacesAnEvacuationThatHasFailed(t *testing.T) {
	for name, tc := range map[string]struct {
		held bool // csi-controller does not let it go
		asks evacuating
		fine bool
	}{
		"it goes":                      {false, evacuating{copies: true}, true},
		"it goes, and had other flags": {false, evacuating{copies: false, chosen: true}, true},
		"it stays":                     {true, evacuating{copies: true}, false},
		"it stays, and is waited for":  {true, evacuating{copies: true, wait: true, timeout: 10 * time.Millisecond}, false},
	} {
		t.Run(name, func(t *testing.T) {
			failed := drained("evacuate-n2")
			failed.Status = broken()
			if tc.held {
				failed.Finalizers = []string{v1alpha1.FlushFinalizer}
			}
			api := plugintest.Cluster(t, plugintest.Group("g"), failed)
			var out bytes.Buffer
			c := plugintest.Console(&out, time.Now)
			tc.asks.node, tc.asks.patience = "n2", 10*time.Millisecond
			err := runEvacuate(t.Context(), c, api, tc.asks)
			if drains := strings.Contains(out.String(), "drains its volumes"); (err == nil) != tc.fine || drains != tc.fine {
				t.Errorf("%v\n%s", err, out.String())
			}
			if err != nil && !strings.Contains(err.Error(), "repeat the command once that is gone") {
				t.Errorf("it does not say what to do: %v", err)
			}
			f := &v1alpha1.CacheFlush{}
			if err := api.Get(t.Context(), client.ObjectKey{Name: "evacuate-n2"}, f); err != nil {
				t.Fatal(err)
			}
			if tc.fine && (f.Status.Phase == v1alpha1.FlushFailed || f.Spec.SecondCopies != tc.asks.copies) {
				t.Errorf("the old one is still there: %+v", f)
			}
		})
	}
}

func TestEvacuateSaysWhyItFailsAtOnce(t *testing.T) {
	for name, asks := range map[string]evacuating{
		"drain":      {copies: true},
		"move":       {copies: true, move: true, chosen: true},
		"waited for": {copies: true, wait: true, timeout: time.Minute},
	} {
		t.Run(name, func(t *testing.T) {
			api := interceptor.NewClient(plugintest.Cluster(t, plugintest.Group("g")), interceptor.Funcs{
				Create: func(ctx context.Context, api client.WithWatch, o client.Object, options ...client.CreateOption) error {
					if f, is := o.(*v1alpha1.CacheFlush); is {
						f.Status = broken()
					}
					return api.Create(ctx, o, options...)
				},
			})
			var out bytes.Buffer
			c := plugintest.Console(&out, time.Now)
			asks.node, asks.patience = "n2", 10*time.Millisecond
			err := runEvacuate(t.Context(), c, api, asks)
			if err == nil || !strings.Contains(err.Error(), "Kubernetes has no node n2") || strings.Contains(out.String(), "drains its volumes") {
				t.Errorf("%v\n%s", err, out.String())
			}
		})
	}
}

// The CacheFlush may be done with all volumes that it knew when another one came.
func TestEvacuateWaitsForEverySecondCopy(t *testing.T) {
	for name, tc := range map[string]struct {
		truth v1alpha1.Authority
		says  string
		err   error
	}{
		"drained": {v1alpha1.AuthorityCeph, "volumes with their second copy on node n2: all 1 write through to Ceph, which has everything", nil},
		"dirty":   {v1alpha1.AuthorityCache, "volumes with their second copy on node n2: 1 of 1 are not in Ceph yet, such as a", failure.ErrTimeUp},
	} {
		t.Run(name, func(t *testing.T) {
			api := plugintest.Cluster(t, plugintest.Group("g"), drained("evacuate-n2"), second("a", tc.truth))
			var out bytes.Buffer
			c := plugintest.Console(&out, time.Now)
			err := runEvacuate(t.Context(), c, api, evacuating{node: "n2", copies: true, wait: true, timeout: 10 * time.Millisecond})
			if !errors.Is(err, tc.err) || !strings.Contains(out.String(), tc.says) {
				t.Errorf("%v\n%s", err, out.String())
			}
			if done := strings.Contains(out.String(), "everything on node n2 is in Ceph"); done != (tc.err == nil) {
				t.Errorf("it says that all is done: %v\n%s", done, out.String())
			}
		})
	}
}

// Nobody asks an older csi-controller to write back what no node has, and the host is switched off afterwards.
func TestEvacuatePromisesNothingWhileAVolumeThatNoNodeHasIsDirtyThere(t *testing.T) {
	left := func(change func(v *v1alpha1.CacheVolume)) *v1alpha1.CacheVolume {
		v := second("left", v1alpha1.AuthorityCache)
		v.Status.AttachedNode = ""
		change(v)
		return v
	}
	for name, tc := range map[string]struct {
		of   *v1alpha1.CacheVolume
		says string
		err  error
	}{
		"dirty": {left(func(*v1alpha1.CacheVolume) {}), "1 volume that no node has is not in Ceph yet: left", failure.ErrTimeUp},
		"being written back": {left(func(v *v1alpha1.CacheVolume) { v.Status.AttachedNode, v.Status.FlushEpoch = "n1", 3 }),
			"1 volume that no node has is not in Ceph yet: left", failure.ErrTimeUp},
		"clean":                       {left(func(v *v1alpha1.CacheVolume) { v.Status.Authority = v1alpha1.AuthorityCeph }), "", nil},
		"dirty, and not needed there": {left(func(v *v1alpha1.CacheVolume) { v.Status.Outdated = []string{"n2"} }), "", nil},
		"dirty elsewhere":             {left(func(v *v1alpha1.CacheVolume) { v.Spec.Replicas = []string{"n1", "n3"} }), "", nil},
	} {
		for _, copies := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, second copies %t", name, copies), func(t *testing.T) {
				flush := drained("evacuate-n2")
				flush.Spec.SecondCopies = copies
				api := plugintest.Cluster(t, plugintest.Group("g"), flush, tc.of.DeepCopy())
				var out bytes.Buffer
				c := plugintest.Console(&out, time.Now)
				err := runEvacuate(t.Context(), c, api, evacuating{node: "n2", copies: copies, wait: true, timeout: 10 * time.Millisecond})
				if !errors.Is(err, tc.err) || !strings.Contains(out.String(), tc.says) {
					t.Errorf("%v\n%s", err, out.String())
				}
				if done := strings.Contains(out.String(), "is in Ceph, and stays so"); done != (tc.err == nil) {
					t.Errorf("it says that all is done: %v\n%s", done, out.String())
				}
			})
		}
	}
}

func TestEvacuateDoesNotPromiseForSecondCopiesThatItLeavesAlone(t *testing.T) {
	for truth, says := range map[v1alpha1.Authority]string{
		v1alpha1.AuthorityCache: "everything that is attached to node n2, or to no node, is in Ceph, and stays so",
		v1alpha1.AuthorityCeph:  "everything on node n2 is in Ceph, and stays so",
	} {
		flush := drained("evacuate-n2")
		flush.Spec.SecondCopies = false
		api := plugintest.Cluster(t, plugintest.Group("g"), flush, second("a", truth))
		var out bytes.Buffer
		c := plugintest.Console(&out, time.Now)
		if err := runEvacuate(t.Context(), c, api, evacuating{node: "n2", wait: true, timeout: time.Second}); err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(out.String(), says) {
			t.Errorf("%s:\n%s", truth, out.String())
		}
	}
}
