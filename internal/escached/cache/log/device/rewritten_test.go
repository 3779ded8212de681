package device

import "testing"

// rewritten has one block that is written again and again.
type rewritten struct {
	*Device

	t      *testing.T
	origin *image
	number byte
}

func newRewritten(t *testing.T) *rewritten {
	t.Helper()
	d, _, origin := start(t)
	return &rewritten{Device: d, t: t, origin: origin}
}

// again writes the next number to the block, as a record of its own.
func (r *rewritten) again() {
	r.t.Helper()
	r.number++
	must(r.t, r.Write(1, block(r.number)))
	must(r.t, r.Flush())
}

func (r *rewritten) mark() uint64 {
	r.t.Helper()
	mark, err := r.Mark(r.t.Context())
	must(r.t, err)
	return mark
}

func (r *rewritten) bring(mark uint64) {
	r.t.Helper()
	must(r.t, r.BringUpTo(r.t.Context(), mark))
}

func (r *rewritten) imageHas(atLeast byte) {
	r.t.Helper()
	if got := r.origin.has(1); got < atLeast {
		r.t.Fatalf("the image has number %d of the block, want %d at least", got, atLeast)
	}
}

// If only the newest content counted, that would be replaced itself before its turn comes, and so for ever.
func TestTheImageGetsABlockThatIsWrittenAgainAndAgain(t *testing.T) {
	r := newRewritten(t)
	r.again()
	for range 50 {
		mark, number := r.mark(), r.number
		r.again()
		r.bring(mark)
		r.imageHas(number)
	}
}

// Somebody else's step may have left out what a record after the mark has replaced.
func TestTheImageGetsWhatAStepHasLeftOut(t *testing.T) {
	r := newRewritten(t)
	r.again()
	first := r.mark()
	r.again()
	second := r.mark()
	r.again()
	r.bring(first)
	r.again()
	if _, err := r.step(second); err != nil {
		t.Fatal(err)
	}
	r.bring(second)
	r.imageHas(2)
}

// What was replaced before the mark does not reach the image.
func TestTheImageGetsNothingThatWasReplacedBeforeTheMark(t *testing.T) {
	r := newRewritten(t)
	for range 10 {
		r.again()
	}
	mark := r.mark()
	r.again()
	r.bring(mark)
	r.imageHas(10)
	if r.origin.writes != 1 || r.origin.has(1) != 10 {
		t.Errorf("the image has number %d, after %d writes", r.origin.has(1), r.origin.writes)
	}
}
