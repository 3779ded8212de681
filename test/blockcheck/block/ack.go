package block

import (
	"bufio"
	"fmt"
	"io"
	"time"
)

// Ack is the promise that came back for one write: Blocks blocks from Offset, numbered upwards from
// First, are safe.
type Ack struct {
	First   ID
	Offset  int64
	Blocks  int
	Latency time.Duration // of the write
}

// String is the line a writer prints; ParseAck reads it.
func (a Ack) String() string {
	return fmt.Sprintf("ack %d %d %d %d %d", a.First.Epoch, a.First.Number, a.Offset, a.Blocks, a.Latency.Microseconds())
}

// ParseAck reads one line of a writer.
func ParseAck(line string) (Ack, error) {
	var (
		a      Ack
		micros int64
	)
	_, err := fmt.Sscanf(line, "ack %d %d %d %d %d", &a.First.Epoch, &a.First.Number, &a.Offset, &a.Blocks, &micros)
	if err != nil {
		return Ack{}, fmt.Errorf("%q is not an acknowledgement: %w", line, err)
	}
	if a.Blocks < 1 || a.Offset < 0 || a.Offset%Size != 0 {
		return Ack{}, fmt.Errorf("%q acknowledges no blocks", line)
	}
	a.Latency = time.Duration(micros) * time.Microsecond
	return a, nil
}

// Ledger holds the newest promise for each offset.
type Ledger map[int64]ID

// Add takes an acknowledgement in. The order in which they come does not matter.
func (l Ledger) Add(a Ack) {
	for i := range a.Blocks {
		offset, id := a.Offset+int64(i)*Size, ID{Epoch: a.First.Epoch, Number: a.First.Number + uint64(i)}
		if old, ok := l[offset]; !ok || old.Before(id) {
			l[offset] = id
		}
	}
}

// ReadLedger reads a writer's lines to the end.
func ReadLedger(r io.Reader) (Ledger, error) {
	ledger := Ledger{}
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		a, err := ParseAck(lines.Text())
		if err != nil {
			return nil, err
		}
		ledger.Add(a)
	}
	return ledger, lines.Err()
}
