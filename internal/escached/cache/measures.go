package cache

import "time"

// Measures are what an engine with a process of its own measures. All but the first group of fields count
// since that process was started, so they begin again with another one. Sizes are bytes.
type Measures struct {
	// LogBytes is the length of the log. LogUsed of it cannot be written now, and LogLive of it is not in
	// the origin: the rest of what is used is free as soon as a writer needs it.
	LogBytes, LogUsed, LogLive int64
	// IndexBytes is the memory that says where dirty blocks are.
	IndexBytes int64
	// Recovery is how long the process took to find what an earlier one, or another host, had left.
	Recovery time.Duration

	// Reads, Writes and Flushes are how long requests took, in seconds. A write is answered from memory,
	// unless the device writes through; a user who wants it stable sends a flush after it.
	Reads, Writes, Flushes Histogram
	// RecordWrites are how many writes reached the log together: one record has them, and costs the disk
	// one write.
	RecordWrites Histogram
	// RecordBytes were written to the log, WrittenBack to the origin.
	RecordBytes, WrittenBack int64
	// Errors are requests that were answered with an error.
	Errors int64
}

// Histogram counts values in ranges.
type Histogram struct {
	// Bounds are the upper ends of the ranges, which they belong to, in order.
	Bounds []float64 `json:"bounds"`
	// Counts has one number for each range, and one for what is above the last bound.
	Counts []uint64 `json:"counts"`
	Sum    float64  `json:"sum"`
}

// Count is how many values there are.
func (h Histogram) Count() uint64 {
	n := uint64(0)
	for _, c := range h.Counts {
		n += c
	}
	return n
}
