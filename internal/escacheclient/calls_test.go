package escacheclient

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/getkin/kin-openapi/openapi3filter"
	"github.com/getkin/kin-openapi/routers"
	"github.com/getkin/kin-openapi/routers/legacy"

	"github.com/escache/escache-csi/api/escache"
)

// documented answers each call of a document with its example, and fails the test on a request that
// the document does not allow.
func documented(t *testing.T, file string) http.HandlerFunc {
	t.Helper()
	loader := openapi3.NewLoader()
	loader.IsExternalRefsAllowed = true
	loader.ReadFromURIFunc = func(_ *openapi3.Loader, u *url.URL) ([]byte, error) {
		return escache.Documents.ReadFile(path.Base(u.Path))
	}
	doc, err := loader.LoadFromURI(&url.URL{Path: file})
	if err != nil {
		t.Fatal(err)
	}
	doc.Servers = nil
	router, err := legacy.NewRouter(doc)
	if err != nil {
		t.Fatal(err)
	}
	return func(w http.ResponseWriter, r *http.Request) {
		route, params, err := router.FindRoute(r)
		if err != nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
			return
		}
		err = openapi3filter.ValidateRequest(r.Context(), &openapi3filter.RequestValidationInput{
			Request: r, PathParams: params, Route: route,
			Options: &openapi3filter.Options{AuthenticationFunc: openapi3filter.NoopAuthenticationFunc},
		})
		if err != nil {
			t.Errorf("%s %s: %v", r.Method, r.URL, err)
		}
		answerExample(t, w, route)
	}
}

