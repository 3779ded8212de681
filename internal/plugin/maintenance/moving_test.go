package maintenance

import (
	"bytes"
	"context"
	"errors"
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

// moving is an evacuation that csi-controller has taken up as one that moves second copies.
func moving(taken bool) *v1alpha1.CacheFlush {
	f := drained("evacuate-n2")
	f.Spec.MoveSecondCopies = true
	if taken {
		f.Status.Conditions = append(f.Status.Conditions, metav1.Condition{Type: v1alpha1.FlushConditionMoves, Status: metav1.ConditionTrue})
	}
	return f
}

func claimed(v *v1alpha1.CacheVolume) *v1alpha1.CacheVolume {
	v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: v1alpha1.FlushOwner("evacuate-n2"), Epoch: v.Status.Epoch}}
	return v
}

func repairSays(v *v1alpha1.CacheVolume, status metav1.ConditionStatus, reason, message string) *v1alpha1.CacheVolume {
	v.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionRepairing, Status: status, Reason: reason, Message: message}}
	return v
}

func TestEvacuateThatMovesWaitsUntilNothingIsBeingMoved(t *testing.T) {
	elsewhere := func(v *v1alpha1.CacheVolume) *v1alpha1.CacheVolume {
		v.Spec.Replicas = []string{"n1", "n3"}
		return v
	}
	for name, tc := range map[string]struct {
		of   *v1alpha1.CacheVolume
		says string
		err  error
	}{
		"not begun":           {claimed(second("a", v1alpha1.AuthorityCeph)), "second copies on node n2: 1 are being moved, such as that of a", failure.ErrTimeUp},
		"not drained yet":     {second("a", v1alpha1.AuthorityCache), "1 of 1 are not in Ceph yet, such as a", failure.ErrTimeUp},
		"copied":              {repairSays(claimed(elsewhere(second("a", v1alpha1.AuthorityCeph))), metav1.ConditionTrue, "Copying", "n1 copies to n3"), "such as that of a (Copying)", failure.ErrTimeUp},
		"moved":               {elsewhere(second("a", v1alpha1.AuthorityCache)), "everything on node n2 is in Ceph, and stays so", nil},
		"no other host":       {repairSays(claimed(second("a", v1alpha1.AuthorityCeph)), metav1.ConditionFalse, v1alpha1.ReasonNoOtherHost, "no other host of the group can take it"), "volume a stays writing through: no other host of the group can take it\n", nil},
		"no other, and dirty": {repairSays(claimed(second("a", v1alpha1.AuthorityCache)), metav1.ConditionFalse, v1alpha1.ReasonNoOtherHost, "no other host"), "1 of 1 are not in Ceph yet, such as a", failure.ErrTimeUp},
	} {
		t.Run(name, func(t *testing.T) {
			api := plugintest.Cluster(t, plugintest.Group("g"), moving(true), tc.of)
			var out bytes.Buffer
			c := plugintest.Console(&out, time.Now)
			e := evacuating{node: "n2", copies: true, move: true, chosen: true, wait: true, timeout: 10 * time.Millisecond, patience: time.Second}
			err := runEvacuate(t.Context(), c, api, e)
			if !errors.Is(err, tc.err) || !strings.Contains(out.String(), tc.says) {
				t.Errorf("%v\n%s", err, out.String())
			}
			if done := strings.Contains(out.String(), "everything on node n2 is in Ceph"); done != (tc.err == nil) {
				t.Errorf("it says that all is done: %v\n%s", done, out.String())
			}
		})
	}
}

func TestEvacuateAsksForMoves(t *testing.T) {
	api := plugintest.Cluster(t, plugintest.Group("g"), second("a", v1alpha1.AuthorityCache))
	var out bytes.Buffer
	c := plugintest.Console(&out, time.Now)
	err := runEvacuate(t.Context(), c, api, evacuating{node: "n2", copies: true, move: true, chosen: true, patience: time.Millisecond})
	f := &v1alpha1.CacheFlush{}
	if err := api.Get(t.Context(), client.ObjectKey{Name: "evacuate-n2"}, f); err != nil {
		t.Fatal(err)
	}
	if !f.Spec.MoveSecondCopies || !f.Spec.SecondCopies {
		t.Errorf("%+v", f.Spec)
	}
	if !errors.Is(err, failure.ErrTimeUp) || !strings.Contains(err.Error(), "older than this plugin") {
		t.Errorf("csi-controller has not taken it up: %v", err)
	}
}

func TestEvacuateSaysThatCopiesAreMoved(t *testing.T) {
	api := plugintest.Cluster(t, plugintest.Group("g"), moving(true), second("a", v1alpha1.AuthorityCache))
	var out bytes.Buffer
	c := plugintest.Console(&out, time.Now)
	if err := runEvacuate(t.Context(), c, api, evacuating{node: "n2", copies: true, move: true, chosen: true, patience: time.Second}); err != nil {
		t.Fatal(err)
	}
	if says := "it writes through to Ceph until another host of the group has a current one"; !strings.Contains(out.String(), says) {
		t.Errorf("it says\n%s", out.String())
	}
}

func TestEvacuateDoesNotTakeADrainForAMove(t *testing.T) {
	for name, tc := range map[string]struct {
		is   *v1alpha1.CacheFlush
		asks evacuating
		fine bool
	}{
		"a drain is there, a move is asked for":  {drained("evacuate-n2"), evacuating{copies: true, move: true, chosen: true}, false},
		"a move is there, a drain is asked for":  {moving(true), evacuating{copies: true, chosen: true}, false},
		"a move is there, nothing is asked for":  {moving(true), evacuating{copies: true}, true},
		"a move is there, that nobody has taken": {moving(false), evacuating{copies: true}, false},
	} {
		api := plugintest.Cluster(t, plugintest.Group("g"), tc.is)
		var out bytes.Buffer
		c := plugintest.Console(&out, time.Now)
		tc.asks.node, tc.asks.patience = "n2", time.Millisecond
		err := runEvacuate(t.Context(), c, api, tc.asks)
		if (err == nil) != tc.fine || err != nil && !strings.Contains(err.Error(), "kubectl escache uncordon n2") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// An older CRD drops the field without a word.
func TestEvacuateNeedsTheFieldForMoves(t *testing.T) {
	api := plugintest.Cluster(t, plugintest.Group("g"))
	old := interceptor.NewClient(api, interceptor.Funcs{
		Create: func(ctx context.Context, api client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if f, is := o.(*v1alpha1.CacheFlush); is {
				f.Spec.MoveSecondCopies = false
			}
			return api.Create(ctx, o, options...)
		},
	})
	var out bytes.Buffer
	c := plugintest.Console(&out, time.Now)
	err := runEvacuate(t.Context(), c, old, evacuating{node: "n2", copies: true, move: true, chosen: true, patience: time.Second})
	if err == nil || !strings.Contains(err.Error(), "know no move of second copies") || !strings.Contains(err.Error(), "--protect=drain") {
		t.Errorf("%v", err)
	}
}
