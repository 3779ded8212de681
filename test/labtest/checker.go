package labtest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/blockcheck/block"
)

// Checker keeps, outside the hosts, everything that a volume's holders have acknowledged one after
// the other. It says whether all of it is there, and whether a holder that was fenced has written
// after that.
type Checker struct {
	// Lost are blocks that were acknowledged and are not there; Double are blocks, and
	// acknowledgements, of a fenced holder.
	Lost, Double int

	acks    Acks
	writers []*Writer
	fenced  []*Writer
	given   []int // how many acknowledgements each fenced writer had given when it was fenced
	late    []int // how many of those after that are judged already
	// found is what the holder after each fenced writer found.
	found []block.Ledger
}

// checkedSpan is the region that is written over and over.
const checkedSpan = 4 << 20

// NewChecker returns one for a volume that nobody has written to.
func NewChecker() *Checker { return &Checker{} }

// Write starts the writer of a holder.
func (c *Checker) Write(t T, h *Host, device string) *Writer {
	t.Helper()
	w := h.StartWriter(t, device, Writes{Span: checkedSpan})
	c.writers = append(c.writers, w)
	return w
}

// Add adds writes that were acknowledged outside of the region that is written all the time.
func (c *Checker) Add(acks Acks) { c.acks = append(c.acks, acks...) }

// Acks is everything that was acknowledged.
func (c *Checker) Acks() Acks {
	all := slices.Clone(c.acks)
	for _, w := range c.writers {
		all = append(all, w.Acks()...)
	}
	for i, w := range c.fenced {
		all = append(all, w.Acks()[:c.given[i]]...)
	}
	return all
}

// TakenOver is called when another host has the device and has not used it yet. What earlier
// holders have acknowledged is verified, and that those which were fenced before the last one have not written since. From now on
// the last one may not write any more either: what is there now is kept.
func (c *Checker) TakenOver(t T, h *Host, device string) {
	t.Helper()
	earlier := len(c.fenced)
	found := block.Ledger{}
	for _, w := range c.writers {
		c.fenced, c.given, c.late, c.found = append(c.fenced, w), append(c.given, w.Count()), append(c.late, 0), append(c.found, found)
	}
	c.writers = nil
	c.verify(t, h, device, earlier)
	ctx, cancel := context.WithTimeout(t.Context(), commandTimeout)
	defer cancel()
	out, err := h.Try(ctx, nil, "blockcheck", "list", device, "--span", fmt.Sprint(checkedSpan))
	if err != nil {
		t.Fatalf("%v", err)
	}
	for line := range strings.Lines(out) {
		ack, err := block.ParseAck(strings.TrimSpace(line))
		if err != nil {
			t.Fatalf("%v", err)
		}
		c.acks = append(c.acks, ack)
		found.Add(ack)
	}
}

// Verify reads the device and counts what is wrong.
func (c *Checker) Verify(t T, h *Host, device string) {
	t.Helper()
	c.verify(t, h, device, len(c.fenced))
}

// verify is Verify, where only so many of the writers, those that were fenced first, may not have written any more: what the
// others had written is not listed yet.
func (c *Checker) verify(t T, h *Host, device string, fenced int) {
	t.Helper()
	acks := c.Acks()
	if len(acks) == 0 {
		return // nothing was promised yet
	}
	args := []string{"blockcheck", "verify", device}
	for i, w := range c.fenced[:fenced] {
		args = append(args, "--fenced", fmt.Sprint(w.Epoch))
		c.judgeLate(t, i, w)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	out, err := h.Try(ctx, strings.NewReader(acks.List()), args...)
	if err == nil {
		return
	}
	for line := range strings.Lines(out) {
		switch {
		case strings.HasPrefix(line, "right "):
		case strings.HasPrefix(line, "fenced "), strings.HasPrefix(line, "foreign "):
			c.Double++
		default:
			c.Lost++
		}
	}
	t.Errorf("%s on %s: %v\n%s", device, h.Name, err, out)
}

// judgeLate counts what a fenced writer acknowledged after it was fenced. An acknowledgement of what
// the next holder found was only late on its way: a host that was frozen meanwhile keeps it.
func (c *Checker) judgeLate(t T, i int, w *Writer) {
	t.Helper()
	double := 0
	acks := w.Acks()[c.given[i]:]
	for _, ack := range acks[c.late[i]:] {
		for n := range ack.Blocks {
			written := block.ID{Epoch: w.Epoch, Number: ack.First.Number + uint64(n)}
			if c.found[i][ack.Offset+int64(n)*block.Size].Before(written) {
				double++
			}
		}
	}
	c.late[i] = len(acks)
	if double > 0 {
		c.Double += double
		t.Errorf("%s acknowledged %d blocks after it was fenced", w.host.Name, double)
	}
}