func answerExample(t *testing.T, w http.ResponseWriter, route *routers.Route) {
	if route.Operation.Responses.Status(http.StatusNoContent) != nil {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	media := route.Operation.Responses.Status(http.StatusOK).Value.Content["application/json"]
	example := media.Example
	for name, e := range media.Examples {
		if name != "absent" {
			example = e.Value.Value
		}
	}
	data, err := (&openapi3.Example{Value: example}).MarshalJSON()
	if err != nil {
		t.Error(err)
	}
	data = bytes.TrimSuffix(bytes.TrimPrefix(data, []byte(`{"value":`)), []byte("}"))
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(data)
}

func TestCallsFollowTheDocument(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "s")
	listener, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var agent, asked string
	handler := documented(t, escache.OpenAPIFile)
	server := &http.Server{ReadHeaderTimeout: time.Second, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		data, _ := io.ReadAll(r.Body)
		r.Body = io.NopCloser(bytes.NewReader(data))
		agent, asked = r.UserAgent(), r.Method+" "+r.URL.RequestURI()+" "+strings.TrimSpace(string(data))
		handler(w, r)
	})}
	t.Cleanup(func() { _ = server.Close() })
	go func() { _ = server.Serve(listener) }()
	c, ctx := newClient(t, Options{UnixSocket: socket, UserAgent: "test/1"}), context.Background()
	nodes := []escache.ReplicaNode{{Name: "n1", Address: "10.0.0.1"}, {Name: "n2", Address: "10.0.0.2"}}
	volume := `"pool":"rbd","image":"csi-1"`
	for _, tc := range []struct {
		sent string
		call func() error
	}{
		{"GET /v1/node ", func() error { n, err := c.Node(ctx); return expect(err, n != nil && n.Kernel.DRBD != "") }},
		{"GET /v1/status ", func() error { s, err := c.Status(ctx); return expect(err, s != nil && len(s.Volumes) == 1) }},
		{"GET /v1/status?image=csi-1&pool=rbd ", func() error {
			v, err := c.VolumeStatus(ctx, ref)
			return expect(err, v != nil && v.State == escache.StateConnected && *v.DirtyBytes == 1<<20)
		}},
		{`PUT /v1/replica {` + volume + `,"sizeBytes":8192,"cacheBytes":4096,"nodes":[{"name":"n1","address":"10.0.0.1"},` +
			`{"name":"n2","address":"10.0.0.2"}],"port":7800,"minor":100}`, func() error {
			_, err := c.PutReplica(ctx, escache.ReplicaRequest{
				VolumeRef: ref, SizeBytes: 8192, CacheBytes: 4096, Nodes: nodes, Port: 7800, Minor: 100,
			})
			return err
		}},
		{"DELETE /v1/replica?image=csi-1&pool=rbd ", func() error { return c.DeleteReplica(ctx, ref) }},
		{"DELETE /v1/replica?discard=true&epoch=4&image=csi-1&pool=rbd ", func() error { return c.DiscardReplica(ctx, ref, 4) }},
		{`POST /v1/dev_connect {` + volume + `,"epoch":3,"options":{}}`, func() error {
			r, err := c.DevConnect(ctx, escache.ConnectRequest{VolumeRef: ref, Epoch: 3})
			return expect(err, r != nil && r.Device == "/dev/escache/rbd/csi-1")
		}},
		{`POST /v1/flush {` + volume + `,"timeoutSeconds":1}`, func() error {
			_, err := c.Flush(ctx, escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 1})
			return err
		}},
		{`POST /v1/stop {` + volume + `,"epoch":3}`, func() error { return c.Stop(ctx, escache.StopRequest{VolumeRef: ref, Epoch: 3}) }},
		{`POST /v1/mode {` + volume + `,"mode":"writethrough"}`, func() error {
			return c.SetMode(ctx, escache.ModeRequest{VolumeRef: ref, Mode: escache.ModeWritethrough})
		}},
		{`POST /v1/options {` + volume + `,"epoch":4,"options":{"maxDirtyAgeSeconds":30}}`, func() error {
			r, err := c.SetOptions(ctx, escache.OptionsRequest{
				VolumeRef: ref, Epoch: 4, Options: escache.CacheOptions{MaxDirtyAgeSeconds: 30},
			})
			return expect(err, r != nil && r.Options.MaxDirtyAgeSeconds == 300)
		}},
		{`POST /v1/hold {` + volume + `,"maxSeconds":20}`, func() error {
			h, err := c.Hold(ctx, escache.HoldRequest{VolumeRef: ref, MaxSeconds: 20})
			return expect(err, h != nil && h.HeldUntil.Year() == 2026)
		}},
		{`POST /v1/release {` + volume + `}`, func() error { return c.Release(ctx, escache.ReleaseRequest{VolumeRef: ref}) }},
		{`POST /v1/resize {` + volume + `,"sizeBytes":8192}`, func() error {
			return c.Resize(ctx, escache.ResizeRequest{VolumeRef: ref, SizeBytes: 8192})
		}},
		{`POST /v1/abandon {` + volume + `,"epoch":4}`, func() error { return c.Abandon(ctx, ref, 4) }},
		{`POST /v1/map {` + volume + `,"imageID":"10ab","readOnly":true}`, func() error {
			m, err := c.Map(ctx, escache.MapRequest{VolumeRef: ref, ImageID: "10ab", ReadOnly: true})
			return expect(err, m != nil && m.Device == "/dev/rbd3")
		}},
		{`POST /v1/unmap {` + volume + `}`, func() error { return c.Unmap(ctx, ref) }},
	} {
		t.Run(tc.sent[:strings.Index(tc.sent[5:], " ")+5], func(t *testing.T) {
			if err := tc.call(); err != nil {
				t.Error(err)
			}
			if asked != tc.sent {
				t.Errorf("sent %s\nwant %s", asked, tc.sent)
			}
			if agent != "test/1" {
				t.Errorf("user agent %q", agent)
			}
		})
	}
}

func expect(err error, ok bool) error {
	if err == nil && !ok {
		return errors.New("the answer's content is lost")
	}
	return err
}

func TestStatusOfAnotherVolumeIsNoAnswer(t *testing.T) {
	for _, answer := range []string{`{"volumes":[]}`, `{"volumes":[{"pool":"rbd","image":"csi-2"}]}`} {
		client, _ := serve(t, Options{}, body(200, "application/json", answer))
		_, err := client.VolumeStatus(context.Background(), ref)
		if _, strange := errors.AsType[*UnexpectedAnswerError](err); !strange {
			t.Errorf("%s: %v", answer, err)
		}
	}
}

// patience is short only where no answer comes: a busy machine takes its time for one.
func patience(answer string) time.Duration {
	if answer == noAnswer {
		return 300 * time.Millisecond
	}
	return 20 * time.Second
}

const noAnswer = "no answer"

