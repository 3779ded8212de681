package comparison_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// asked puts a question of the attached node on record.
func (w *world) asked(id, question string) {
	w.T.Helper()
	v := w.Volume(id)
	v.Status.Comparison = &v1alpha1.RecordComparison{Question: question, Answered: "an earlier one"}
	csitest.Must(w.T, w.API.Status().Update(context.Background(), v))
}

func (w *world) answered(id, question string) v1alpha1.RecordComparison {
	w.T.Helper()
	c := w.Volume(id).Status.Comparison
	if c == nil || c.Question != question {
		w.T.Fatalf("on record is %+v", c)
	}
	return *c
}

func TestTheAttachedNodeIsAnswered(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Must(t, err)
	w.asked("pvc-1", "q")
	csitest.Must(t, w.Locked.Compare(t.Context(), "pvc-1"))
	if c := w.answered("pvc-1", "q"); c.Answered != "q" || c.Behind != "" {
		t.Errorf("answered %+v", c)
	}
	before := w.Volume("pvc-1").ResourceVersion
	csitest.Must(t, w.Locked.Compare(t.Context(), "pvc-1"))
	if w.Volume("pvc-1").ResourceVersion != before {
		t.Error("it is answered again")
	}
	csitest.Wants(t, w.Locked.Compare(t.Context(), "pvc-2"), codes.NotFound)
}

// A repair may have the volume, and wait for just this node.
func TestANodeIsAnsweredWhileAnotherOperationHasTheVolume(t *testing.T) {
	for name, noted := range map[string]bool{"the image tells of the attachment": true, "it does not": false} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.Create("pvc-1")
			_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
			csitest.Must(t, err)
			if !noted {
				w.Images.Notes[volumes.ImageOf(v)] = volumes.Note{}
			}
			done, err := w.Locks.Begin("pvc-1", "replica copy")
			csitest.Must(t, err)
			defer done()
			w.asked("pvc-1", "q")
			if err := w.Locked.Compare(t.Context(), "pvc-1"); noted != (err == nil) {
				t.Errorf("got %v", err)
			}
			if c := w.answered("pvc-1", "q"); (c.Answered == "q") != noted {
				t.Errorf("answered %+v", c)
			}
		})
	}
}

// A csi-controller of an older version has attached the volume, and its note was not taken.
func TestANodeIsAnsweredOnceTheImageHasItsNote(t *testing.T) {
	for name, change := range map[string]func(*volumes.Note){
		"it has none":                        func(n *volumes.Note) { *n = volumes.Note{} },
		"it has an earlier attachment's":     func(n *volumes.Note) { n.Epoch-- },
		"its replicas were created again":    func(n *volumes.Note) { n.Spec.LinkGeneration-- },
		"it has one of what it is a copy of": func(n *volumes.Note) { n.Volume, n.Epoch, n.Spec.Image = "pvc-9", 9, "escache-pvc-9" },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.Create("pvc-1")
			_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
			csitest.Must(t, err)
			image := volumes.ImageOf(v)
			note := w.Images.Notes[image]
			change(&note)
			w.Images.Notes[image], w.Images.Noting = note, volumes.ErrUnavailable
			w.asked("pvc-1", "q")
			csitest.Wants(t, w.Locked.Compare(t.Context(), "pvc-1"), codes.Unavailable)
			if c := w.answered("pvc-1", "q"); c.Answered == "q" {
				t.Fatalf("answered without a note: %+v", c)
			}
			w.Images.Noting = nil
			csitest.Must(t, w.Locked.Compare(t.Context(), "pvc-1"))
			note = w.Images.Notes[image]
			if c := w.answered("pvc-1", "q"); c.Answered != "q" || c.Behind != "" || note.Epoch != 1 || note.Volume != "pvc-1" ||
				note.Spec.LinkGeneration != w.Volume("pvc-1").Spec.LinkGeneration {
				t.Errorf("answered %+v, noted %+v", c, note)
			}
		})
	}
}

func TestANodeIsToldThatTheRecordWasSetBack(t *testing.T) {
	w := newWorld(t)
	v, _, second := w.TakenOverSince("pvc-1")
	w.asked("pvc-1", "q")
	w.Images.Reading = volumes.ErrUnavailable
	csitest.Wants(t, w.Locked.Compare(t.Context(), "pvc-1"), codes.Unavailable)
	w.Images.Reading = nil
	csitest.Must(t, w.Locked.Compare(t.Context(), "pvc-1"))
	if c := w.answered("pvc-1", "q"); c.Answered != "q" || c.Behind == "" {
		t.Errorf("answered %+v", c)
	}
	if !meta.IsStatusConditionTrue(w.Volume("pvc-1").Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		t.Error("nobody is told by a condition")
	}
	if note := w.Images.Notes[volumes.ImageOf(v)]; note.Epoch != 2 || note.AttachedNode != second {
		t.Errorf("noted by now: %+v", note)
	}
}
