// Package traces tells OpenTelemetry what a call consists of: its steps, the calls to escached and the
// programs that it runs.
//
// Whether a call is traced is known from its context. Outside a trace every function here does
// nothing and allocates nothing. What goes into a step leaves the host: names, numbers and codes, but
// never a request, the input or output of a program, or the text of an error. Only the span of a CSI call
// has its error's message, which Kubernetes shows in an Event, too.
package traces

import (
	"context"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// scope is the name of the instrumentation.
const scope = "github.com/escache/escache-csi"

// Step is one stretch of work in a trace. The zero Step is part of no trace.
type Step struct{ span trace.Span }

// On reports whether the work of this context is traced.
func On(ctx context.Context) bool { return trace.SpanFromContext(ctx).IsRecording() }

// Begin begins a step of the work in ctx. The step ends with End or Done.
func Begin(ctx context.Context, name string) (context.Context, Step) {
	return begin(ctx, name, "", trace.SpanKindInternal)
}

// Call begins a step that waits for another service, which gets the trace from Send.
func Call(ctx context.Context, service, call string) (context.Context, Step) {
	return begin(ctx, service, call, trace.SpanKindClient)
}

func begin(ctx context.Context, name, call string, kind trace.SpanKind) (context.Context, Step) {
	above := trace.SpanFromContext(ctx)
	if !above.IsRecording() {
		return ctx, Step{}
	}
	if call != "" {
		name += " " + call
	}
	ctx, span := above.TracerProvider().Tracer(scope).Start(ctx, name, trace.WithSpanKind(kind)) //nolint:spancheck // the Step ends it
	return ctx, Step{span}                                                                       //nolint:spancheck // see above
}

// Note adds a fact to the step that ctx is in.
func Note(ctx context.Context, key, value string) {
	if span := trace.SpanFromContext(ctx); span.IsRecording() {
		span.SetAttributes(attribute.String(key, value))
	}
}

// Set adds a fact to the step.
func (s Step) Set(key, value string) {
	if s.span != nil {
		s.span.SetAttributes(attribute.String(key, value))
	}
}

// SetInt adds a number to the step.
func (s Step) SetInt(key string, value int) {
	if s.span != nil {
		s.span.SetAttributes(attribute.Int(key, value))
	}
}

// Fail marks the step as failed. The reason is a code or a word, never the text of an error.
func (s Step) Fail(reason string) {
	if s.span != nil {
		s.span.SetStatus(codes.Error, reason)
	}
}

// End ends the step.
func (s Step) End() {
	if s.span != nil {
		s.span.End()
	}
}

// Done ends the step, and marks it as failed if there is an error. A function with a named result
// defers it: defer step.Done(&err).
func (s Step) Done(err *error) {
	if s.span == nil {
		return
	}
	if *err != nil {
		s.Fail("")
	}
	s.span.End()
}

// Send puts the trace of ctx, if there is one, into the headers of a request.
func Send(ctx context.Context, headers http.Header) {
	propagation.TraceContext{}.Inject(ctx, propagation.HeaderCarrier(headers))
}

// Receive begins the step that answers a request, in the trace of its headers. A request that only
// reads begins no trace of its own: such requests are repeated all the time. With a nil provider
// nothing is traced.
func Receive(r *http.Request, provider trace.TracerProvider, name string) (*http.Request, Step) {
	if provider == nil {
		return r, Step{}
	}
	ctx := propagation.TraceContext{}.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
	if r.Method == http.MethodGet && !trace.SpanContextFromContext(ctx).IsValid() {
		return r, Step{}
	}
	ctx, span := provider.Tracer(scope).Start(ctx, name, trace.WithSpanKind(trace.SpanKindServer)) //nolint:spancheck // the Step ends it
	return r.WithContext(ctx), Step{span}                                                          //nolint:spancheck // see above
}
