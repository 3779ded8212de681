package benchmark

import (
	"slices"
	"strings"
	"testing"
	"time"
)

func TestSummaryOfLatencies(t *testing.T) {
	var latencies []time.Duration
	for i := range 200 {
		latencies = append(latencies, time.Duration(200-i)*time.Millisecond)
	}
	got := Summarise(latencies, BlockBytes, 4*time.Second)
	want := Turn{
		Operations: 200, Bytes: 200 * BlockBytes, Seconds: 4, PerSecond: 50, P50Micros: 100_000, P99Micros: 198_000, MaxMicros: 200_000,
	}
	if got != want || got.BytesPerSecond() != 50*BlockBytes || got.P50Millis() != 100 || got.P99Millis() != 198 {
		t.Errorf("%+v, want %+v", got, want)
	}
	if none := Summarise(nil, BlockBytes, time.Second); none != (Turn{}) {
		t.Errorf("no operations: %+v", none)
	}
}

func TestMediansAndRatios(t *testing.T) {
	for _, tc := range []struct {
		values []float64
		want   float64
	}{{nil, 0}, {[]float64{3}, 3}, {[]float64{9, 1, 5}, 5}, {[]float64{4, 1, 2, 9}, 3}} {
		before := slices.Clone(tc.values)
		if got := Median(tc.values); got != tc.want || !slices.Equal(tc.values, before) {
			t.Errorf("median of %v is %v", before, got)
		}
	}
	a, b := []Turn{{PerSecond: 10}, {PerSecond: 30}}, []Turn{{PerSecond: 5}, {PerSecond: 60}}
	if got := Ratios(Column(a, Turn.Rate), Column(b, Turn.Rate)); !slices.Equal(got, []float64{2, 0.5}) {
		t.Errorf("ratios %v", got)
	}
}

func TestAPlanThatCannotBeIsRefused(t *testing.T) {
	good := Plan{Bytes: 1 << 30, Rounds: 5, Turn: 4 * time.Second}
	if err := good.Validate(); err != nil {
		t.Error(err)
	}
	for says, change := range map[string]func(*Plan){
		"between 256Mi": func(p *Plan) { p.Bytes = MinBytes - 1 },
		"1Ti":           func(p *Plan) { p.Bytes = MaxBytes + 1 },
		"0 rounds":      func(p *Plan) { p.Rounds = 0 },
		"51 rounds":     func(p *Plan) { p.Rounds = 51 },
		"1ms":           func(p *Plan) { p.Turn = time.Millisecond },
		"11m0s":         func(p *Plan) { p.Turn = 11 * time.Minute },
	} {
		p := good
		change(&p)
		if err := p.Validate(); err == nil || !strings.Contains(err.Error(), says) {
			t.Errorf("%+v: %v", p, err)
		}
	}
}

// What is promised to the user follows from the plan: half of the volume is filled, and a round writes at
// most two and a half times that.
func TestBoundsOfAPlan(t *testing.T) {
	p := Plan{Bytes: 1 << 30, Rounds: 2, Turn: time.Second}
	if got, want := p.MostWritten(), int64(1<<29+2*(2*1<<29+2*1<<28+1<<29)); got != want {
		t.Errorf("it writes %d, want %d", got, want)
	}
	for test, want := range map[Test]int64{
		{SyncWrite, 8}: 1 << 17, {Append, 1}: 1 << 16, {RandomRead, 1}: mostOperations, {SequentialWrite, 4}: 512,
	} {
		if got := p.TurnOperations(test); got != want {
			t.Errorf("%s has %d operations, want %d", test.Name, got, want)
		}
	}
	if got := (Plan{Bytes: MaxBytes}).TurnOperations(Test{SyncWrite, 8}); got != mostOperations {
		t.Errorf("%d latencies are kept", got)
	}
	if got := p.MeasuringTime(2); got != 28*time.Second {
		t.Errorf("it measures for %s", got)
	}
	if files := p.FileBytes() + p.AppendBytes(); files > p.Bytes*3/4 {
		t.Errorf("the files have %d bytes", files)
	}
	if p.MostTime(2) < p.MeasuringTime(2)+2*p.FillTime() {
		t.Errorf("it is cut off after %s", p.MostTime(2))
	}
}
