// Package export sends the traces of a program to an OpenTelemetry collector.
package export

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"go.opentelemetry.io/otel/exporters/otlp/otlptrace/otlptracegrpc"
	"go.opentelemetry.io/otel/sdk/resource"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	semconv "go.opentelemetry.io/otel/semconv/v1.37.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/escache/escache-csi/internal/traces"
)

const (
	// queue is how many spans wait for the collector. More are dropped: nothing ever waits for room.
	queue = 2048
	// patience is how long one batch may take. A batch that fails is dropped, not sent again.
	patience = 5 * time.Second
	// lastPatience is how long the end of the process may wait for the last batch.
	lastPatience = time.Second
)

// Options say whose traces go where.
type Options struct {
	// Target is the HOST:PORT of a collector that speaks OTLP over gRPC, without TLS. "" means that
	// nothing is traced.
	Target string
	// Service and Version name the program. Node is the Kubernetes node on which it runs, "" if that
	// says nothing.
	Service, Version, Node string
	// Log is told when the collector cannot be reached, and when it can again.
	Log *slog.Logger
}

// New returns where a program's traces begin, nil if nothing is traced, and a function that sends the
// last ones. It does not wait for the collector.
func New(ctx context.Context, o Options) (trace.TracerProvider, func(), error) {
	if o.Target == "" {
		return nil, func() {}, nil
	}
	if err := traces.CheckTarget(o.Target); err != nil {
		return nil, nil, err
	}
	exporter, err := otlptracegrpc.New(ctx, otlptracegrpc.WithEndpoint(o.Target), otlptracegrpc.WithInsecure(),
		otlptracegrpc.WithTimeout(patience), otlptracegrpc.WithRetry(otlptracegrpc.RetryConfig{Enabled: false}))
	if err != nil {
		return nil, nil, fmt.Errorf("send traces to %s: %w", o.Target, err)
	}
	about := resource.NewSchemaless(semconv.ServiceName(o.Service), semconv.ServiceVersion(o.Version))
	if o.Node != "" {
		about, err = resource.Merge(about, resource.NewSchemaless(semconv.K8SNodeName(o.Node)))
		if err != nil {
			return nil, nil, fmt.Errorf("send traces to %s: %w", o.Target, err)
		}
	}
	provider, flush := newProvider(exporter, about, o)
	return provider, flush, nil
}

// newProvider returns a provider that never waits for its exporter, and what ends it.
func newProvider(exporter sdktrace.SpanExporter, about *resource.Resource, o Options) (*sdktrace.TracerProvider, func()) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithResource(about), sdktrace.WithBatcher(
		&telling{SpanExporter: exporter, target: o.Target, log: o.Log},
		sdktrace.WithMaxQueueSize(queue), sdktrace.WithExportTimeout(patience)))
	return provider, func() {
		ctx, cancel := context.WithTimeout(context.Background(), lastPatience)
		defer cancel()
		_ = provider.Shutdown(ctx) // what could not be sent is lost, and telling has said so
	}
}

// telling logs the first failure in a row and its end. OpenTelemetry would print each of them.
type telling struct {
	sdktrace.SpanExporter

	target string
	log    *slog.Logger
	failed bool // only ExportSpans uses it, and that is never called twice at once
}

// ExportSpans implements sdktrace.SpanExporter.
func (t *telling) ExportSpans(ctx context.Context, spans []sdktrace.ReadOnlySpan) error {
	err := t.SpanExporter.ExportSpans(ctx, spans)
	switch {
	case err != nil && !t.failed:
		t.log.WarnContext(ctx, "traces are lost: the collector does not take them", "collector", t.target, "error", err)
	case err == nil && t.failed:
		t.log.InfoContext(ctx, "the collector takes traces again", "collector", t.target)
	}
	t.failed = err != nil
	return nil
}
