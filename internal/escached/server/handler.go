package server

import (
	"cmp"
	"context"
	"encoding/json"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.opentelemetry.io/otel/trace"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/exported"
	"github.com/escache/escache-csi/internal/traces"
)

// Engine implements the API's verbs on this host.
type Engine interface {
	// HostID identifies this host. It is empty before Recover has read it.
	HostID() string
	Node(ctx context.Context) (escache.Node, error)
	Status(ctx context.Context, ref *escache.VolumeRef) (escache.Status, error)
	PutReplica(ctx context.Context, req escache.ReplicaRequest) error
	// DeleteReplica drops dirty data only if discardUpTo is given: that of attachments up to this
	// epoch.
	DeleteReplica(ctx context.Context, ref escache.VolumeRef, discardUpTo *int64) error
	DevConnect(ctx context.Context, req escache.ConnectRequest) (escache.ConnectResponse, error)
	Flush(ctx context.Context, req escache.FlushRequest) (escache.FlushResponse, error)
	Stop(ctx context.Context, req escache.StopRequest) error
	SetMode(ctx context.Context, req escache.ModeRequest) error
	SetOptions(ctx context.Context, req escache.OptionsRequest) (escache.OptionsResponse, error)
	Hold(ctx context.Context, req escache.HoldRequest) (escache.HoldResponse, error)
	Release(ctx context.Context, req escache.ReleaseRequest) error
	Resize(ctx context.Context, req escache.ResizeRequest) error
	Trim(ctx context.Context, req escache.TrimRequest) (escache.TrimResponse, error)
	Abandon(ctx context.Context, req escache.AbandonRequest) error
	// Map and Unmap are for images that are used without a cache.
	Map(ctx context.Context, req escache.MapRequest) (escache.MapResponse, error)
	Unmap(ctx context.Context, req escache.UnmapRequest) error

	// WatchHolds ends holds whose time is up, until ctx ends. The server calls it before Recover.
	WatchHolds(ctx context.Context)
	// Recover reads the state of this host after a start. The server repeats it until it succeeds,
	// and calls no verb that changes something before that.
	Recover(ctx context.Context) error
	// Watch runs the engine's background work until ctx ends. The server calls it after Recover.
	Watch(ctx context.Context)
	// Collectors returns the engine's metrics.
	Collectors() []prometheus.Collector
}

// call is one operation of the API. It parses the request, runs the verb and returns the body of
// the answer, nil for 204.
type call func(r *http.Request) (any, error)

// api routes requests to verbs.
type api struct {
	engine  Engine
	log     *slog.Logger
	metrics *measures
	// certificateEnd is as in TCP.
	certificateEnd func() time.Time
	traces         trace.TracerProvider // nil if nothing is traced
	admit          clients
	// ready waits until the engine knows what is on this host. At the end of its context it returns
	// why the engine does not know it yet.
	ready func(ctx context.Context) error
	// routes maps paths, then methods, to calls.
	routes map[string]map[string]call
}

