package csiserver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/escache/escache-csi/internal/operation"
)

var errBusy = errors.New("busy")

func observer(log *bytes.Buffer) *Observer {
	return &Observer{
		Log: slog.New(slog.NewJSONHandler(log, nil)),
		Code: func(err error) codes.Code {
			if errors.Is(err, errBusy) {
				return codes.Aborted
			}
			return codes.Internal
		},
		Seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{Name: "seconds", Help: "Duration of the calls."}, []string{"method", "code"}),
	}
}

func TestACallIsMappedAndLoggedOnce(t *testing.T) {
	for name, c := range map[string]struct {
		method string
		takes  time.Duration
		end    func() error
		code   codes.Code
		level  string // of the line; empty: none
	}{
		"fine":             {"NodeStageVolume", 0, func() error { return nil }, codes.OK, "INFO"},
		"repeated":         {"NodeGetVolumeStats", 0, func() error { return nil }, codes.OK, ""},
		"repeated, slow":   {"NodeGetVolumeStats", slow, func() error { return nil }, codes.OK, "INFO"},
		"repeated, failed": {"NodeGetVolumeStats", 0, func() error { return errBusy }, codes.Aborted, "WARN"},
		"a status":         {"NodeStageVolume", 0, func() error { return status.Error(codes.NotFound, "busy") }, codes.NotFound, "WARN"},
		"a bug":            {"NodeStageVolume", 0, func() error { return errors.New("unexpected") }, codes.Internal, "ERROR"},
		"a panic":          {"NodeStageVolume", 0, func() error { panic("no such thing") }, codes.Internal, "ERROR"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { // time goes by only in Sleep
				var log bytes.Buffer
				request := &csi.NodeStageVolumeRequest{VolumeId: "v", Secrets: map[string]string{"key": "very-secret"}}
				answer, err := observer(&log).Intercept(t.Context(), request, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Node/" + c.method},
					func(context.Context, any) (any, error) { time.Sleep(c.takes); return "answer", c.end() })
				if status.Code(err) != c.code || (answer == "answer") != (err == nil) {
					t.Errorf("got %v, %v", answer, err)
				}
				if strings.Contains(log.String(), "very-secret") {
					t.Errorf("a secret is in the log: %s", log.String())
				}
				if c.level == "" {
					if log.Len() > 0 {
						t.Errorf("logged: %s", log.String())
					}
					return
				}
				var line struct {
					Level   string `json:"level"`
					Call    string `json:"call"`
					Code    string `json:"code"`
					Volume  string `json:"volume"`
					Request string `json:"request"`
					Error   string `json:"error"`
					Stack   string `json:"stack"`
				}
				if err := json.Unmarshal(log.Bytes(), &line); err != nil { // also if there are two lines
					t.Fatalf("%v: %s", err, log.String())
				}
				if line.Level != c.level || line.Call != c.method || line.Code != c.code.String() || line.Volume != "v" ||
					!strings.Contains(line.Request, "stripped") || (line.Error == "") != (err == nil) || (line.Stack == "") == (name == "a panic") {
					t.Errorf("got %s", log.String())
				}
			})
		})
	}
}

// Kubernetes counts an Event up only if its text is the same, so that what differs from try to try
// is in the log and not in the answer.
func TestTheAnswerSeldomChangesFromTryToTry(t *testing.T) {
	var log bytes.Buffer
	o := observer(&log)
	var texts []string
	for _, age := range []time.Duration{31 * time.Second, 59 * time.Second, 61 * time.Second} {
		_, err := o.Intercept(t.Context(), nil, &grpc.UnaryServerInfo{FullMethod: "/csi.v1.Node/NodeStageVolume"},
			func(context.Context, any) (any, error) {
				return nil, &operation.BusyError{Running: "flush", Volume: "v", Refused: "stop", Age: age}
			})
		texts = append(texts, status.Convert(err).Message())
	}
	if texts[0] != texts[1] || texts[1] == texts[2] {
		t.Errorf("answers %q", texts)
	}
	for _, part := range []string{`"request_id":"`, `"running_for":59000000000`} {
		if !strings.Contains(log.String(), part) {
			t.Errorf("no %s in %s", part, log.String())
		}
	}
}

func TestAnswerArrivesBeforeItsCallerGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // time stands still in here
		o := Observer{Longest: time.Minute}
		for given, want := range map[time.Duration]time.Duration{
			0: time.Minute, time.Hour: time.Minute, 10 * time.Second: 9500 * time.Millisecond, 150 * time.Millisecond: 135 * time.Millisecond,
		} {
			ctx := t.Context()
			if given > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, given)
				defer cancel()
			}
			if got, bounded := o.limit(ctx); got != want || !bounded {
				t.Errorf("a caller that waits %s (0: for ever) is answered within %s, want %s", given, got, want)
			}
		}
		if _, bounded := (&Observer{}).limit(t.Context()); bounded {
			t.Error("bounded without a limit")
		}
	})
}
