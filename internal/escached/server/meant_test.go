package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/escache/escache-csi/api/escache"
)

// counted is an engine that counts the calls that change something.
type counted struct {
	Engine

	id    string
	calls int
}

func (*counted) Collectors() []prometheus.Collector { return nil }

func (c *counted) HostID() string { return c.id }

func (c *counted) Node(context.Context) (escache.Node, error) { return escache.Node{Name: "n1"}, nil }

func (c *counted) Status(context.Context, *escache.VolumeRef) (escache.Status, error) {
	return escache.Status{Volumes: []escache.VolumeStatus{}}, nil
}

func (c *counted) PutReplica(context.Context, escache.ReplicaRequest) error { return c.count() }

func (c *counted) DeleteReplica(context.Context, escache.VolumeRef, *int64) error { return c.count() }

func (c *counted) DevConnect(context.Context, escache.ConnectRequest) (escache.ConnectResponse, error) {
	return escache.ConnectResponse{}, c.count()
}

func (c *counted) Flush(context.Context, escache.FlushRequest) (escache.FlushResponse, error) {
	return escache.FlushResponse{}, c.count()
}

func (c *counted) Stop(context.Context, escache.StopRequest) error { return c.count() }

func (c *counted) SetMode(context.Context, escache.ModeRequest) error { return c.count() }

func (c *counted) SetOptions(context.Context, escache.OptionsRequest) (escache.OptionsResponse, error) {
	return escache.OptionsResponse{}, c.count()
}

func (c *counted) Hold(context.Context, escache.HoldRequest) (escache.HoldResponse, error) {
	return escache.HoldResponse{}, c.count()
}

func (c *counted) Release(context.Context, escache.ReleaseRequest) error { return c.count() }

func (c *counted) Resize(context.Context, escache.ResizeRequest) error { return c.count() }

func (c *counted) Abandon(context.Context, escache.AbandonRequest) error { return c.count() }

func (c *counted) Trim(context.Context, escache.TrimRequest) (escache.TrimResponse, error) {
	return escache.TrimResponse{}, c.count()
}

func (c *counted) Map(context.Context, escache.MapRequest) (escache.MapResponse, error) {
	return escache.MapResponse{}, c.count()
}

func (c *counted) Unmap(context.Context, escache.UnmapRequest) error { return c.count() }

func (c *counted) count() error {
	c.calls++
	return nil
}

// rightBodies are a right body for each path; a path that is not here takes none.
var rightBodies = map[string]string{
	escache.PathReplica: `{"pool":"rbd","image":"v1","sizeBytes":67108864,"cacheBytes":33554432,"port":7800,"minor":100,` +
		`"nodes":[{"name":"n1","address":"10.0.0.1"},{"name":"n2","address":"10.0.0.2"}]}`,
	escache.PathDevConnect: `{"pool":"rbd","image":"v1","epoch":3}`,
	escache.PathFlush:      `{"pool":"rbd","image":"v1","epoch":3,"timeoutSeconds":1}`,
	escache.PathStop:       `{"pool":"rbd","image":"v1","epoch":3}`,
	escache.PathMode:       `{"pool":"rbd","image":"v1","epoch":3,"mode":"writeback"}`,
	escache.PathOptions:    `{"pool":"rbd","image":"v1","epoch":3,"options":{}}`,
	escache.PathHold:       `{"pool":"rbd","image":"v1","epoch":3,"maxSeconds":1}`,
	escache.PathRelease:    `{"pool":"rbd","image":"v1","epoch":3}`,
	escache.PathResize:     `{"pool":"rbd","image":"v1","epoch":3,"sizeBytes":4096}`,
	escache.PathAbandon:    `{"pool":"rbd","image":"v1","epoch":3}`,
	escache.PathMap:        `{"pool":"rbd","image":"v1","imageID":"10ab"}`,
	escache.PathTrim:       `{"pool":"rbd","image":"v1","epoch":3,"fsType":"ext4","timeoutSeconds":1}`,
	escache.PathUnmap:      `{"pool":"rbd","image":"v1"}`,
}

// TestACallThatIsMeantForAnotherHostChangesNothing goes through the routes themselves, so that a new verb is
// not forgotten.
func TestACallThatIsMeantForAnotherHostChangesNothing(t *testing.T) {
	engine := &counted{id: "disks-1"}
	routes := newAPI(engine, newMeasures(), nil, nil, Seen{}).routes
	for path, methods := range routes {
		for method := range methods {
			for meant, want := range map[string]escache.Code{"": "", "disks-1": "", "disks-2": escache.CodeOtherHost} {
				if method == http.MethodGet {
					want = "" // it changes nothing, and its answer says who answers
				}
				engine.calls = 0
				target, body := path, rightBodies[path]
				if method == http.MethodDelete {
					target, body = path+"?pool=rbd&image=v1", ""
				}
				r := httptest.NewRequest(method, target, strings.NewReader(body))
				r.Header.Set(escache.HeaderHostID, meant)
				rec := httptest.NewRecorder()
				serve(t, engine).ServeHTTP(rec, r)
				var p escache.Problem
				_ = json.Unmarshal(rec.Body.Bytes(), &p)
				if called := engine.calls > 0; p.Code != want || called != (want == "" && method != http.MethodGet) {
					t.Errorf("%s %s meant for %q: %d %s, carried out: %v", method, path, meant, rec.Code, rec.Body, called)
				}
			}
		}
	}
}

// TestAHostThatDoesNotKnowItsIdentityIsNotMeant: it has not read its volume group.
func TestAHostThatDoesNotKnowItsIdentityIsNotMeant(t *testing.T) {
	engine := &counted{}
	r := httptest.NewRequest(http.MethodPost, escache.PathStop, strings.NewReader(rightBodies[escache.PathStop]))
	r.Header.Set(escache.HeaderHostID, "disks-1")
	rec := httptest.NewRecorder()
	serve(t, engine).ServeHTTP(rec, r)
	if rec.Code != http.StatusServiceUnavailable || engine.calls > 0 {
		t.Errorf("%d %s, %d calls", rec.Code, rec.Body, engine.calls)
	}
}
