package arbiter

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/node/kube"
)

// While a host was cut off, another one may have taken the volume over, and etcd may have been restored to before
// that. The record cannot tell, and the image's metadata can.
func TestAHostThatWasCutOffForLongHasTheRecordComparedFirst(t *testing.T) {
	newer := func(c *v1alpha1.RecordComparison) { c.Answered = c.Question }
	older := func(c *v1alpha1.RecordComparison) { c.Answered, c.Behind = c.Question, "epoch 8 of n2" }
	for name, tc := range map[string]struct {
		cut     time.Duration
		answer  func(c *v1alpha1.RecordComparison)
		asked   int
		granted bool
		want    func(error) bool
	}{
		"a short cut":                           {29 * time.Second, nil, 0, true, nil},
		"a long cut, and the record is current": {31 * time.Second, newer, 1, true, nil},
		"a long cut, and the record is older": {31 * time.Second, older, 1, false, func(err error) bool {
			refused, ok := errors.AsType[*authority.RefusedError](err)
			return ok && refused.Code == escache.CodeStaleEpoch
		}},
		"a long cut, and nobody compares": {31 * time.Second, nil, 1, false, func(err error) bool {
			return errors.Is(err, context.DeadlineExceeded)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // time goes by only while everything waits
				r, now := newRecord(), time.Now()
				r.answer = tc.answer
				a := sound("n1", r)
				a.now = func() time.Time { return now }
				r.readErr = kube.ErrUnavailable
				for range 2 {
					if err := a.Decide(t.Context(), question()); !errors.Is(err, kube.ErrUnavailable) {
						t.Fatal(err)
					}
					now = now.Add(tc.cut / 2)
				}
				r.readErr = nil
				ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
				defer cancel()
				err := a.Decide(ctx, question())
				if granted := err == nil; granted != tc.granted || r.asked != tc.asked || tc.want != nil && !tc.want(err) {
					t.Errorf("granted: %v after %d questions: %v", granted, r.asked, err)
				}
				if on := slices.Contains(r.v.Status.Outdated, "n2"); on != tc.granted {
					t.Errorf("outdated: %q", r.v.Status.Outdated)
				}
				if !tc.granted {
					if again := a.Decide(ctx, question()); again == nil {
						t.Error("granted when it asked again")
					}
					return
				}
				if err := a.Decide(t.Context(), question()); err != nil || r.asked != tc.asked {
					t.Errorf("asked %d times, although the API server answers all the time: %v", r.asked, err)
				}
			})
		})
	}
}

// The host was cut off, another one had the volume, and etcd was restored to before that. This csi-node was started in
// between, and does not know for how long its host has asked.
func TestACSINodeThatWasStartedInACutHasTheRecordComparedFirst(t *testing.T) {
	for name, away := range map[string]bool{"the API server answers at once": false, "it answers a moment later": true} {
		t.Run(name, func(t *testing.T) {
			r := newRecord()
			r.answer = func(c *v1alpha1.RecordComparison) { c.Answered, c.Behind = c.Question, "epoch 8 of n2" }
			a := fresh("n1", r)
			if away {
				r.readErr = kube.ErrUnavailable
				_ = a.Decide(t.Context(), question())
				r.readErr = nil
			}
			for range 2 {
				refused, ok := errors.AsType[*authority.RefusedError](a.Decide(t.Context(), question()))
				if !ok || refused.Code != escache.CodeStaleEpoch {
					t.Errorf("granted by a record that was set back: %v", refused)
				}
			}
			if r.asked == 0 || slices.Contains(r.v.Status.Outdated, "n2") {
				t.Errorf("compared %d times, outdated %q", r.asked, r.v.Status.Outdated)
			}
		})
	}
}

// This process has seen that no other host had the volume. So nobody has to answer but the API server.
func TestAnAttachmentThatIsKnownToBeSoundIsNotCompared(t *testing.T) {
	for name, know := range map[string]func(a *Arbiter, epoch int64){
		"seen to be whole":           func(a *Arbiter, epoch int64) { a.Whole(question().VolumeRef, epoch, time.Now()) },
		"compared to be connected":   func(a *Arbiter, epoch int64) { a.Compared(question().VolumeRef, epoch) },
		"granted before, and agreed": nil,
	} {
		t.Run(name, func(t *testing.T) {
			for epoch, want := range map[int64]int{7: 0, 6: 1} {
				r := newRecord()
				r.answer = func(c *v1alpha1.RecordComparison) { c.Answered = c.Question }
				a := fresh("n1", r)
				if know != nil {
					know(a, epoch)
				} else if err := a.Decide(t.Context(), question()); err != nil {
					t.Fatal(err)
				} else {
					r.asked, want = 0, 0
				}
				if err := a.Decide(t.Context(), question()); err != nil || r.asked != want {
					t.Errorf("known of epoch %d: %d questions, %v", epoch, r.asked, err)
				}
			}
		})
	}
}

