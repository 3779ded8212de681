package overview

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"
)

// start serves records quickly, to the token "viewer".
func start(t *testing.T, m *many, now func() time.Time, change ...func(*Server)) *httptest.Server {
	t.Helper()
	api := admitting(func() bool { return true })
	c := testConfig(m, api)
	c.Now = now
	s := New(c)
	s.pace = pace{tick: 5 * time.Millisecond, beat: 10 * time.Millisecond, life: time.Minute, write: 5 * time.Second}
	for _, f := range change {
		f(s)
	}
	served := httptest.NewServer(s.Handler())
	t.Cleanup(served.Close)
	return served
}

// admitting is an API server that knows the token "viewer" as long as it is allowed.
func admitting(allowed func() bool) client.Client {
	return fake.NewClientBuilder().WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			switch r := o.(type) {
			case *authenticationv1.TokenReview:
				r.Status.Authenticated = r.Spec.Token == "viewer" && allowed()
			case *authorizationv1.SubjectAccessReview:
				r.Status.Allowed = true
			}
			return nil
		},
	}).Build()
}

// window is a browser's, which reads events.
type window struct {
	*http.Response

	lines *bufio.Scanner
}

func open(t *testing.T, address string, header ...string) window {
	t.Helper()
	r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, address, nil)
	r.Header.Set("Authorization", "Bearer viewer")
	if len(header) > 0 {
		r.Header.Set(header[0], header[1])
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { answer.Body.Close() })
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 1<<20)
	return window{answer, lines}
}

// next returns the next event; an empty one at the end of the stream.
func (w window) next() (event, id, data string) {
	for w.lines.Scan() {
		key, value, _ := strings.Cut(w.lines.Text(), ": ")
		switch key {
		case "event":
			event = value
		case "id":
			id = value
		case "data":
			data = value
		case "":
			return event, id, data
		}
	}
	return "", "", ""
}

// news returns the next news, past beats.
func (w window) news(t *testing.T) news {
	t.Helper()
	for {
		event, id, data := w.next()
		switch event {
		case "news":
			n := news{}
			if err := json.Unmarshal([]byte(data), &n); err != nil || n.ID != id {
				t.Fatalf("%v: %q: %s", err, id, data)
			}
			return n
		case "":
			t.Fatal("the stream has ended")
		}
	}
}

func TestNewsComeAsTheyHappen(t *testing.T) {
	m, c := newMany(), &clock{at: time.Now()}
	s := start(t, m, c.now)
	w := open(t, s.URL+"/events")
	if h := w.Header; h.Get("Content-Type") != "text/event-stream" || h.Get("X-Accel-Buffering") != "no" || h.Get("Cache-Control") != "no-store" {
		t.Errorf("header %v", h)
	}
	all := w.news(t)
	if len(all.Lists["volumes"]) != mostVolumes || all.Parts["volumes-pvc-00107"] == "" {
		t.Errorf("at first not all: %d volumes", len(all.Lists["volumes"]))
	}
	m.write(107, 7<<30)
	c.pass(fresh)
	if n := w.news(t); n.ID == all.ID || !strings.Contains(string(n.Parts["volumes-pvc-00107"]), "7Gi") || len(n.Parts) > 3 {
		t.Errorf("%+v", n)
	}
	event, id, _ := w.next()
	for _, known := range []window{open(t, s.URL+"/events?after="+id), open(t, s.URL+"/events", "Last-Event-ID", id)} {
		if again, same, data := known.next(); event != "beat" || again != "beat" || same != id {
			t.Errorf("a window that has everything is sent %s %s %.200s", again, same, data)
		}
	}
}

func TestWhoAsksNowAndThenGetsOnlyWhatHasChanged(t *testing.T) {
	m, c := newMany(), &clock{at: time.Now()}
	s := start(t, m, c.now)
	first := open(t, s.URL+"/live")
	id := first.Header.Get("ETag")
	if again := open(t, s.URL+"/live", "If-None-Match", id); first.StatusCode != http.StatusOK || again.StatusCode != http.StatusNotModified {
		t.Errorf("%d, then %d", first.StatusCode, again.StatusCode)
	}
	m.write(1, 1)
	c.pass(fresh)
	if changed := open(t, s.URL+"/live", "If-None-Match", id); changed.StatusCode != http.StatusOK || changed.Header.Get("ETag") == id {
		t.Errorf("after a change: %d, %s", changed.StatusCode, changed.Header.Get("ETag"))
	}
}

