package benchmark

import (
	"slices"
	"time"
)

// Turn is what one turn has measured.
type Turn struct {
	Operations int     `json:"operations"`
	Bytes      int64   `json:"bytes"` // moved by all operations
	Seconds    float64 `json:"seconds"`
	PerSecond  float64 `json:"perSecond"` // operations
	P50Micros  int64   `json:"p50Micros"` // latency of an operation
	P99Micros  int64   `json:"p99Micros"`
	MaxMicros  int64   `json:"maxMicros"`
}

// BytesPerSecond is the rate in bytes.
func (t Turn) BytesPerSecond() float64 { return float64(t.Bytes) / t.Seconds }

// Rate is the rate in operations a second.
func (t Turn) Rate() float64 { return t.PerSecond }

// P50Millis is the median latency of an operation in milliseconds.
func (t Turn) P50Millis() float64 { return float64(t.P50Micros) / 1000 }

// P99Millis is the latency in milliseconds that 99 of 100 operations do not exceed.
func (t Turn) P99Millis() float64 { return float64(t.P99Micros) / 1000 }

// Summarise makes a Turn of the latencies of operations of that many bytes each. It sorts them.
func Summarise(latencies []time.Duration, operationBytes int64, elapsed time.Duration) Turn {
	if len(latencies) == 0 {
		return Turn{}
	}
	slices.Sort(latencies)
	at := func(percent int) int64 { return latencies[(len(latencies)-1)*percent/100].Microseconds() }
	return Turn{
		Operations: len(latencies), Bytes: operationBytes * int64(len(latencies)), Seconds: elapsed.Seconds(),
		PerSecond: float64(len(latencies)) / elapsed.Seconds(), P50Micros: at(50), P99Micros: at(99), MaxMicros: at(100),
	}
}

// Result is what a benchmark has measured.
type Result struct {
	Volumes []string  `json:"volumes"`
	Tests   []Outcome `json:"tests"`
}

// Outcome is that of one test: its turns by volume and round.
type Outcome struct {
	Test

	Turns [][]Turn `json:"turns"`
}

// Message is a line of a benchmark's output: exactly one of its fields is set.
type Message struct {
	Progress string  `json:"progress,omitempty"`
	Result   *Result `json:"result,omitempty"`
	Error    string  `json:"error,omitempty"`
}

// Median of the values; 0 if there are none.
func Median(values []float64) float64 {
	if len(values) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(values))
	return (sorted[(len(sorted)-1)/2] + sorted[len(sorted)/2]) / 2
}

// Ratios compares round by round, since rounds have different company.
func Ratios(a, b []float64) []float64 {
	var all []float64
	for i := range a {
		all = append(all, a[i]/b[i])
	}
	return all
}

// Column is one value of each result.
func Column[T any](results []T, value func(T) float64) []float64 {
	var values []float64
	for _, r := range results {
		values = append(values, value(r))
	}
	return values
}
