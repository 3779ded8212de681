package block

import (
	"errors"
	"strings"
	"testing"
	"time"
)

func TestParseReportsWhatIsWrongWithABlock(t *testing.T) {
	id := ID{Epoch: 3, Number: 17}
	const offset = 5 * Size
	tests := []struct {
		name   string
		damage func(p []byte)
		want   error
	}{
		{"nothing", func([]byte) {}, nil},
		{"never written", func(p []byte) { clear(p) }, ErrMissing},
		{"last byte", func(p []byte) { p[Size-1] ^= 1 }, ErrCorrupt},
		{"number", func(p []byte) { p[16]++ }, ErrCorrupt},
		{"epoch", func(p []byte) { p[8]++ }, ErrCorrupt},
		{"offset", func(p []byte) { p[25] ^= 1 }, ErrCorrupt},
		{"second half of an older block", func(p []byte) {
			old := make([]byte, Size)
			Fill(old, ID{Epoch: 3, Number: 16}, offset)
			copy(p[Size/2:], old[Size/2:])
		}, ErrCorrupt},
		{"block of another offset", func(p []byte) { Fill(p, id, offset+Size) }, ErrMoved},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p := make([]byte, Size)
			Fill(p, id, offset)
			tt.damage(p)
			got, err := Parse(p, offset)
			if !errors.Is(err, tt.want) {
				t.Fatalf("error %v, want %v", err, tt.want)
			}
			if err == nil && got != id {
				t.Errorf("id %v, want %v", got, id)
			}
		})
	}
}

func TestLedgerKeepsTheNewestPromiseWhateverTheOrder(t *testing.T) {
	lines := []string{
		Ack{First: ID{2, 1}, Offset: Size, Blocks: 2, Latency: time.Millisecond}.String(),
		Ack{First: ID{1, 9}, Offset: 0, Blocks: 2}.String(),
		Ack{First: ID{2, 7}, Offset: 2 * Size, Blocks: 1}.String(),
	}
	ledger, err := ReadLedger(strings.NewReader(strings.Join(lines, "\n") + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	want := Ledger{0: {1, 9}, Size: {2, 1}, 2 * Size: {2, 7}}
	for offset, id := range want {
		if ledger[offset] != id {
			t.Errorf("at %d: %v, want %v", offset, ledger[offset], id)
		}
	}
	if len(ledger) != len(want) {
		t.Errorf("%d offsets, want %d", len(ledger), len(want))
	}
}

func TestHalfALineIsNoPromise(t *testing.T) {
	for _, line := range []string{"", "ack 1 2", "ack 1 2 3 1 0", "ack 1 2 4096 0 0", "done"} {
		if a, err := ParseAck(line); err == nil {
			t.Errorf("%q was taken for %v", line, a)
		}
	}
}
