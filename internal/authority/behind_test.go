package authority

import (
	"errors"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestNotBehind(t *testing.T) {
	v := volume(func(s *v1alpha1.CacheVolumeStatus) { s.Epoch = 7 })
	v.Spec.LinkGeneration, v.Spec.Pool, v.Spec.Image = 2, "fast", "i"
	noted := func(volume string, epoch, generation int64, node string) Noted {
		return Noted{Volume: volume, Epoch: epoch, LinkGeneration: generation, Node: node, Pool: "fast", Image: "i"}
	}
	of := func(pool, image string) Noted {
		n := noted("w", 8, 3, "n1")
		n.Pool, n.Image = pool, image
		return n
	}
	for _, tc := range []struct {
		name         string
		image        Noted
		refused, has bool
	}{
		{"nothing noted", Noted{}, false, false},
		{"this attachment", noted(v.Name, 7, 2, "n1"), false, true},
		{"an earlier one", noted(v.Name, 6, 2, "n1"), false, false},
		{"the former replicas", noted(v.Name, 7, 1, "n1"), false, false},
		{"a later attachment", noted(v.Name, 8, 2, "n2"), true, false},
		{"later replicas", noted(v.Name, 7, 3, "n1"), true, false},
		{"of another image, which this one is a copy of", of("fast", "j"), false, false},
		{"of an image of the same name in another pool", of("slow", "i"), false, false},
		{"another volume has the image now", noted("w", 8, 3, "n1"), true, false},
		{"another volume has the image now, and was never attached", noted("w", 0, 0, ""), true, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := NotBehind(v, tc.image); tc.refused != errors.Is(err, ErrRecordBehind) || !tc.refused && err != nil {
				t.Errorf("got %v", err)
			}
			if has := tc.image.Tells(v); has != tc.has {
				t.Errorf("tells of it: %v", has)
			}
		})
	}
}

func TestCompared(t *testing.T) {
	for _, tc := range []struct {
		name     string
		on       *v1alpha1.RecordComparison
		question string
		want     error
	}{
		{"answered", &v1alpha1.RecordComparison{Question: "q", Answered: "q"}, "q", nil},
		{"never asked", nil, "q", ErrUnanswered},
		{"not answered", &v1alpha1.RecordComparison{Question: "q"}, "q", ErrUnanswered},
		{"an earlier one is answered", &v1alpha1.RecordComparison{Question: "q", Answered: "p"}, "q", ErrUnanswered},
		{"a restored answer", &v1alpha1.RecordComparison{Question: "p", Answered: "p"}, "q", ErrUnanswered},
		{"no question", &v1alpha1.RecordComparison{}, "", ErrUnanswered},
		{"behind", &v1alpha1.RecordComparison{Question: "q", Answered: "q", Behind: "epoch 8"}, "q", ErrRecordBehind},
		{"an earlier one was behind", &v1alpha1.RecordComparison{Question: "q", Answered: "p", Behind: "epoch 8"}, "q", ErrUnanswered},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(func(s *v1alpha1.CacheVolumeStatus) { s.Comparison = tc.on })
			if err := Compared(v, tc.question); !errors.Is(err, tc.want) || tc.want == nil && err != nil {
				t.Errorf("got %v, want %v", err, tc.want)
			}
		})
	}
}