func newAPI(v Engine, m *measures, admit clients, ready func(ctx context.Context) error, seen Seen) *api {
	a := &api{engine: v, log: seen.Log, traces: seen.Traces, metrics: m, admit: admit, ready: ready}
	a.routes = map[string]map[string]call{
		escache.PathNode:   {http.MethodGet: a.node},
		escache.PathStatus: {http.MethodGet: a.status},
		escache.PathReplica: {
			http.MethodPut: body(checkReplica, func(ctx context.Context, req escache.ReplicaRequest) (any, error) {
				return nil, v.PutReplica(ctx, req)
			}),
			http.MethodDelete: a.deleteReplica,
		},
		escache.PathDevConnect: {http.MethodPost: body(checkConnect, func(ctx context.Context, req escache.ConnectRequest) (any, error) {
			return v.DevConnect(ctx, req)
		})},
		escache.PathFlush: {http.MethodPost: body(func(req escache.FlushRequest) error {
			return cmp.Or(checkCall(req.VolumeRef, req.Epoch), checkSeconds("timeoutSeconds", req.TimeoutSeconds, 86400))
		}, func(ctx context.Context, req escache.FlushRequest) (any, error) { return v.Flush(ctx, req) })},
		escache.PathStop: {http.MethodPost: body(func(req escache.StopRequest) error { return checkCall(req.VolumeRef, req.Epoch) },
			func(ctx context.Context, req escache.StopRequest) (any, error) { return nil, v.Stop(ctx, req) })},
		escache.PathMode: {http.MethodPost: body(func(req escache.ModeRequest) error {
			return cmp.Or(checkCall(req.VolumeRef, req.Epoch), checkMode(req.Mode))
		}, func(ctx context.Context, req escache.ModeRequest) (any, error) { return nil, v.SetMode(ctx, req) })},
		escache.PathOptions: {http.MethodPost: body(func(req escache.OptionsRequest) error {
			return cmp.Or(checkRef(req.VolumeRef), checkEpoch(req.Epoch), checkOptions(req.Options))
		}, func(ctx context.Context, req escache.OptionsRequest) (any, error) { return v.SetOptions(ctx, req) })},
		escache.PathHold: {http.MethodPost: body(func(req escache.HoldRequest) error {
			return cmp.Or(checkCall(req.VolumeRef, req.Epoch), checkSeconds("maxSeconds", req.MaxSeconds, 3600))
		}, func(ctx context.Context, req escache.HoldRequest) (any, error) { return v.Hold(ctx, req) })},
		escache.PathRelease: {http.MethodPost: body(func(req escache.ReleaseRequest) error { return checkCall(req.VolumeRef, req.Epoch) },
			func(ctx context.Context, req escache.ReleaseRequest) (any, error) { return nil, v.Release(ctx, req) })},
		escache.PathResize: {http.MethodPost: body(func(req escache.ResizeRequest) error {
			return cmp.Or(checkCall(req.VolumeRef, req.Epoch), checkBytes("sizeBytes", req.SizeBytes))
		}, func(ctx context.Context, req escache.ResizeRequest) (any, error) { return nil, v.Resize(ctx, req) })},
		escache.PathTrim: {http.MethodPost: body(checkTrim, func(ctx context.Context, req escache.TrimRequest) (any, error) {
			return v.Trim(ctx, req)
		})},
		escache.PathAbandon: {http.MethodPost: body(func(req escache.AbandonRequest) error {
			return cmp.Or(checkRef(req.VolumeRef), checkEpoch(req.Epoch))
		}, func(ctx context.Context, req escache.AbandonRequest) (any, error) { return nil, v.Abandon(ctx, req) })},
		escache.PathMap: {http.MethodPost: body(checkMap, func(ctx context.Context, req escache.MapRequest) (any, error) {
			return v.Map(ctx, req)
		})},
		escache.PathUnmap: {http.MethodPost: body(func(req escache.UnmapRequest) error { return checkRef(req.VolumeRef) },
			func(ctx context.Context, req escache.UnmapRequest) (any, error) { return nil, v.Unmap(ctx, req) })},
	}
	return a
}

// body returns the call for a verb whose request is a JSON body.
func body[T any](check func(T) error, do func(context.Context, T) (any, error)) call {
	return func(r *http.Request) (any, error) {
		if _, err := query(r); err != nil {
			return nil, err
		}
		var req T
		if err := decode(r, &req); err != nil {
			return nil, err
		}
		if err := check(req); err != nil {
			return nil, err
		}
		return do(r.Context(), req)
	}
}

func (a *api) node(r *http.Request) (any, error) {
	if _, err := query(r); err != nil {
		return nil, err
	}
	n, err := a.engine.Node(r.Context())
	now, cancel := context.WithCancel(r.Context())
	cancel()
	if why := a.ready(now); why != nil && err == nil {
		n.Healthy, n.Reasons = false, append(n.Reasons, why.Error())
	}
	if a.certificateEnd != nil {
		if end := a.certificateEnd(); !end.IsZero() {
			n.CertificateEnd = &end
		}
	}
	return n, err
}

func (a *api) status(r *http.Request) (any, error) {
	q, err := query(r, "pool", "image")
	if err != nil {
		return nil, err
	}
	if len(q) == 0 {
		return a.engine.Status(r.Context(), nil)
	}
	ref := escache.VolumeRef{Pool: q["pool"], Image: q["image"]}
	if err := checkRef(ref); err != nil {
		return nil, err
	}
	return a.engine.Status(r.Context(), &ref)
}

func (a *api) deleteReplica(r *http.Request) (any, error) {
	q, err := query(r, "pool", "image", "discard", "epoch")
	if err != nil {
		return nil, err
	}
	ref := escache.VolumeRef{Pool: q["pool"], Image: q["image"]}
	if err := checkRef(ref); err != nil {
		return nil, err
	}
	discard, err := discardOf(q)
	if err != nil {
		return nil, err
	}
	return nil, a.engine.DeleteReplica(r.Context(), ref, discard)
}

// ServeHTTP answers one request and logs it in one line.
func (a *api) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	start := time.Now()
	answer, err := a.serve(w, r)
	if id := a.engine.HostID(); id != "" {
		w.Header().Set(escache.HeaderHostID, id)
	}
	operation := r.Method + " " + r.URL.Path
	took := time.Since(start)
	attrs := []any{"took", took.Round(time.Millisecond)}
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		attrs = append(attrs, "client", r.TLS.PeerCertificates[0].Subject.CommonName)
	}
	if err == nil {
		a.metrics.done(operation, took, "")
		level := slog.LevelInfo
		if r.Method == http.MethodGet {
			level = slog.LevelDebug // status is polled all the time
		}
		a.log.Log(r.Context(), level, operation, attrs...)
		write(w, http.StatusOK, "application/json", answer)
		return
	}
	p := problem.Of(err)
	if p.Code == escache.CodeUnknownPath || p.Code == escache.CodeMethodNotAllowed || p.Code == escache.CodeForbidden {
		operation = "unknown" // otherwise each new path that a client makes up would add a metric
	}
	a.metrics.done(operation, took, string(p.Code))
	level := slog.LevelWarn
	if p.Status >= http.StatusInternalServerError {
		level = slog.LevelError
	}
	a.log.Log(r.Context(), level, operation, append(attrs, "code", p.Code, "detail", err)...)
	write(w, p.Status, escache.ProblemContentType, p)
}

