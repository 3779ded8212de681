package engine_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/codes"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/engine"
	"github.com/escache/escache-csi/internal/escached/server"
	example "github.com/escache/escache-csi/test/tracetest"
)

// traced calls an engine as a caller that traces its call, and returns the spans of that trace.
func traced(t *testing.T, e *engine.Engine, method, path, body string) []sdktrace.ReadOnlySpan {
	t.Helper()
	const trace = "4bf92f3577b34da6a3ce929d0e0e4736"
	seen := tracetest.NewSpanRecorder()
	h := server.Handler(e, server.TCP{}, func(context.Context) error { return nil }, server.Seen{
		Log: slog.New(slog.DiscardHandler), Traces: sdktrace.NewTracerProvider(sdktrace.WithSpanProcessor(seen)),
	})
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	r.Header.Set("Traceparent", "00-"+trace+"-00f067aa0ba902b7-01")
	h.ServeHTTP(httptest.NewRecorder(), r)
	for _, s := range seen.Ended() {
		if s.SpanContext().TraceID().String() != trace {
			t.Errorf("%s is in a trace of its own", s.Name())
		}
	}
	return seen.Ended()
}

func names(spans []sdktrace.ReadOnlySpan) (names []string) {
	for _, s := range spans {
		names = append(names, s.Name())
	}
	return names
}

func TestEachStepOfAVerbIsInItsCallersTrace(t *testing.T) {
	e := engine.NewWorld(t).Engine()
	put, err := json.Marshal(engine.PutRequest)
	if err != nil {
		t.Fatal(err)
	}
	const volume = `{"pool":"rbd","image":"v1"`
	for _, c := range []struct {
		method, path, body string
		steps              []string // in the order in which they end
	}{
		{http.MethodPut, escache.PathReplica, string(put), []string{
			"wait for the volume", "wait for its turn", "create the replica", "PUT /v1/replica",
		}},
		{http.MethodPost, escache.PathDevConnect, volume + `,"epoch":1}`, []string{
			"wait for the volume", "bring the replica up", "wait for a current copy", "unmap the image and demote the replica",
			"map the image", "check the copy", "promote the replica", "make the device", "POST /v1/dev_connect",
		}},
		{http.MethodPost, escache.PathFlush, volume + `,"timeoutSeconds":5}`, []string{"write back", "POST /v1/flush"}},
		{http.MethodPost, escache.PathStop, volume + `}`, []string{
			"wait for the volume", "unmap the image and demote the replica", "remove the device", "POST /v1/stop",
		}},
		{http.MethodDelete, escache.PathReplica + "?pool=rbd&image=v1", "", []string{
			"wait for the volume", "wait for its turn", "unmap the image and demote the replica", "remove the replica", "DELETE /v1/replica",
		}},
	} {
		if got := names(traced(t, e, c.method, c.path, c.body)); !slices.Equal(got, c.steps) {
			t.Errorf("%s %s: %q,\nnot %q", c.method, c.path, got, c.steps)
		}
	}
}

func TestAVerbThatIsRefusedIsTracedWithItsCode(t *testing.T) {
	spans := traced(t, engine.NewWorld(t).Engine(), http.MethodPost, escache.PathStop, `{"pool":"rbd","image":"v9"}`)
	last := spans[len(spans)-1]
	if last.Name() != "POST /v1/stop" || last.Status().Code != codes.Error || last.Status().Description != string(escache.CodeNotFound) {
		t.Errorf("%s has the status %+v", last.Name(), last.Status())
	}
}

// TestTheExampleIsWhatEscachedDoes compares the trace in the docs with what is traced here. internal/node has
// the steps around it.
func TestTheExampleIsWhatEscachedDoes(t *testing.T) {
	spans := traced(t, engine.Detached(t, 2), http.MethodPost, escache.PathDevConnect, `{"pool":"rbd","image":"v1","imageID":"10ab","epoch":2}`)
	whole := example.Example(t, "../../../docs/troubleshooting.md")
	if got, want := example.Tree(spans, "escached"), whole.Below("escached dev_connect"); !slices.Equal(got, want) {
		t.Errorf("it is\n%s\nand docs/troubleshooting.md has\n%s", got, want)
	}
}
