package server

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
)

// untouched is an engine whose verbs must not be called: each panics.
type untouched struct{ Engine }

func (untouched) Collectors() []prometheus.Collector { return nil }

func (untouched) HostID() string { return "disks-1" }

func (untouched) WatchHolds(context.Context) {}

func serve(t *testing.T, e Engine) http.Handler {
	t.Helper()
	return Handler(e, TCP{}, func(context.Context) error { return nil }, Seen{Log: slog.New(slog.DiscardHandler)})
}

func TestBadInputIsRefusedWithACodeAndReachesNoVerb(t *testing.T) {
	const good = `{"pool":"rbd","image":"v1","sizeBytes":67108864,"cacheBytes":33554432,"port":7800,"minor":100,` +
		`"nodes":[{"name":"n1","address":"10.0.0.1"},{"name":"n2","address":"10.0.0.2"}]}`
	with := func(old, replacement string) string {
		t.Helper()
		if !strings.Contains(good, old) {
			t.Fatalf("no %q in the good request", old)
		}
		return strings.Replace(good, old, replacement, 1)
	}
	type request struct{ method, path, body string }
	put := func(body string) request { return request{http.MethodPut, escache.PathReplica, body} }
	post := func(path, body string) request { return request{http.MethodPost, path, body} }
	get := func(path string) request { return request{http.MethodGet, path, ""} }
	for name, c := range map[string]struct {
		request

		want escache.Code
	}{
		"empty body":                  {put(""), escache.CodeInvalidRequest},
		"not JSON":                    {put("{"), escache.CodeInvalidRequest},
		"wrong type":                  {put(with(`"port":7800`, `"port":"7800"`)), escache.CodeInvalidRequest},
		"unknown field":               {put(with(`"port"`, `"colour":1,"port"`)), escache.CodeInvalidRequest},
		"two values":                  {put(good + "{}"), escache.CodeInvalidRequest},
		"body over 64 KiB":            {put(good + strings.Repeat(" ", maxBody)), escache.CodeInvalidRequest},
		"invalid UTF-8":               {put(with(`"v1"`, "\"v\xff\"")), escache.CodeInvalidRequest},
		"slash in the name":           {put(with(`"v1"`, `"a/b"`)), escache.CodeInvalidRequest},
		"leading dash":                {put(with(`"v1"`, `"-v"`)), escache.CodeInvalidRequest},
		"leading dot":                 {put(with(`"v1"`, `".."`)), escache.CodeInvalidRequest},
		"name too long":               {put(with(`"v1"`, `"`+strings.Repeat("a", 129)+`"`)), escache.CodeInvalidRequest},
		"shell in the name":           {put(with(`"rbd"`, `"$(reboot)"`)), escache.CodeInvalidRequest},
		"size no multiple of 4096":    {put(with("67108864", "67108865")), escache.CodeInvalidRequest},
		"size zero":                   {put(with("67108864", "0")), escache.CodeInvalidRequest},
		"cache too small":             {put(with("33554432", "4096")), escache.CodeInvalidRequest},
		"replica on one node":         {put(with(`"n2","address":"10.0.0.2"`, `"n1","address":"10.0.0.1"`)), escache.CodeInvalidRequest},
		"one node only":               {put(with(`,{"name":"n2","address":"10.0.0.2"}`, "")), escache.CodeInvalidRequest},
		"address is a name":           {put(with(`"10.0.0.2"`, `"n2.example"`)), escache.CodeInvalidRequest},
		"bad image id":                {put(with(`"port"`, `"imageID":"a b","port"`)), escache.CodeInvalidRequest},
		"epoch zero":                  {post(escache.PathDevConnect, `{"pool":"rbd","image":"v1","epoch":0}`), escache.CodeInvalidRequest},
		"unknown mode":                {post(escache.PathMode, `{"pool":"rbd","image":"v1","mode":"off"}`), escache.CodeInvalidRequest},
		"stop of a negative epoch":    {post(escache.PathStop, `{"pool":"rbd","image":"v1","epoch":-1}`), escache.CodeInvalidRequest},
		"replica of a negative epoch": {put(with(`"port"`, `"epoch":-1,"port"`)), escache.CodeInvalidRequest},
		"options of epoch zero": {
			post(escache.PathOptions, `{"pool":"rbd","image":"v1","epoch":0,"options":{}}`), escache.CodeInvalidRequest,
		},
		"options out of range": {
			post(escache.PathOptions, `{"pool":"rbd","image":"v1","epoch":1,"options":{"maxDirtyAgeSeconds":86401}}`), escache.CodeInvalidRequest,
		},
		"an unknown order of write-back": {
			post(escache.PathOptions, `{"pool":"rbd","image":"v1","epoch":1,"options":{"writeBackOrder":"none"}}`), escache.CodeInvalidRequest,
		},
		"options with a mode": {
			post(escache.PathOptions, `{"pool":"rbd","image":"v1","epoch":1,"options":{"mode":"writeback"}}`), escache.CodeInvalidRequest,
		},
		"trim of epoch zero": {
			post(escache.PathTrim, `{"pool":"rbd","image":"v1","epoch":0,"fsType":"ext4","timeoutSeconds":1}`), escache.CodeInvalidRequest,
		},
		"trim of another filesystem": {
			post(escache.PathTrim, `{"pool":"rbd","image":"v1","epoch":1,"fsType":"btrfs","timeoutSeconds":1}`), escache.CodeInvalidRequest,
		},
		"trim for too long": {
			post(escache.PathTrim, `{"pool":"rbd","image":"v1","epoch":1,"fsType":"xfs","timeoutSeconds":61}`), escache.CodeInvalidRequest,
		},
		"trim before the beginning": {
			post(escache.PathTrim, `{"pool":"rbd","image":"v1","epoch":1,"fsType":"xfs","timeoutSeconds":1,"startByte":-1}`), escache.CodeInvalidRequest,
		},
		"trim with an empty option": {
			post(escache.PathTrim, `{"pool":"rbd","image":"v1","epoch":1,"fsType":"xfs","timeoutSeconds":1,"mountOptions":[""]}`),
			escache.CodeInvalidRequest,
		},
		"timeout zero":       {post(escache.PathFlush, `{"pool":"rbd","image":"v1","timeoutSeconds":0}`), escache.CodeInvalidRequest},
		"hold too long":      {post(escache.PathHold, `{"pool":"rbd","image":"v1","maxSeconds":3601}`), escache.CodeInvalidRequest},
		"unknown parameter":  {get(escache.PathStatus + "?volume=x"), escache.CodeInvalidRequest},
		"parameter twice":    {get(escache.PathStatus + "?pool=a&pool=b&image=c"), escache.CodeInvalidRequest},
		"pool without image": {get(escache.PathStatus + "?pool=a"), escache.CodeInvalidRequest},
		"discard is empty":   {request{http.MethodDelete, escache.PathReplica + "?pool=a&image=b&discard=", ""}, escache.CodeInvalidRequest},
		"discard is maybe":   {request{http.MethodDelete, escache.PathReplica + "?pool=a&image=b&discard=1", ""}, escache.CodeInvalidRequest},
		"discard of whatever there is": {
			request{http.MethodDelete, escache.PathReplica + "?pool=a&image=b&discard=true", ""}, escache.CodeInvalidRequest,
		},
		"parameter on a body": {post(escache.PathStop+"?x=1", `{"pool":"rbd","image":"v1"}`), escache.CodeInvalidRequest},
		"unknown path":        {get("/v2/node"), escache.CodeUnknownPath},
		"wrong method":        {post(escache.PathNode, ""), escache.CodeMethodNotAllowed},
	} {
		rec := httptest.NewRecorder()
		serve(t, untouched{}).ServeHTTP(rec, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		var p escache.Problem
		if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil {
			t.Errorf("%s: %d %q is no problem: %v", name, rec.Code, rec.Body, err)
			continue
		}
		problem := rec.Header().Get("Content-Type") == escache.ProblemContentType && p.Detail != ""
		if p.Code != c.want || rec.Code != escache.StatusOf(c.want) || !problem {
			t.Errorf("%s: got %d %+v, want %s", name, rec.Code, p, c.want)
		}
	}
}

// slow is an engine that can recover from its second attempt on.
type slow struct {
	untouched

	attempts int
}

func (s *slow) Recover(context.Context) error {
	if s.attempts++; s.attempts < 2 {
		return errors.New("no volume group")
	}
	return nil
}

func (*slow) Watch(ctx context.Context) { <-ctx.Done() }

func TestAChangeWaitsForTheRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(escached.Config{}, &slow{}, Seen{Log: slog.New(slog.DiscardHandler)})
		start := time.Now()
		if err := s.ready(t.Context()); err == nil || time.Since(start) != startPatience {
			t.Errorf("before the recovery: %v after %s", err, time.Since(start))
		}
		ctx, stop := context.WithCancel(t.Context())
		defer stop()
		go s.recover(ctx)
		synctest.Wait()
		soon, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := s.ready(soon); err == nil || !strings.Contains(err.Error(), "no volume group") {
			t.Errorf("after a failed attempt: %v", err)
		}
		if err := s.ready(t.Context()); err != nil {
			t.Errorf("after the second attempt: %v", err)
		}
	})
}