func (a *api) serve(w http.ResponseWriter, r *http.Request) (any, error) {
	if err := a.admit.check(r); err != nil {
		return nil, err
	}
	methods, ok := a.routes[r.URL.Path]
	if !ok {
		return nil, problem.New(escache.CodeUnknownPath, "%s: the escache API v1 has no such path", r.URL.Path)
	}
	do, ok := methods[r.Method]
	if !ok {
		var allow []string
		for m := range methods {
			allow = append(allow, m)
		}
		slices.Sort(allow)
		w.Header().Set("Allow", strings.Join(allow, ", "))
		return nil, problem.New(escache.CodeMethodNotAllowed, "%s takes %s, not %s", r.URL.Path, strings.Join(allow, " or "), r.Method)
	}
	return a.answer(r, do)
}

// answer runs a call of the API, which is a step of its caller's trace.
func (a *api) answer(r *http.Request, do call) (any, error) {
	r, step := traces.Receive(r, a.traces, r.Method+" "+r.URL.Path)
	defer step.End()
	err := a.known(r)
	if err == nil {
		err = a.meant(r)
	}
	var answer any
	if err == nil {
		answer, err = do(r)
	}
	if err != nil {
		step.Fail(string(problem.Of(err).Code))
	}
	return answer, err
}

// known returns an error if the engine does not know yet what is on this host. Nothing may change
// then, and nothing be said of a volume: "absent" counts as proof that its device is gone.
func (a *api) known(r *http.Request) error {
	if r.URL.Path == escache.PathNode {
		return nil // it says itself what is missing
	}
	ctx := r.Context()
	if r.Method == http.MethodGet {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, queryPatience)
		defer cancel()
	}
	return a.ready(ctx)
}

// meant refuses a call that changes something if another host is meant: one that had this host's name or
// address before, or has it now.
func (a *api) meant(r *http.Request) error {
	want, here := r.Header.Get(escache.HeaderHostID), a.engine.HostID()
	if want == "" || r.Method == http.MethodGet || want == here {
		return nil
	}
	if here == "" {
		return problem.New(escache.CodeRecovering, "this host has not read its volume group yet, so it does not know whether it is meant")
	}
	return problem.New(escache.CodeOtherHost,
		"the call is for the host with id %q, and this one has id %q: another machine answers; nothing has changed", want, here)
}

func write(w http.ResponseWriter, status int, contentType string, answer any) {
	if answer == nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	data, err := json.Marshal(answer)
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n'))
}

// TCP is what a handler has to know of the listener with TLS.
type TCP struct {
	// Clients are the names of those who are served.
	Clients []string
	// CertificateEnd returns when the host's certificate ends, zero if there is none. nil: TLS is not
	// served.
	CertificateEnd func() time.Time
	// AuthorityEnd returns when the last authority of clients ends, zero if there is none. It goes with
	// CertificateEnd.
	AuthorityEnd func() time.Time
}

// Seen is where a handler tells what it does.
type Seen struct {
	Log *slog.Logger
	// Traces is where the traces of calls go, nil if nothing is traced.
	Traces trace.TracerProvider
}

// Handler serves the API, and the metrics at /metrics. Requests about volumes wait for ready, and
// fail with its error.
func Handler(engine Engine, tcp TCP, ready func(ctx context.Context) error, seen Seen) http.Handler {
	m := newMeasures()
	reg := prometheus.NewRegistry()
	reg.MustRegister(engine.Collectors()...)
	reg.MustRegister(m.seconds, m.failures,
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}), collectors.NewGoCollector())
	if tcp.CertificateEnd != nil {
		reg.MustRegister(exported.CertificateEnd("escached", "the host's", tcp.CertificateEnd),
			exported.AuthorityEnd("escached", "escached", "clients", tcp.AuthorityEnd))
	}
	metrics := promhttp.HandlerFor(reg, promhttp.HandlerOpts{MaxRequestsInFlight: 2})
	admit := clients(tcp.Clients)
	api := newAPI(engine, m, admit, ready, seen)
	api.certificateEnd = tcp.CertificateEnd
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/metrics" && r.Method == http.MethodGet && admit.check(r) == nil {
			metrics.ServeHTTP(w, r)
			return
		}
		api.ServeHTTP(w, r)
	})
}
