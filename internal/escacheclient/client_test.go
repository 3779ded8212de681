package escacheclient

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

var ref = escache.VolumeRef{Pool: "rbd", Image: "csi-1"}

func newClient(t *testing.T, opts Options) *Client {
	t.Helper()
	client, err := New(opts)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client
}

// script answers the n-th request with its n-th function, and every later one with its last.
type script struct {
	steps []http.HandlerFunc
	hits  atomic.Int64
}

func (s *script) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	n := int(s.hits.Add(1))
	s.steps[min(n, len(s.steps))-1](w, r)
}

func serve(t *testing.T, opts Options, steps ...http.HandlerFunc) (*Client, *script) {
	t.Helper()
	s := &script{steps: steps}
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	opts.BaseURL, opts.Node = server.URL, "n1"
	return newClient(t, opts), s
}

func done(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }

func node(w http.ResponseWriter, _ *http.Request) {
	_ = json.NewEncoder(w).Encode(escache.Node{Name: "n1"})
}

func hangUp(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func hang(d time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
		case <-r.Context().Done():
		}
		w.WriteHeader(http.StatusNoContent)
	}
}

func problem(code escache.Code) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", escache.ProblemContentType+"; charset=utf-8")
		w.WriteHeader(escache.StatusOf(code))
		_ = json.NewEncoder(w).Encode(escache.Problem{Type: "about:blank", Title: "x", Status: escache.StatusOf(code), Code: code, Detail: "do this"})
	}
}

func body(status int, kind, text string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind)
		w.WriteHeader(status)
		_, _ = io.WriteString(w, text)
	}
}

// verbs is one call of each method.
func verbs(c *Client) map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		"GET": func(ctx context.Context) error { _, err := c.Node(ctx); return err },
		"PUT": func(ctx context.Context) error {
			_, err := c.PutReplica(ctx, escache.ReplicaRequest{VolumeRef: ref})
			return err
		},
		"POST":   func(ctx context.Context) error { return c.Stop(ctx, escache.StopRequest{VolumeRef: ref}) },
		"DELETE": func(ctx context.Context) error { return c.DeleteReplica(ctx, ref) },
	}
}

func TestRepeatsOnlyWhatIsSafe(t *testing.T) {
	ok := func(w http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodGet {
			node(w, r)
			return
		}
		done(w, r)
	}
	for _, tc := range []struct {
		name  string
		first http.HandlerFunc
		hits  map[string]int64
		want  error
	}{
		{"connection lost after the request", hangUp, map[string]int64{"GET": 2, "PUT": 2, "POST": 1, "DELETE": 1}, ErrUnreachable},
		{"busy", problem(escache.CodeBusy), map[string]int64{"GET": 1, "PUT": 1, "POST": 1, "DELETE": 1}, nil},
		{"stuck", problem(escache.CodeStuck), map[string]int64{"GET": 1, "PUT": 1, "POST": 1, "DELETE": 1}, nil},
		{"gateway's error", body(502, "text/html", "<html>"), map[string]int64{"GET": 1, "PUT": 1, "POST": 1, "DELETE": 1}, nil},
	} {
		for method, hits := range tc.hits {
			t.Run(tc.name+"/"+method, func(t *testing.T) {
				client, script := serve(t, Options{}, tc.first, ok)
				err := verbs(client)[method](context.Background())
				if got := script.hits.Load(); got != hits {
					t.Errorf("%d requests, want %d", got, hits)
				}
				if repeated := hits > 1; repeated != (err == nil) {
					t.Errorf("error %v after %d requests", err, hits)
				}
				if tc.want != nil && err != nil && !errors.Is(err, tc.want) {
					t.Errorf("%v, want %v", err, tc.want)
				}
			})
		}
	}
}

func TestRepeatsEveryMethodWhenNothingWasSent(t *testing.T) {
	for _, method := range []string{"GET", "PUT", "POST", "DELETE"} {
		t.Run(method, func(t *testing.T) {
			socket := filepath.Join(t.TempDir(), "s")
			script := &script{steps: []http.HandlerFunc{done}}
			if method == "GET" {
				script.steps[0] = node
			}
			client := newClient(t, Options{UnixSocket: socket})
			time.AfterFunc(firstWait/2, func() { // after the first try was refused
				listener, err := net.Listen("unix", socket)
				if err != nil {
					t.Error(err)
					return
				}
				server := &http.Server{Handler: script, ReadHeaderTimeout: time.Second}
				t.Cleanup(func() { _ = server.Close() })
				go func() { _ = server.Serve(listener) }()
			})
			if err := verbs(client)[method](context.Background()); err != nil || script.hits.Load() != 1 {
				t.Errorf("%d requests, error %v", script.hits.Load(), err)
			}
		})
	}
}

