package engine_test

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/engine"
	"github.com/escache/escache-csi/internal/escached/server"
)

func serve(t *testing.T, e *engine.Engine) http.Handler {
	t.Helper()
	return server.Handler(e, server.TCP{CertificateEnd: time.Now, AuthorityEnd: time.Now}, func(context.Context) error { return nil },
		server.Seen{Log: slog.New(slog.DiscardHandler)})
}

func TestWhatOnlyTheEngineCanRefuseIsAProblemToo(t *testing.T) {
	const good = `{"pool":"rbd","image":"v1","sizeBytes":67108864,"cacheBytes":33554432,"port":7800,"minor":100,` +
		`"nodes":[{"name":"n1","address":"10.0.0.1"},{"name":"n2","address":"10.0.0.2"}]}`
	for name, c := range map[string]struct {
		method, path, body string
		want               escache.Code
	}{
		"cache larger than the room": {http.MethodPut, escache.PathReplica, strings.Replace(good, "33554432", "1099511627776", 1),
			escache.CodeNoRoom},
		"watermarks crossed": {http.MethodPost, escache.PathDevConnect,
			`{"pool":"rbd","image":"v1","epoch":1,"options":{"highWatermark":30,"lowWatermark":40}}`, escache.CodeInvalidRequest},
		"unknown volume":       {http.MethodPost, escache.PathStop, `{"pool":"rbd","image":"v9"}`, escache.CodeNotFound},
		"connect without PUT":  {http.MethodPost, escache.PathDevConnect, `{"pool":"rbd","image":"v9","epoch":1}`, escache.CodeNotFound},
		"flush of the unknown": {http.MethodPost, escache.PathFlush, `{"pool":"rbd","image":"v9","timeoutSeconds":1}`, escache.CodeNotFound},
	} {
		w := engine.NewWorld(t)
		rec := httptest.NewRecorder()
		serve(t, w.Engine()).ServeHTTP(rec, httptest.NewRequest(c.method, c.path, strings.NewReader(c.body)))
		var p escache.Problem
		if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil {
			t.Errorf("%s: %d %q is no problem: %v", name, rec.Code, rec.Body, err)
			continue
		}
		problem := rec.Header().Get("Content-Type") == escache.ProblemContentType && p.Detail != ""
		if p.Code != c.want || rec.Code != escache.StatusOf(c.want) || !problem {
			t.Errorf("%s: got %d %+v, want %s", name, rec.Code, p, c.want)
		}
		if len(w.Left()) > 0 {
			t.Errorf("%s: changed the host: %q", name, w.Left())
		}
	}
}

func TestAnswersOfALifeOverHTTP(t *testing.T) {
	w := engine.NewWorld(t)
	h := serve(t, w.Engine())
	do := func(method, path, body string) (int, string) {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(method, path, strings.NewReader(body)))
		return rec.Code, rec.Body.String()
	}
	body, err := json.Marshal(engine.PutRequest)
	if err != nil {
		t.Fatal(err)
	}
	metrics := ""
	for _, c := range []struct {
		method, path, body string
		status             int
		contains           string
	}{
		{http.MethodPut, escache.PathReplica, string(body), 204, ""},
		{http.MethodPost, escache.PathDevConnect, `{"pool":"rbd","image":"v1","epoch":1}`, 200, `"clientAddress":"10.0.0.1:0/9"`},
		{http.MethodGet, escache.PathStatus, "", 200, `"state":"connected","role":"Primary","epoch":1,"mode":"writeback"`},
		{http.MethodGet, escache.PathNode, "", 200, `"primaries":1`},
		{http.MethodGet, "/metrics", "", 200, `escached_volume_dirty_bytes{image="v1",pool="rbd"} 0`},
		{http.MethodPost, escache.PathFlush, `{"pool":"rbd","image":"v1","timeoutSeconds":5}`, 200, `{"clean":true,"dirtyBytes":0}`},
		{http.MethodPost, escache.PathStop, `{"pool":"rbd","image":"v1"}`, 204, ""},
		{http.MethodPost, escache.PathStop, `{"pool":"rbd","image":"v1"}`, 204, ""},
		{http.MethodDelete, escache.PathReplica + "?pool=rbd&image=v1", "", 204, ""},
		{http.MethodDelete, escache.PathReplica + "?pool=rbd&image=v1", "", 204, ""},
		{http.MethodGet, escache.PathStatus + "?pool=rbd&image=v1", "", 200, `"state":"absent"`},
		{http.MethodGet, "/metrics", "", 200, `escached_operation_failures_total`},
	} {
		if c.contains == `escached_operation_failures_total` {
			do(http.MethodPost, escache.PathMode, `{"pool":"rbd","image":"v1","mode":"writeback"}`)
		}
		status, answer := do(c.method, c.path, c.body)
		if status != c.status || !strings.Contains(answer, c.contains) {
			t.Errorf("%s %s: got %d %s", c.method, c.path, status, answer)
		}
		if c.path == "/metrics" {
			metrics += answer
		}
	}
	documented(t, metrics)
}

// documented compares what was exported, with a volume and without, with docs/metrics.md: names and
// help texts.
func documented(t *testing.T, metrics string) {
	t.Helper()
	text, err := os.ReadFile("../../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	helpByName := func(expression, in string) map[string]string {
		help := map[string]string{}
		for _, m := range regexp.MustCompile(expression).FindAllStringSubmatch(in, -1) {
			help[m[1]] = m[2]
		}
		return help
	}
	exported := helpByName(`(?m)^# HELP (escached_\w+) (.*)$`, metrics)
	written := helpByName("(?m)^\\| `(escached_\\w+)` .* \\| (.*) \\|$", string(text))
	if len(written) == 0 || !maps.Equal(exported, written) {
		t.Errorf("exported are %v,\ndocs/metrics.md has %v", exported, written)
	}
}
