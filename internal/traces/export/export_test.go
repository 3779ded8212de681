package export

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"

	"github.com/escache/escache-csi/test/tracetest"
)

// hanging is an exporter whose collector never answers, whatever its deadline is.
type hanging struct{ end chan struct{} }

func (h hanging) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { <-h.end; return nil }
func (h hanging) Shutdown(context.Context) error                             { <-h.end; return nil }

func TestACollectorThatHangsKeepsNothingWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time goes by only while everything waits
		h := hanging{end: make(chan struct{})}
		provider, flush := newProvider(h, resource.Empty(), Options{Log: slog.New(slog.DiscardHandler)})
		begun := time.Now()
		for range 3 * queue {
			_, span := provider.Tracer("test").Start(t.Context(), "work")
			span.End()
		}
		if took := time.Since(begun); took != 0 {
			t.Errorf("the work waited %s for the collector", took)
		}
		begun = time.Now()
		flush()
		if took := time.Since(begun); took != lastPatience {
			t.Errorf("the end of the process waited %s for the collector", took)
		}
		close(h.end)
	})
}

func TestNothingIsTracedWithoutACollector(t *testing.T) {
	provider, flush, err := New(t.Context(), Options{})
	if err != nil || provider != nil {
		t.Errorf("provider %v, error %v", provider, err)
	}
	flush()
	if _, _, err := New(t.Context(), Options{Target: "http://otel:4317"}); err == nil {
		t.Error("a URL is taken for HOST:PORT")
	}
}

func TestTracesArriveAtTheCollectorWhenTheProcessEnds(t *testing.T) {
	seen := tracetest.New(t)
	provider, flush, err := New(t.Context(), Options{
		Target: seen.Address, Service: "csi-node", Version: "v1", Node: "n1", Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	_, span := provider.Tracer("test").Start(t.Context(), "work")
	span.End()
	flush()
	if got := seen.Await(1); len(got) != 1 || got[0].GetName() != "work" {
		t.Errorf("arrived: %s", seen)
	}
}

// changing is an exporter whose next call ends with err.
type changing struct {
	sdktrace.SpanExporter

	err error
}

func (c *changing) ExportSpans(context.Context, []sdktrace.ReadOnlySpan) error { return c.err }

func TestLostTracesAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	c := &changing{}
	tell := &telling{SpanExporter: c, target: "otel:4317", log: slog.New(slog.NewTextHandler(&log, nil))}
	down := errors.New("connection refused")
	for _, c.err = range []error{nil, down, down, nil, nil, down} {
		if err := tell.ExportSpans(t.Context(), nil); err != nil {
			t.Error(err)
		}
	}
	if lost, again := strings.Count(log.String(), "traces are lost"), strings.Count(log.String(), "traces again"); lost != 2 || again != 1 {
		t.Errorf("logged:\n%s", &log)
	}
}