// Whoever has no time left for the pause does not wait for it.
func TestThePauseBeforeARepeatIsTheCallers(t *testing.T) {
	for pause, tries := range map[time.Duration]int64{time.Millisecond: maxRepeats + 1, time.Hour: 1} {
		var dials atomic.Int64
		refuse := func(context.Context, string, string) (net.Conn, error) {
			dials.Add(1)
			return nil, syscall.ECONNREFUSED
		}
		client := newClient(t, Options{BaseURL: "http://127.0.0.1:1", RepeatAfter: pause, Dial: refuse})
		if err := client.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); !errors.Is(err, ErrUnreachable) || dials.Load() != tries {
			t.Errorf("%s: %d tries instead of %d: %v", pause, dials.Load(), tries, err)
		}
	}
}

func TestUnreachableNamesNodeAndCall(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	_ = listener.Close()
	client := newClient(t, Options{Node: "n7", BaseURL: "http://" + listener.Addr().String(), RepeatAfter: time.Millisecond})
	err = client.Stop(t.Context(), escache.StopRequest{VolumeRef: ref})
	var failed *CallError
	if !errors.Is(err, ErrUnreachable) || !errors.As(err, &failed) || failed.Node != "n7" || failed.Call != "stop" {
		t.Error(err)
	}
	if errors.Is(err, ErrTimeout) || !strings.Contains(err.Error(), "refused") {
		t.Errorf("the cause is lost: %v", err)
	}
}

func TestADeadlineDoesNotHideWhyEarlierTriesFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time goes by only while everything waits
		refused := errors.New("refused")
		var tries atomic.Int64
		dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
			if tries.Add(1) == 1 {
				return nil, refused
			}
			<-ctx.Done()
			return nil, ctx.Err()
		}
		client := newClient(t, Options{BaseURL: "http://127.0.0.1:1", Dial: dial, Timeout: Timeouts{Change: 500 * time.Millisecond}})
		err := client.Stop(t.Context(), escache.StopRequest{VolumeRef: ref})
		if !errors.Is(err, ErrUnreachable) || !errors.Is(err, refused) || tries.Load() != 2 {
			t.Errorf("%d tries: %v", tries.Load(), err)
		}
	})
}

func TestDeadlines(t *testing.T) {
	short := Timeouts{Query: 150 * time.Millisecond, Change: 150 * time.Millisecond, Connect: 150 * time.Millisecond}
	const connects = 3 * time.Second // a busy machine takes some time to connect
	for method := range verbs(nil) {
		t.Run("of the client/"+method, func(t *testing.T) {
			t.Parallel()
			client, script := serve(t, Options{Timeout: Timeouts{Query: connects, Change: connects}}, hang(time.Minute))
			start := time.Now()
			err := verbs(client)[method](context.Background())
			if !errors.Is(err, ErrTimeout) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 30*time.Second {
				t.Errorf("after %s: %v", time.Since(start), err)
			}
			if script.hits.Load() != 1 {
				t.Errorf("%d requests", script.hits.Load())
			}
		})
	}
	t.Run("of the caller", func(t *testing.T) {
		t.Parallel()
		client, _ := serve(t, Options{}, hang(time.Minute))
		ctx, cancel := context.WithTimeout(context.Background(), connects)
		defer cancel()
		if err := client.Stop(ctx, escache.StopRequest{VolumeRef: ref}); !errors.Is(err, ErrTimeout) {
			t.Error(err)
		}
	})
	t.Run("the caller gives up", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		client, _ := serve(t, Options{}, func(w http.ResponseWriter, r *http.Request) {
			cancel()
			hang(time.Minute)(w, r)
		})
		if err := client.Stop(ctx, escache.StopRequest{VolumeRef: ref}); !errors.Is(err, context.Canceled) || errors.Is(err, ErrTimeout) || errors.Is(err, ErrUnreachable) {
			t.Error(err)
		}
	})
	t.Run("a flush has its own time and a margin", func(t *testing.T) {
		slow := func(w http.ResponseWriter, r *http.Request) {
			time.Sleep(1200 * time.Millisecond)
			_ = json.NewEncoder(w).Encode(escache.FlushResponse{DirtyBytes: 4096})
		}
		client, _ := serve(t, Options{Timeout: short}, slow)
		left, err := client.Flush(context.Background(), escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 1})
		if err != nil || left.Clean || left.DirtyBytes != 4096 {
			t.Errorf("%+v, %v", left, err)
		}
	})
	t.Run("an unanswered handshake", func(t *testing.T) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer listener.Close()
		ca, files := newAuthority(t), tlsFiles(t)
		write(t, files, ca, issue(t, ca, "client"))
		client := newClient(t, Options{BaseURL: "https://" + listener.Addr().String(), TLS: files, Timeout: short})
		if err := client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref}); !errors.Is(err, ErrUnreachable) {
			t.Error(err)
		}
	})
}

