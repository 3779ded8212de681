package server

import (
	"bytes"
	"context"
	"encoding/json"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/escachetest"
)

// played is an escached in memory, as the engine of the handler. It fails the test if a request
// reaches it that the API does not allow.
type played struct {
	Engine

	t    *testing.T
	host *escachetest.Host
}

func (p played) reached(ref escache.VolumeRef, good bool) {
	p.t.Helper()
	if checkRef(ref) != nil || !good {
		p.t.Errorf("a request that is not allowed has reached the engine: %+v", ref)
	}
}

func (played) Collectors() []prometheus.Collector { return nil }

func (played) HostID() string { return "disks-1" }

func (played) Node(context.Context) (escache.Node, error) { return escache.Node{Name: "n1"}, nil }

func (p played) Status(_ context.Context, ref *escache.VolumeRef) (escache.Status, error) {
	if ref != nil {
		p.reached(*ref, true)
	}
	return escache.Status{Volumes: []escache.VolumeStatus{}}, nil
}

func (p played) PutReplica(_ context.Context, r escache.ReplicaRequest) error {
	p.reached(r.VolumeRef, r.SizeBytes > 0 && r.SizeBytes%4096 == 0 && r.CacheBytes >= minCache && len(r.Nodes) == 2 &&
		r.Nodes[0].Name != r.Nodes[1].Name && r.Port > 0 && r.Port < 1<<16 && r.Minor >= 0 && r.Minor < 1<<20)
	return p.host.PutReplica(context.Background(), r)
}

func (p played) DeleteReplica(_ context.Context, ref escache.VolumeRef, discardUpTo *int64) error {
	p.reached(ref, discardUpTo == nil || *discardUpTo >= 0)
	return nil
}

func (p played) DevConnect(_ context.Context, r escache.ConnectRequest) (escache.ConnectResponse, error) {
	o := r.Options
	p.reached(r.VolumeRef, r.Epoch > 0 && min(o.HighWatermark, o.LowWatermark) >= 0 && max(o.HighWatermark, o.LowWatermark) <= 100)
	return escache.ConnectResponse{}, nil
}

func (p played) Flush(_ context.Context, r escache.FlushRequest) (escache.FlushResponse, error) {
	p.reached(r.VolumeRef, r.TimeoutSeconds > 0 && r.TimeoutSeconds <= 86400)
	return escache.FlushResponse{}, nil
}

func (p played) Stop(_ context.Context, r escache.StopRequest) error {
	p.reached(r.VolumeRef, true)
	return nil
}

func (p played) SetMode(_ context.Context, r escache.ModeRequest) error {
	p.reached(r.VolumeRef, r.Mode == escache.ModeWriteback || r.Mode == escache.ModeWritethrough)
	return nil
}

func (p played) SetOptions(_ context.Context, r escache.OptionsRequest) (escache.OptionsResponse, error) {
	o := r.Options
	p.reached(r.VolumeRef, r.Epoch > 0 && min(o.HighWatermark, o.LowWatermark, o.MaxDirtyAgeSeconds) >= 0 &&
		max(o.HighWatermark, o.LowWatermark) <= 100 && o.MaxDirtyAgeSeconds <= escache.MaxDirtyAgeSeconds &&
		slices.Contains([]escache.WriteBackOrder{"", escache.OrderMerged, escache.OrderStrict}, o.WriteBackOrder))
	return escache.OptionsResponse{}, nil
}

func (p played) Hold(_ context.Context, r escache.HoldRequest) (escache.HoldResponse, error) {
	p.reached(r.VolumeRef, r.MaxSeconds > 0 && r.MaxSeconds <= 3600)
	return escache.HoldResponse{}, nil
}

func (p played) Release(_ context.Context, r escache.ReleaseRequest) error {
	p.reached(r.VolumeRef, true)
	return nil
}

func (p played) Resize(_ context.Context, r escache.ResizeRequest) error {
	p.reached(r.VolumeRef, r.SizeBytes > 0 && r.SizeBytes < math.MaxInt64 && r.SizeBytes%4096 == 0)
	return nil
}

func (p played) Abandon(_ context.Context, r escache.AbandonRequest) error {
	p.reached(r.VolumeRef, r.Epoch > 0)
	return nil
}

