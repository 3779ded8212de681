package traces_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/escache/escache-csi/internal/traces"
)

// work does what traced code does, each thing once.
func work(ctx context.Context, r *http.Request) (err error) {
	ctx, step := traces.Begin(ctx, "a step")
	defer step.Done(&err)
	traces.Note(ctx, "key", "value")
	step.Set("key", "value")
	step.SetInt("code", 1)
	calling, call := traces.Call(ctx, "service", "call")
	traces.Send(calling, r.Header)
	call.Fail("why")
	call.End()
	if traces.On(ctx) {
		return errors.New("the text of an error")
	}
	return nil
}

func TestOutsideATraceNothingIsAllocated(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	ctx := r.Context()
	allocations := testing.AllocsPerRun(100, func() {
		received, step := traces.Receive(r, nil, "POST /")
		step.End()
		if err := work(ctx, received); err != nil {
			t.Fatal(err)
		}
	})
	if allocations != 0 || len(r.Header) != 0 {
		t.Errorf("%v allocations, headers %v", allocations, r.Header)
	}
}

func BenchmarkOutsideATrace(b *testing.B) {
	r := httptest.NewRequest(http.MethodPost, "/", nil)
	ctx := r.Context()
	b.ReportAllocs()
	for b.Loop() {
		if err := work(ctx, r); err != nil {
			b.Fatal(err)
		}
	}
}

func TestATraceGoesOnAtTheServiceThatIsCalled(t *testing.T) {
	seen := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(seen))
	first, whole := traces.Receive(httptest.NewRequest(http.MethodPost, "/", nil), provider, "POST /")
	next := httptest.NewRequest(http.MethodGet, "/", nil)
	if err := work(first.Context(), next); err == nil {
		t.Fatal("it was not traced")
	}
	_, answer := traces.Receive(next, provider, "GET /")
	answer.End()
	whole.End()
	parents := map[string]string{"GET /": "service call", "service call": "a step", "a step": "POST /", "POST /": ""}
	names := map[string]string{"": ""}
	for _, s := range seen.Ended() {
		names[s.SpanContext().SpanID().String()] = s.Name()
	}
	for _, s := range seen.Ended() {
		if got := names[s.Parent().SpanID().String()]; got != parents[s.Name()] {
			t.Errorf("%s is part of %q, not of %q", s.Name(), got, parents[s.Name()])
		}
		if s.Name() == "a step" && (s.Status().Code != codes.Error || s.Status().Description != "") {
			t.Errorf("a step failed with the status %+v", s.Status())
		}
	}
	if len(seen.Ended()) != len(parents) {
		t.Errorf("%d spans", len(seen.Ended()))
	}
}

func TestARequestThatOnlyReadsBeginsNoTrace(t *testing.T) {
	seen := tracetest.NewSpanRecorder()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(seen))
	_, step := traces.Receive(httptest.NewRequest(http.MethodGet, "/", nil), provider, "GET /")
	step.End()
	if len(seen.Ended()) != 0 {
		t.Errorf("%d spans", len(seen.Ended()))
	}
}

func TestATargetIsHostAndPort(t *testing.T) {
	for target, fine := range map[string]bool{
		"": true, "otel:4317": true, "[::1]:4317": true, "otel": false, ":4317": false, "otel:": false, "http://otel:4317": false,
	} {
		if err := traces.CheckTarget(target); (err == nil) != fine {
			t.Errorf("%q: %v", target, err)
		}
	}
}