func TestAnswersThatAreNotOfTheAPI(t *testing.T) {
	full := `{"name":"n1"`
	for _, tc := range []struct {
		name   string
		answer http.HandlerFunc
		status int // 0: the connection counts as broken
	}{
		{"a proxy's page", body(502, "text/html", "<html>bad gateway</html>"), 502},
		{"a problem without a code", body(409, escache.ProblemContentType, `{"title":"x"}`), 409},
		{"a problem that is cut short", body(409, escache.ProblemContentType, `{"code":"bu`), 409},
		{"an answer that is cut short", body(200, "application/json", full), 200},
		{"an empty answer", body(200, "application/json", ""), 200},
		{"no content where there should be some", done, 204},
		{"a redirect", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://127.0.0.1:1/", http.StatusFound)
		}, 302},
		{"an endless answer", func(w http.ResponseWriter, _ *http.Request) {
			for chunk := bytes.Repeat([]byte(" "), 1<<20); ; {
				if _, err := w.Write(chunk); err != nil {
					return
				}
			}
		}, 200},
		{"a connection closed in the middle", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "1000")
			_, _ = io.WriteString(w, full)
			panic(http.ErrAbortHandler)
		}, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			client, script := serve(t, Options{}, tc.answer)
			_, err := client.Node(context.Background())
			var strange *UnexpectedAnswerError
			switch {
			case tc.status == 0:
				if !errors.Is(err, ErrUnreachable) || script.hits.Load() != maxRepeats+1 {
					t.Errorf("%v after %d requests", err, script.hits.Load())
				}
			case !errors.As(err, &strange):
				t.Errorf("%v is no UnexpectedAnswerError", err)
			case strange.Status != tc.status || len(strange.Cut) > cutBytes:
				t.Errorf("status %d with %d bytes", strange.Status, len(strange.Cut))
			case script.hits.Load() != 1:
				t.Errorf("%d requests", script.hits.Load())
			}
		})
	}
}

func TestProblemsAreTyped(t *testing.T) {
	client, _ := serve(t, Options{}, problem(escache.CodeDirty))
	err := client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref})
	var p *escache.Problem
	if !errors.As(err, &p) || p.Code != escache.CodeDirty || p.Status != http.StatusConflict {
		t.Fatal(err)
	}
	if want := "stop on n1: do this (dirty)"; err.Error() != want {
		t.Errorf("%q, want %q", err, want)
	}
}

func TestObserverAndLog(t *testing.T) {
	var seen []string
	var log bytes.Buffer
	opts := Options{
		SlowAfter: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Observe: func(call, code string, d time.Duration) {
			seen = append(seen, fmt.Sprintf("%s %s %t", call, code, d > 0))
		},
	}
	client, _ := serve(t, opts, done, problem(escache.CodeBusy), hang(1500*time.Millisecond), hangUp)
	for range 4 {
		_ = client.Stop(context.Background(), escache.StopRequest{VolumeRef: ref})
	}
	want := "stop ok true,stop busy true,stop ok true,stop unreachable true"
	if got := strings.Join(seen, ","); got != want {
		t.Errorf("observed %s, want %s", got, want)
	}
	if lines := strings.Count(log.String(), "slow escache call"); lines != 1 || strings.Count(log.String(), "\n") != 1 {
		t.Errorf("want one line, of the slow call:\n%s", log.String())
	}
	for _, secret := range []string{ref.Image, "do this", "http://"} {
		if strings.Contains(log.String(), secret) {
			t.Errorf("the log holds %q:\n%s", secret, log.String())
		}
	}
}
