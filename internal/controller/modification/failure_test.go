package modification

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/escachetest"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestAChangeThatTheHostRefusesIsToldAndNotTriedAgain(t *testing.T) {
	w := newWorld(t)
	w.modify(v1alpha1.CacheModeWriteback, tuned)
	w.n1().Load(w.ref(), escachetest.Traffic{Refuse: escache.CodeInvalidRequest})
	refused := func() {
		t.Helper()
		if w.reconcile() {
			t.Error("tried again")
		}
		c := meta.FindStatusCondition(w.volume().Status.Conditions, v1alpha1.ConditionModified)
		if c == nil || c.Status != metav1.ConditionFalse || c.Reason != "Refused" || !strings.Contains(c.Message, "the test refuses this") {
			t.Fatalf("on record is %+v", c)
		}
	}
	refused()
	w.told("the test refuses this")
	calls, version := w.n1().Calls(), w.volume().ResourceVersion
	refused()
	if w.n1().Calls() != calls || w.volume().ResourceVersion != version {
		t.Error("the host was asked again, or the record written")
	}
	w.told("")

	w.attach(4)
	w.stage(4)
	refused() // another attachment may be to a host that takes it
	w.told("the test refuses this")

	w.n1().Load(w.ref(), escachetest.Traffic{})
	w.modify(v1alpha1.CacheModeWriteback, v1alpha1.CacheOptions{})
	if w.reconcile() {
		t.Error("the next change is not applied")
	}
	w.has(escache.ModeWriteback, escache.CacheOptions{})
}

func TestAnOlderEscachedIsAskedAgainWhenItMayHaveBeenUpgraded(t *testing.T) {
	w := newWorld(t)
	w.modify(v1alpha1.CacheModeWriteback, tuned)
	w.n1().Load(w.ref(), escachetest.Traffic{Refuse: escache.CodeUnknownPath})
	if !w.reconcile() {
		t.Error("not tried again")
	}
	c := meta.FindStatusCondition(w.volume().Status.Conditions, v1alpha1.ConditionModified)
	if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "upgrade escached on node n1") {
		t.Errorf("on record is %+v", c)
	}
	w.n1().Load(w.ref(), escachetest.Traffic{})
	w.reconcile()
	w.has(escache.ModeWriteback, onHost)
}

func TestAFailureIsForgottenOnceNoNodeHasTheVolume(t *testing.T) {
	for name, tc := range map[string]struct {
		code  escache.Code
		then  func(w *world)
		stays bool
	}{
		"it waited for the host": {escache.CodeStuck, func(*world) {}, false},
		"the host refused it":    {escache.CodeInvalidRequest, func(*world) {}, true},
		"the host refused it, and then came another change": {escache.CodeInvalidRequest, func(w *world) {
			w.modify(v1alpha1.CacheModeWriteback, v1alpha1.CacheOptions{})
		}, false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.modify(v1alpha1.CacheModeWriteback, tuned)
			w.n1().Load(w.ref(), escachetest.Traffic{Refuse: tc.code})
			w.reconcile()
			w.status(func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "" })
			tc.then(w)
			for range 2 {
				if w.reconcile() {
					t.Error("tried again")
				}
			}
			if c := meta.FindStatusCondition(w.volume().Status.Conditions, v1alpha1.ConditionModified); (c != nil) != tc.stays {
				t.Errorf("on record is %+v", c)
			}
		})
	}
}

func TestAChangeThatDoesNotReachItsNodeIsOnRecordOnceAndTriedAgain(t *testing.T) {
	w := newWorld(t)
	w.modify(v1alpha1.CacheModeWriteback, tuned)
	w.n1().Stop()
	var last string
	for range 2 {
		if !w.reconcile() {
			t.Fatal("not tried again")
		}
		v := w.volume()
		c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionModified)
		if c == nil || c.Status != metav1.ConditionFalse || !strings.Contains(c.Message, "n1") || !v.ModificationPending() {
			t.Fatalf("%+v, %+v", c, v.Status.Applied)
		}
		if last != "" && v.ResourceVersion != last {
			t.Error("each try is written")
		}
		last = v.ResourceVersion
	}
	w.n1().Restart(t)
	if w.reconcile() {
		t.Error("not applied")
	}
	w.has(escache.ModeWriteback, onHost)
}

func TestAChangeThatCouldNotBeRecordedIsRepeated(t *testing.T) {
	w := newWorld(t)
	w.modify(v1alpha1.CacheModeWritethrough, tuned)
	w.lost = errors.New("the API server is away")
	if !w.reconcile() || !w.volume().ModificationPending() {
		t.Error("not tried again")
	}
	w.lost = nil
	if w.reconcile() {
		t.Error("not applied")
	}
	w.has(escache.ModeWritethrough, onHost)
}
