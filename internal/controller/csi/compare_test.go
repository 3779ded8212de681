package csi_test

import (
	"context"
	"testing"

	"google.golang.org/grpc/codes"
	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// asked puts a question of the attached node on record.
func (w *world) asked(id, question string) {
	w.t.Helper()
	v := w.volume(id)
	v.Status.Comparison = &v1alpha1.RecordComparison{Question: question, Answered: "an earlier one"}
	must(w.t, w.api.Status().Update(context.Background(), v))
}

func (w *world) answered(id, question string) v1alpha1.RecordComparison {
	w.t.Helper()
	c := w.volume(id).Status.Comparison
	if c == nil || c.Question != question {
		w.t.Fatalf("on record is %+v", c)
	}
	return *c
}

func TestTheAttachedNodeIsAnswered(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	_, err := w.publish("pvc-1", v.Spec.Replicas[0])
	must(t, err)
	w.asked("pvc-1", "q")
	must(t, w.locked.Compare(t.Context(), "pvc-1"))
	if c := w.answered("pvc-1", "q"); c.Answered != "q" || c.Behind != "" {
		t.Errorf("answered %+v", c)
	}
	before := w.volume("pvc-1").ResourceVersion
	must(t, w.locked.Compare(t.Context(), "pvc-1"))
	if w.volume("pvc-1").ResourceVersion != before {
		t.Error("it is answered again")
	}
	wants(t, w.locked.Compare(t.Context(), "pvc-2"), codes.NotFound)
}

// A csi-controller of an older version has attached the volume, and its note was not taken.
func TestANodeIsAnsweredOnceTheImageHasItsNote(t *testing.T) {
	for name, change := range map[string]func(*volumes.Note){
		"it has none":                       func(n *volumes.Note) { *n = volumes.Note{} },
		"it has an earlier attachment's":    func(n *volumes.Note) { n.Epoch-- },
		"its replicas were created again":   func(n *volumes.Note) { n.Spec.LinkGeneration-- },
		"it has one of a volume of another": func(n *volumes.Note) { n.Volume, n.Epoch = "pvc-9", 9 },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v := w.create("pvc-1")
			_, err := w.publish("pvc-1", v.Spec.Replicas[0])
			must(t, err)
			image := volumes.ImageOf(v)
			note := w.images.notes[image]
			change(&note)
			w.images.notes[image], w.images.noting = note, volumes.ErrUnavailable
			w.asked("pvc-1", "q")
			wants(t, w.locked.Compare(t.Context(), "pvc-1"), codes.Unavailable)
			if c := w.answered("pvc-1", "q"); c.Answered == "q" {
				t.Fatalf("answered without a note: %+v", c)
			}
			w.images.noting = nil
			must(t, w.locked.Compare(t.Context(), "pvc-1"))
			note = w.images.notes[image]
			if c := w.answered("pvc-1", "q"); c.Answered != "q" || c.Behind != "" || note.Epoch != 1 || note.Volume != "pvc-1" ||
				note.Spec.LinkGeneration != w.volume("pvc-1").Spec.LinkGeneration {
				t.Errorf("answered %+v, noted %+v", c, note)
			}
		})
	}
}

func TestANodeIsToldThatTheRecordWasSetBack(t *testing.T) {
	w := newWorld(t)
	v, _, second := w.takenOverSince("pvc-1")
	w.asked("pvc-1", "q")
	w.images.reading = volumes.ErrUnavailable
	wants(t, w.locked.Compare(t.Context(), "pvc-1"), codes.Unavailable)
	w.images.reading = nil
	must(t, w.locked.Compare(t.Context(), "pvc-1"))
	if c := w.answered("pvc-1", "q"); c.Answered != "q" || c.Behind == "" {
		t.Errorf("answered %+v", c)
	}
	if !meta.IsStatusConditionTrue(w.volume("pvc-1").Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		t.Error("nobody is told by a condition")
	}
	if note := w.images.notes[volumes.ImageOf(v)]; note.Epoch != 2 || note.AttachedNode != second {
		t.Errorf("noted by now: %+v", note)
	}
}
