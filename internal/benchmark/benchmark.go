// Package benchmark says what a benchmark of volumes measures, and compares what was measured.
// Package disk beside it does the measuring.
package benchmark

import (
	"fmt"
	"time"
)

// Sizes of one operation, in bytes.
const (
	BlockBytes = 4 << 10 // of small reads and writes
	ChunkBytes = 1 << 20 // of large writes
)

// Names of tests.
const (
	SyncWrite       = "sync write"
	Append          = "append"
	RandomRead      = "random read"
	SequentialWrite = "sequential write"
)

// Test is one kind of reads or writes.
type Test struct {
	Name    string `json:"test"`
	Workers int    `json:"workers"` // at the same time
}

// Large reports whether the operations are of ChunkBytes, so that their rate is shown in bytes.
func (t Test) Large() bool { return t.Name == SequentialWrite }

// Tests are all tests, in the order in which a round runs them.
func Tests() []Test {
	return []Test{
		{SyncWrite, 1},
		{SyncWrite, 8},
		{Append, 1},
		{Append, 8},
		{RandomRead, 1},
		{RandomRead, 8},
		{SequentialWrite, 4},
	}
}

// Bounds of a Plan.
const (
	MinBytes  = 256 << 20
	MaxBytes  = 1 << 40
	MaxRounds = 50
	MinTurn   = 100 * time.Millisecond
	MaxTurn   = 10 * time.Minute
)

// Plan says how much is measured. A round runs each test once on each volume, one after the other: a turn.
type Plan struct {
	// Bytes is the size of each volume.
	Bytes  int64
	Rounds int
	// Turn is how long one turn is. It ends earlier after the most operations that it may have.
	Turn time.Duration
}

// Validate returns an error that says which value is wrong.
func (p Plan) Validate() error {
	switch {
	case p.Bytes < MinBytes || p.Bytes > MaxBytes:
		return fmt.Errorf("a size of %d bytes is not between 256Mi and 1Ti", p.Bytes)
	case p.Rounds < 1 || p.Rounds > MaxRounds:
		return fmt.Errorf("%d rounds are not between 1 and %d", p.Rounds, MaxRounds)
	case p.Turn < MinTurn || p.Turn > MaxTurn:
		return fmt.Errorf("a turn of %s is not between %s and %s", p.Turn, MinTurn, MaxTurn)
	}
	return nil
}

// FileBytes is the size of the file that is written over and read.
func (p Plan) FileBytes() int64 { return p.Bytes / 2 / ChunkBytes * ChunkBytes }

// AppendBytes is the size to which all files together grow that are made longer.
func (p Plan) AppendBytes() int64 { return p.Bytes / 4 / ChunkBytes * ChunkBytes }

// TurnBytes is the most that one turn of a test writes.
func (p Plan) TurnBytes(t Test) int64 {
	switch t.Name {
	case RandomRead:
		return 0
	case Append:
		return p.AppendBytes()
	default:
		return p.FileBytes()
	}
}

// mostOperations bounds a turn, because the latency of each is kept in memory.
const mostOperations = 8 << 20

// TurnOperations is the most operations that one turn of a test has.
func (p Plan) TurnOperations(t Test) int64 {
	switch {
	case t.Name == RandomRead:
		return mostOperations
	case t.Large():
		return min(p.TurnBytes(t)/ChunkBytes, mostOperations)
	default:
		return min(p.TurnBytes(t)/BlockBytes, mostOperations)
	}
}

// MostWritten is the most that is written to each volume, in bytes.
func (p Plan) MostWritten() int64 {
	most := p.FileBytes() // it is filled first
	for _, t := range Tests() {
		most += int64(p.Rounds) * p.TurnBytes(t)
	}
	return most
}

// slowest is the rate at which a file is filled at worst, in bytes a second.
const slowest = 5 << 20

// FillTime bounds how long it takes to fill the file of one volume.
func (p Plan) FillTime() time.Duration {
	return time.Minute + time.Duration(p.FileBytes()/slowest)*time.Second
}

// MeasuringTime is how long all turns take on that many volumes.
func (p Plan) MeasuringTime(volumes int) time.Duration {
	return time.Duration(volumes*p.Rounds*len(Tests())) * p.Turn
}

// Patience is how much longer than a turn its last operations may take.
const Patience = 2 * time.Minute

// MostTime bounds the whole benchmark of that many volumes.
func (p Plan) MostTime(volumes int) time.Duration {
	return time.Duration(volumes)*p.FillTime() + 2*p.MeasuringTime(volumes) + Patience
}