// empty is an engine that has not found its volumes yet: it knows none, and thinks that all is
// well.
type empty struct{ untouched }

func (empty) Status(_ context.Context, ref *escache.VolumeRef) (escache.Status, error) {
	if ref == nil {
		return escache.Status{Volumes: []escache.VolumeStatus{}}, nil
	}
	return escache.Status{Volumes: []escache.VolumeStatus{{VolumeRef: *ref, State: escache.StateAbsent}}}, nil
}

func (empty) Node(context.Context) (escache.Node, error) {
	return escache.Node{Name: "n1", Healthy: true}, nil
}

// TestNothingIsSaidOfVolumesBeforeTheRecovery: "absent" would count as proof that the device is
// gone.
func TestNothingIsSaidOfVolumesBeforeTheRecovery(t *testing.T) {
	s := New(escached.Config{}, empty{}, Seen{Log: slog.New(slog.DiscardHandler)})
	h := Handler(s.engine, TCP{}, s.ready, s.seen)
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	get := func(path string) *httptest.ResponseRecorder {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequestWithContext(ctx, http.MethodGet, path, nil))
		return rec
	}
	for _, path := range []string{escache.PathStatus, escache.PathStatus + "?pool=rbd&image=v1"} {
		rec := get(path)
		var p escache.Problem
		if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || rec.Code != http.StatusServiceUnavailable || p.Code != escache.CodeRecovering {
			t.Errorf("GET %s: got %d %s", path, rec.Code, rec.Body)
		}
	}
	var n escache.Node
	if rec := get(escache.PathNode); rec.Code != http.StatusOK || json.Unmarshal(rec.Body.Bytes(), &n) != nil || n.Healthy || len(n.Reasons) != 1 {
		t.Errorf("GET %s: got %d %s", escache.PathNode, rec.Code, rec.Body)
	}
}