func TestStreamsAreFewAndEnd(t *testing.T) {
	m := newMany()
	var server *Server
	s := start(t, m, time.Now, func(s *Server) { server, s.streams = s, make(chan struct{}, 1) })
	w := open(t, s.URL+"/events")
	w.news(t)
	if second := open(t, s.URL+"/events"); second.StatusCode != http.StatusServiceUnavailable || second.Header.Get("Retry-After") == "" {
		t.Errorf("one too many: %d", second.StatusCode)
	}
	if asked := open(t, s.URL+"/live"); asked.StatusCode != http.StatusOK {
		t.Errorf("it may not ask either: %d", asked.StatusCode)
	}
	server.end() // as a shutdown does
	for event := "beat"; event != ""; {
		event, _, _ = w.next()
	}
	waitUntil(t, func() bool { return len(server.streams) == 0 })
}

func TestAStreamEndsWithItsTimeAndItsToken(t *testing.T) {
	short := start(t, newMany(), time.Now, func(s *Server) { s.pace.life = 30 * time.Millisecond })
	for w, event := open(t, short.URL+"/events"), "beat"; event != ""; {
		event, _, _ = w.next()
	}
	c := &clock{at: time.Now()}
	var withdrawn atomic.Bool
	s := start(t, newMany(), c.now, func(s *Server) { s.access.api = admitting(func() bool { return !withdrawn.Load() }) })
	w := open(t, s.URL+"/events")
	w.news(t)
	withdrawn.Store(true)
	c.pass(verdictTime)
	for event := "beat"; event != ""; {
		event, _, _ = w.next()
	}
}

// TestAQuietStreamLives: the time for one piece is not the time until the next one. HTTP/2 takes a deadline for
// a limit of the whole answer.
func TestAQuietStreamLives(t *testing.T) {
	s := New(testConfig(newMany(), admitting(func() bool { return true })))
	s.pace = pace{tick: 5 * time.Millisecond, beat: 2500 * time.Millisecond, life: time.Minute, write: 2 * time.Second}
	for _, version := range []int{1, 2} {
		served := httptest.NewUnstartedServer(s.Handler())
		served.EnableHTTP2 = version == 2
		served.Config.WriteTimeout = time.Minute
		served.StartTLS()
		t.Cleanup(served.Close)
		r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, served.URL+"/events", nil)
		r.Header.Set("Authorization", "Bearer viewer")
		answer, err := served.Client().Do(r)
		if err != nil || answer.ProtoMajor != version {
			t.Fatal(err, answer)
		}
		defer answer.Body.Close()
		w := window{answer, bufio.NewScanner(answer.Body)}
		w.lines.Buffer(nil, 1<<20)
		w.news(t)
		for n := range 2 {
			if event, _, _ := w.next(); event != "beat" {
				t.Errorf("HTTP/%d: after %d beats: %q", version, n, event)
			}
		}
	}
}

// TestNothingRunsOnAfterwards ends the server while streams are open, also one that nobody reads.
func TestNothingRunsOnAfterwards(t *testing.T) {
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	free.Close()
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	c := testConfig(newMany(), admitting(func() bool { return true }))
	c.Address = free.Addr().String()
	s := New(c)
	ended := make(chan error)
	go func() { ended <- s.Start(ctx) }()
	waitUntil(t, func() bool {
		answer, err := http.Get("http://" + c.Address + "/page.css")
		return err == nil && answer.Body.Close() == nil
	})
	read, unread := open(t, "http://"+c.Address+"/events"), open(t, "http://"+c.Address+"/events")
	read.news(t)
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	read.Body.Close()
	unread.Body.Close()
	http.DefaultClient.CloseIdleConnections()
	waitUntil(t, func() bool { return runtime.NumGoroutine() <= before })
	c.Address = "127.0.0.1:1x"
	if err := New(c).Start(t.Context()); err == nil {
		t.Error("it serves at an address that is none")
	}
}

// pipes are connections without a buffer.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if c, ok := <-p; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return &net.TCPAddr{} }

// TestABrowserThatDoesNotReadIsLeft: what it does not take within the time for one piece ends its stream.
func TestABrowserThatDoesNotReadIsLeft(t *testing.T) {
	s := New(testConfig(newMany(), admitting(func() bool { return true })))
	s.pace.write = 2 * time.Second
	here, there := net.Pipe()
	listener := make(pipes, 1)
	listener <- there
	server := &http.Server{Handler: s.Handler(), WriteTimeout: time.Hour}
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(func() { close(listener); server.Close(); here.Close() })
	if _, err := here.Write([]byte("GET /events HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer viewer\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := here.Read(make([]byte, 1)); err != nil { // it has begun
		t.Fatal(err)
	}
	waitUntil(t, func() bool { return len(s.streams) == 0 })
}

func waitUntil(t *testing.T, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			buffer := make([]byte, 1<<16)
			t.Fatalf("not within 10 s\n%s", buffer[:runtime.Stack(buffer, true)])
		}
	}
}
