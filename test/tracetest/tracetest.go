// Package tracetest is an OpenTelemetry collector for tests: it keeps what it is sent.
package tracetest

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"slices"
	"sync"
	"testing"
	"time"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	common "go.opentelemetry.io/proto/otlp/common/v1"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/grpc"
)

// Collector listens on the loopback interface until its test ends.
type Collector struct {
	collector.UnimplementedTraceServiceServer

	// Address is its HOST:PORT.
	Address string

	mu    sync.Mutex
	spans []*trace.Span
}

// New starts a collector.
func New(t *testing.T) *Collector {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c, server := &Collector{Address: listener.Addr().String()}, grpc.NewServer()
	collector.RegisterTraceServiceServer(server, c)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	return c
}

// Export implements the collector's TraceService.
func (c *Collector) Export(_ context.Context, r *collector.ExportTraceServiceRequest) (*collector.ExportTraceServiceResponse, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, resource := range r.GetResourceSpans() {
		for _, scope := range resource.GetScopeSpans() {
			c.spans = append(c.spans, scope.GetSpans()...)
		}
	}
	return &collector.ExportTraceServiceResponse{}, nil
}

// Spans are those that have arrived.
func (c *Collector) Spans() []*trace.Span {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Clone(c.spans)
}

// Await returns the spans once so many have arrived, or after a minute. A process that ends does not wait for as long.
func (c *Collector) Await(n int) []*trace.Span {
	for deadline := time.Now().Add(time.Minute); len(c.Spans()) < n && time.Now().Before(deadline); {
		time.Sleep(10 * time.Millisecond)
	}
	return c.Spans()
}

// Path returns the names from the root of a trace down to a span with this name, nil if there is none.
func (c *Collector) Path(name string) []string {
	all := c.Spans()
	at := slices.IndexFunc(all, func(s *trace.Span) bool { return s.GetName() == name })
	var path []string
	for at >= 0 {
		s := all[at]
		path = append([]string{s.GetName()}, path...)
		at = slices.IndexFunc(all, func(above *trace.Span) bool {
			return bytes.Equal(above.GetTraceId(), s.GetTraceId()) && bytes.Equal(above.GetSpanId(), s.GetParentSpanId())
		})
	}
	return path
}

// Attribute returns an attribute of a span as text, "" if the span does not have it.
func Attribute(s *trace.Span, key string) string {
	i := slices.IndexFunc(s.GetAttributes(), func(a *common.KeyValue) bool { return a.GetKey() == key })
	if i < 0 {
		return ""
	}
	switch value := s.GetAttributes()[i].GetValue().GetValue().(type) {
	case *common.AnyValue_StringValue:
		return value.StringValue
	case *common.AnyValue_IntValue:
		return fmt.Sprint(value.IntValue)
	}
	return s.GetAttributes()[i].GetValue().String()
}

// String is all that was collected.
func (c *Collector) String() string { return fmt.Sprint(c.Spans()) }