// A cut in an earlier attachment says nothing of this one, which had the record compared.
func TestACutOfAnEarlierAttachmentIsForgotten(t *testing.T) {
	r, now := newRecord(), time.Now()
	a := sound("n1", r)
	a.now = func() time.Time { return now }
	earlier := question()
	earlier.Epoch = 6
	r.readErr = kube.ErrUnavailable
	_ = a.Decide(t.Context(), earlier)
	now = now.Add(time.Hour)
	r.readErr = nil
	if err := a.Decide(t.Context(), question()); err != nil || r.asked != 0 {
		t.Errorf("%d questions: %v", r.asked, err)
	}
}

// The record says that another node has the volume, until etcd is restored to before that.
func TestAHostThatWasRefusedHasTheRecordComparedFirst(t *testing.T) {
	r := newRecord()
	r.answer = func(c *v1alpha1.RecordComparison) { c.Answered, c.Behind = c.Question, "epoch 8 of n2" }
	a := sound("n1", r)
	before := *r.v.Status.DeepCopy()
	r.v.Status.AttachedNode, r.v.Status.Epoch = "n2", 8
	for range 3 {
		if err := a.Decide(t.Context(), question()); err == nil {
			t.Fatal("granted")
		}
		r.v.Status = before
	}
	if r.asked == 0 {
		t.Error("the record was not compared")
	}
}

// csi-controller answers after escached has given up.
func TestALateAnswerCountsForTheNextQuestion(t *testing.T) {
	r := newRecord()
	a, now := cutOff(r)
	r.readErr = nil
	*now = now.Add(time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := a.Decide(ctx, question()); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatal(err)
	}
	r.v.Status.Comparison.Answered = r.v.Status.Comparison.Question
	if err := a.Decide(t.Context(), question()); err != nil || r.asked != 1 {
		t.Errorf("%d questions: %v", r.asked, err)
	}
}

// The question was answered while another host had not had the volume yet, and etcd is restored to that moment.
func TestAnAnswerOfBeforeATimeWithoutTheRecordDoesNotCount(t *testing.T) {
	fail := func(r *record, err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.readErr = err
	}
	for name, outage := range map[string]func(a *Arbiter, r *record, now *time.Time){
		"the API server does not answer": func(a *Arbiter, r *record, _ *time.Time) {
			fail(r, kube.ErrUnavailable)
			_ = a.Decide(t.Context(), question())
			fail(r, nil)
		},
		"it stops while the answer is awaited": func(a *Arbiter, r *record, _ *time.Time) {
			r.v.Status.Comparison.Answered = ""
			time.AfterFunc(100*time.Millisecond, func() { fail(r, kube.ErrUnavailable) })
			_ = a.Decide(t.Context(), question())
			fail(r, nil)
		},
		"nobody asks": func(_ *Arbiter, _ *record, now *time.Time) { *now = now.Add(longCut) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecord()
			a, now := cutOff(r)
			r.readErr = nil
			*now = now.Add(time.Hour)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := a.Decide(ctx, question()); !errors.Is(err, context.DeadlineExceeded) {
				t.Fatal(err)
			}
			r.v.Status.Comparison.Answered = r.v.Status.Comparison.Question
			backup := *r.v.Status.DeepCopy()
			outage(a, r, now)
			r.v.Status = backup
			r.answer = func(c *v1alpha1.RecordComparison) { c.Answered, c.Behind = c.Question, "epoch 8 of n2" }
			if err := a.Decide(t.Context(), question()); err == nil || r.asked != 2 || slices.Contains(r.v.Status.Outdated, "n2") {
				t.Errorf("%d questions, outdated %q: %v", r.asked, r.v.Status.Outdated, err)
			}
		})
	}
}

// The link came back before the next question, so nobody has asked any more.
func TestACutEndsWhenTheVolumeIsWholeAgain(t *testing.T) {
	for name, tc := range map[string]struct {
		epoch int64
		after time.Duration
		asked int
	}{
		"seen after the last question":  {7, time.Second, 0},
		"seen before":                   {7, -time.Second, 1},
		"seen of an earlier attachment": {6, time.Second, 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRecord()
			r.answer = func(c *v1alpha1.RecordComparison) { c.Answered = c.Question }
			a, now := cutOff(r)
			r.readErr = nil
			a.Whole(question().VolumeRef, tc.epoch, now.Add(tc.after))
			*now = now.Add(time.Hour)
			if err := a.Decide(t.Context(), question()); err != nil || r.asked != tc.asked {
				t.Errorf("%d questions: %v", r.asked, err)
			}
		})
	}
}

// etcd was restored to before the volume was made, and then to a later time.
func TestARecordThatIsNotThereEndsNoCut(t *testing.T) {
	r := newRecord()
	r.answer = func(c *v1alpha1.RecordComparison) { c.Answered, c.Behind = c.Question, "epoch 8 of n2" }
	a, _ := cutOff(r)
	r.readErr = kube.ErrNotFound
	_ = a.Decide(t.Context(), question())
	r.readErr = nil
	if err := a.Decide(t.Context(), question()); err == nil || r.asked != 1 {
		t.Errorf("%d questions: %v", r.asked, err)
	}
}

// cutOff is the arbiter of a host that has asked once in vain, and its clock.
func cutOff(r *record) (*Arbiter, *time.Time) {
	now := time.Now()
	a := sound("n1", r)
	a.now = func() time.Time { return now }
	r.readErr = kube.ErrUnavailable
	_ = a.Decide(context.Background(), question())
	return a, &now
}