func (p played) Map(_ context.Context, r escache.MapRequest) (escache.MapResponse, error) {
	p.reached(r.VolumeRef, imageID.MatchString(r.ImageID) && len(r.ImageID) <= maxImageID)
	return escache.MapResponse{}, nil
}

func (p played) Unmap(_ context.Context, r escache.UnmapRequest) error {
	p.reached(r.VolumeRef, true)
	return nil
}

// FuzzRequest sends any request. The answer is the verb's, or a problem of the API with the status
// of its code and not 5xx: what a client sends is never the host's fault. Only what the API allows
// reaches the engine, and no body above the limit does.
func FuzzRequest(f *testing.F) {
	const volume = `"pool":"rbd","image":"escache-pvc-1"`
	f.Add(http.MethodPut, escache.PathReplica, "", []byte(`{`+volume+`,"imageID":"10ab","sizeBytes":67108864,"cacheBytes":33554432,"port":7800,`+
		`"minor":100,"epoch":3,"nodes":[{"name":"n1","address":"10.0.0.1"},{"name":"n2","address":"fd00::2"}]}`), uint16(0))
	f.Add(http.MethodPost, escache.PathDevConnect, "", []byte(`{`+volume+`,"epoch":3,"options":{"mode":"writeback","highWatermark":60,`+
		`"lowWatermark":50,"maxDirtyAgeSeconds":30}}`), uint16(0))
	for path, more := range map[string]string{
		escache.PathFlush: `,"timeoutSeconds":60`, escache.PathStop: "", escache.PathMode: `,"mode":"writethrough"`, escache.PathHold: `,"maxSeconds":5`,
		escache.PathRelease: "", escache.PathResize: `,"sizeBytes":134217728`, escache.PathAbandon: `,"epoch":4`,
		escache.PathMap: `,"imageID":"10ab","readOnly":true`, escache.PathUnmap: "",
		escache.PathOptions: `,"epoch":4,"options":{"highWatermark":60,"lowWatermark":40,"maxDirtyAgeSeconds":30,"writeBackOrder":"strict"}`,
	} {
		f.Add(http.MethodPost, path, "", []byte("{"+volume+more+"}"), uint16(0))
	}
	f.Add(http.MethodGet, escache.PathStatus, "pool=rbd&image=v1", []byte{}, uint16(0))
	f.Add(http.MethodDelete, escache.PathReplica, "pool=rbd&image=v1&discard=true&epoch=3", []byte{}, uint16(0))
	f.Add(http.MethodPost, escache.PathStop, "x=%", []byte("{}"), uint16(maxBody-2))
	f.Add("GET", "/v2/\xff", "", []byte("\xff"), uint16(math.MaxUint16))
	f.Fuzz(func(t *testing.T, method, path, query string, body []byte, blanks uint16) {
		whole := slices.Concat(body, bytes.Repeat([]byte(" "), int(blanks)))
		r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", bytes.NewReader(whole))
		r.Method, r.URL = method, &url.URL{Path: path, RawQuery: query}
		if path == "/metrics" {
			return // Prometheus's own handler
		}
		engine := played{t: t, host: escachetest.Alone("n1", "10.0.0.1", 1<<40)}
		a := newAPI(engine, newMeasures(), nil, func(context.Context) error { return nil }, Seen{Log: slog.New(slog.DiscardHandler)})
		rec := httptest.NewRecorder()
		a.ServeHTTP(rec, r)
		if rec.Code == http.StatusOK && json.Valid(rec.Body.Bytes()) || rec.Code == http.StatusNoContent && rec.Body.Len() == 0 {
			if method != http.MethodGet && method != http.MethodDelete && len(whole) > maxBody {
				t.Errorf("a body of %d bytes was taken", len(whole))
			}
			return
		}
		var p escache.Problem
		if err := json.Unmarshal(rec.Body.Bytes(), &p); err != nil || rec.Header().Get("Content-Type") != escache.ProblemContentType {
			t.Fatalf("%d %q is no problem: %v", rec.Code, rec.Body, err)
		}
		if p.Status != rec.Code || rec.Code != escache.StatusOf(p.Code) || p.Detail == "" ||
			rec.Code >= http.StatusInternalServerError && p.Code != escache.CodeNoRoom {
			t.Errorf("%s %s: %d %+v", method, path, rec.Code, p)
		}
	})
}