func TestArbiterGrantsOnlyWith204(t *testing.T) {
	asked := escache.OutdatePeerRequest{VolumeRef: ref, ImageID: "10d2", Node: "n1", Peer: "n2", Epoch: 3}
	for _, tc := range []struct {
		name   string
		answer http.HandlerFunc
		grants bool
	}{
		{"204", documented(t, escache.ArbiterFile), true},
		{"200", body(200, "application/json", "{}"), false},
		{"refused", problem(escache.CodeFencingRefused), false},
		{"an error that is none of ours", body(404, "text/plain", "no such page"), false},
		{"connection lost", hangUp, false},
		{noAnswer, hang(time.Minute), false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			listener, err := net.Listen("unix", socket)
			if err != nil {
				t.Fatal(err)
			}
			server := &http.Server{Handler: tc.answer, ReadHeaderTimeout: time.Second}
			t.Cleanup(func() { _ = server.Close() })
			go func() { _ = server.Serve(listener) }()
			arbiter, err := NewArbiter("unix://"+socket, TLSFiles{}, patience(tc.name))
			if err != nil {
				t.Fatal(err)
			}
			if err := arbiter.OutdatePeer(context.Background(), asked); (err == nil) != tc.grants {
				t.Error(err)
			}
			self := escache.OutdateSelfRequest{VolumeRef: ref, ImageID: "10d2", Node: "n1", Peer: "n2"}
			if err := arbiter.OutdateSelf(context.Background(), self); (err == nil) != tc.grants {
				t.Error(err)
			}
		})
	}
}

func TestARecordIsOnlyACompleteAnswerAboutTheVolumeAskedFor(t *testing.T) {
	asked := escache.VolumeRef{Pool: "rbd", Image: "csi-1"}
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		known  bool
	}{
		"the record":      {documented(t, escache.ArbiterFile), true},
		"another volume":  {body(200, "application/json", `{"pool":"rbd","image":"csi-2","epoch":9,"outdated":["n1"]}`), false},
		"nothing":         {body(204, "application/json", ""), false},
		"no such volume":  {problem(escache.CodeNotFound), false},
		"cut off":         {body(200, "application/json", `{"pool":"rbd"`), false},
		"connection lost": {hangUp, false},
		noAnswer:          {hang(time.Minute), false},
	} {
		server := httptest.NewServer(tc.answer)
		t.Cleanup(server.Close)
		arbiter, err := NewArbiter(server.URL, TLSFiles{}, patience(name))
		if err != nil {
			t.Fatal(err)
		}
		record, err := arbiter.Record(context.Background(), asked)
		if (err == nil) != tc.known || tc.known != (record.Epoch > 0) {
			t.Errorf("%s: %+v, %v", name, record, err)
		}
	}
}

func TestArbiterAddresses(t *testing.T) {
	files := tlsFiles(t)
	ca := newAuthority(t)
	write(t, files, ca, issue(t, ca, "client"))
	for address, ok := range map[string]bool{
		"unix:///run/a.sock": true, "http://10.0.0.1:80": true, "https://10.0.0.1:443": true,
		"unix://run/a.sock": false, "unix://": false, "10.0.0.1:80": false, "": false, "ftp://10.0.0.1": false,
	} {
		if _, err := NewArbiter(address, files, time.Second); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
}

func TestOptionsAreChecked(t *testing.T) {
	files := TLSFiles{CA: "/ca", Cert: "/cert", Key: "/key"}
	for _, tc := range []struct {
		name string
		opts Options
		ok   bool
	}{
		{"https with files", Options{BaseURL: "https://10.0.0.1:7443", TLS: files}, true},
		{"socket", Options{UnixSocket: "/run/s"}, true},
		{"http on the loopback", Options{BaseURL: "http://127.0.0.1:1"}, true},
		{"http allowed", Options{BaseURL: "http://10.0.0.1:1", AllowPlaintext: true}, true},
		{"http elsewhere", Options{BaseURL: "http://10.0.0.1:1"}, false},
		{"nothing", Options{}, false},
		{"both", Options{BaseURL: "http://127.0.0.1:1", UnixSocket: "/run/s"}, false},
		{"https without a key", Options{BaseURL: "https://10.0.0.1:1", TLS: TLSFiles{CA: "/ca", Cert: "/cert"}}, false},
		{"a relative socket", Options{UnixSocket: "run/s"}, false},
		{"a path in the URL", Options{BaseURL: "http://127.0.0.1:1/v1"}, false},
		{"a password in the URL", Options{BaseURL: "http://u:p@127.0.0.1:1"}, false},
		{"no scheme", Options{BaseURL: "127.0.0.1:1"}, false},
		{"a negative timeout", Options{UnixSocket: "/run/s", Timeout: Timeouts{Query: -1}}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			err := tc.opts.Validate()
			if (err == nil) != tc.ok {
				t.Error(err)
			}
			if err != nil && strings.Contains(err.Error(), "u:p@") {
				t.Errorf("the password is shown: %v", err)
			}
		})
	}
}
