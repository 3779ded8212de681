package arbiter

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/kube"
)

// record is one CacheVolume with the API server's compare-and-swap.
type record struct {
	mu      sync.Mutex
	v       v1alpha1.CacheVolume
	readErr error
	// meanwhile is called between a read and the write that follows it, with the lock held.
	meanwhile func(v *v1alpha1.CacheVolume)
	writes    int
	// answer is what csi-controller does with a question. asked counts them.
	answer func(c *v1alpha1.RecordComparison)
	asked  int
}

func (r *record) VolumeOf(_ context.Context, ref escache.VolumeRef) (*v1alpha1.CacheVolume, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.readErr != nil {
		return nil, r.readErr
	}
	if ref.Image != r.v.Spec.Image || ref.Pool != r.v.Spec.Pool {
		return nil, kube.ErrNotFound
	}
	return r.v.DeepCopy(), nil
}

func (r *record) PatchStatus(_ context.Context, v *v1alpha1.CacheVolume, status map[string]any) (*v1alpha1.CacheVolume, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.meanwhile != nil {
		r.meanwhile(&r.v)
		r.meanwhile = nil
	}
	if v.ResourceVersion != r.v.ResourceVersion {
		return nil, kube.ErrConflict
	}
	before := r.v.Status.DeepCopy()
	if c, ok := status["comparison"].(map[string]any); ok {
		r.asked++
		r.v.Status.Comparison = &v1alpha1.RecordComparison{Question: c["question"].(string)}
		if r.answer != nil {
			r.answer(r.v.Status.Comparison)
		}
		return r.v.DeepCopy(), nil
	}
	r.v.Status.Outdated = status["outdated"].([]string)
	if conditions, ok := status["conditions"].([]metav1.Condition); ok {
		r.v.Status.Conditions = conditions
	}
	if reflect.DeepEqual(before, &r.v.Status) {
		return r.v.DeepCopy(), nil // the API server gives an unchanged object no new version
	}
	r.v.ResourceVersion = fmt.Sprint(r.writes)
	r.writes++
	return r.v.DeepCopy(), nil
}

func newRecord() *record {
	r := &record{}
	r.v.Name, r.v.ResourceVersion = "pvc-1", "first"
	r.v.Spec = v1alpha1.CacheVolumeSpec{Pool: "p", Image: "i", Replicas: []string{"n1", "n2"}}
	r.v.Status = v1alpha1.CacheVolumeStatus{AttachedNode: "n1", Epoch: 7, ImageID: "id", Authority: v1alpha1.AuthorityCache}
	return r
}

func question() escache.OutdatePeerRequest {
	return escache.OutdatePeerRequest{VolumeRef: escache.VolumeRef{Pool: "p", Image: "i"}, ImageID: "id", Node: "n1", Peer: "n2", Epoch: 7}
}

// fresh is the arbiter of a csi-node that has just been started.
func fresh(node string, r *record) *Arbiter {
	return New(node, r, func(*v1alpha1.CacheVolume) {}, func() {}, slog.New(slog.DiscardHandler))
}

// sound is one that had the record of the attachment compared before the volume was connected.
func sound(node string, r *record) *Arbiter {
	a := fresh(node, r)
	a.Compared(question().VolumeRef, question().Epoch)
	return a
}

func TestGrantsOnlyWhatTheRecordAllows(t *testing.T) {
	rows := []struct {
		name    string
		change  func(r *record, q *escache.OutdatePeerRequest)
		granted bool
	}{
		{"the attached node in its epoch", func(*record, *escache.OutdatePeerRequest) {}, true},
		{"asked again", func(r *record, _ *escache.OutdatePeerRequest) { r.v.Status.Outdated = []string{"n2"} }, true},
		{"attached elsewhere", func(r *record, _ *escache.OutdatePeerRequest) { r.v.Status.AttachedNode = "n2" }, false},
		{"attached nowhere", func(r *record, _ *escache.OutdatePeerRequest) { r.v.Status.AttachedNode = "" }, false},
		{"an older epoch", func(_ *record, q *escache.OutdatePeerRequest) { q.Epoch = 6 }, false},
		{"a newer epoch than on record", func(_ *record, q *escache.OutdatePeerRequest) { q.Epoch = 8 }, false},
		{"itself outdated", func(r *record, _ *escache.OutdatePeerRequest) { r.v.Status.Outdated = []string{"n1"} }, false},
		{"both outdated", func(r *record, _ *escache.OutdatePeerRequest) { r.v.Status.Outdated = []string{"n1", "n2"} }, false},
		{"another node asks here", func(r *record, q *escache.OutdatePeerRequest) {
			r.v.Status.AttachedNode, q.Node, q.Peer = "n2", "n2", "n1"
		}, false},
		{"its own peer", func(_ *record, q *escache.OutdatePeerRequest) { q.Peer = "n1" }, false},
		{"no peer", func(_ *record, q *escache.OutdatePeerRequest) { q.Peer = "" }, false},
		{"a peer without a replica", func(_ *record, q *escache.OutdatePeerRequest) { q.Peer = "n3" }, false},
		{"another image", func(_ *record, q *escache.OutdatePeerRequest) { q.ImageID = "other" }, false},
		{"unknown volume", func(_ *record, q *escache.OutdatePeerRequest) { q.Image = "other" }, false},
		{"no API", func(r *record, _ *escache.OutdatePeerRequest) { r.readErr = kube.ErrUnavailable }, false},
		{"somebody else writes meanwhile", func(r *record, _ *escache.OutdatePeerRequest) {
			r.meanwhile = func(v *v1alpha1.CacheVolume) { v.ResourceVersion = "second"; v.Status.DirtyBytes = 5 }
		}, true},
		{"the peer takes over meanwhile", func(r *record, _ *escache.OutdatePeerRequest) {
			r.meanwhile = func(v *v1alpha1.CacheVolume) {
				v.ResourceVersion, v.Status.AttachedNode, v.Status.Epoch = "second", "n2", 8
			}
		}, false},
		{"it is put on record meanwhile", func(r *record, _ *escache.OutdatePeerRequest) {
			r.meanwhile = func(v *v1alpha1.CacheVolume) { v.ResourceVersion, v.Status.Outdated = "second", []string{"n1"} }
		}, false},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			r, q := newRecord(), question()
			row.change(r, &q)
			err := sound("n1", r).Decide(t.Context(), q)
			if granted := err == nil; granted != row.granted {
				t.Fatalf("granted %v, want %v (%v)", granted, row.granted, err)
			}
			if row.granted && !slices.Contains(r.v.Status.Outdated, "n2") {
				t.Error("granted without a record")
			}
			if !row.granted && r.writes > 0 {
				t.Error("refused, and the record was changed")
			}
		})
	}
}

// The cache watch reads the record, sees the peer current, and takes it off by compare-and-swap. If
// the peer is lost and a grant is repeated in between, taking it off has to fail: or the peer would
// count as current while the survivor goes on alone.
func TestARepeatedGrantDefeatsARemovalThatIsUnderWay(t *testing.T) {
	r := newRecord()
	r.v.Status.Outdated = []string{"n2"}
	read, err := r.VolumeOf(t.Context(), escache.VolumeRef{Pool: "p", Image: "i"})
	if err != nil {
		t.Fatal(err)
	}
	for range 2 { // also the second repetition, in the same second
		if err := sound("n1", r).Decide(t.Context(), question()); err != nil {
			t.Fatal(err)
		}
		if _, err := r.PatchStatus(t.Context(), read, map[string]any{"outdated": []string{}, "conditions": read.Status.Conditions}); !errors.Is(err, kube.ErrConflict) {
			t.Fatalf("the removal went through: %v, outdated %v", err, r.v.Status.Outdated)
		}
		read, _ = r.VolumeOf(t.Context(), escache.VolumeRef{Pool: "p", Image: "i"})
	}
}

// Both replicas ask at the same moment, each at its own arbiter: at most one goes on.
func TestOfTwoRivalsAtMostOneGoesOn(t *testing.T) {
	for range 200 {
		r := newRecord()
		grants := make(chan bool, 2)
		for _, side := range []struct{ node, peer string }{{"n1", "n2"}, {"n2", "n1"}} {
			go func() {
				q := question()
				q.Node, q.Peer = side.node, side.peer
				grants <- sound(side.node, r).Decide(t.Context(), q) == nil
			}()
		}
		if first, second := <-grants, <-grants; first && second {
			t.Fatal("both were granted")
		}
	}
}

func TestHTTPAnswers(t *testing.T) {
	rows := []struct {
		name, body string
		readErr    error
		status     int
		code       escache.Code
	}{
		{"granted", `{"pool":"p","image":"i","imageID":"id","node":"n1","peer":"n2","epoch":7}`, nil, http.StatusNoContent, ""},
		{"refused", `{"pool":"p","image":"i","imageID":"id","node":"n1","peer":"n2","epoch":6}`, nil, http.StatusConflict, escache.CodeStaleEpoch},
		{"unknown volume", `{"pool":"p","image":"x","imageID":"id","node":"n1","peer":"n2","epoch":6}`, nil, http.StatusNotFound, escache.CodeNotFound},
		{"no API", `{"pool":"p","image":"i","imageID":"id","node":"n1","peer":"n2","epoch":7}`, errors.Join(kube.ErrUnavailable),
			http.StatusServiceUnavailable, escache.CodePeerUnavailable},
		{"unknown field", `{"pool":"p","force":true}`, nil, http.StatusBadRequest, escache.CodeInvalidRequest},
		{"no JSON", `x`, nil, http.StatusBadRequest, escache.CodeInvalidRequest},
	}
	for _, row := range rows {
		r := newRecord()
		r.readErr = row.readErr
		w := httptest.NewRecorder()
		sound("n1", r).Handler().ServeHTTP(w,
			httptest.NewRequest(http.MethodPost, escache.PathOutdatePeer, strings.NewReader(row.body)))
		if w.Code != row.status || (row.code != "" && !strings.Contains(w.Body.String(), string(row.code))) {
			t.Errorf("%s: %d %s", row.name, w.Code, w.Body)
		}
	}
}

func TestTheRecordIsReadAnewForEachAnswer(t *testing.T) {
	rows := []struct {
		name, query string
		readErr     error
		status      int
		want        string
	}{
		{"as it is", "?pool=p&image=i", nil, http.StatusOK, `{"pool":"p","image":"i","imageID":"id","attachedNode":"n1","epoch":7,` +
			`"replicas":["n1","n2"],"outdated":["n2"]}`},
		{"unknown volume", "?pool=p&image=x", nil, http.StatusNotFound, string(escache.CodeNotFound)},
		{"no API", "?pool=p&image=i", errors.Join(kube.ErrUnavailable), http.StatusServiceUnavailable, string(escache.CodePeerUnavailable)},
		{"no image", "?pool=p", nil, http.StatusBadRequest, string(escache.CodeInvalidRequest)},
	}
	for _, row := range rows {
		r := newRecord()
		r.readErr, r.v.Status.Outdated = row.readErr, []string{"n2"}
		w := httptest.NewRecorder()
		sound("n1", r).Handler().ServeHTTP(w,
			httptest.NewRequest(http.MethodGet, escache.PathRecord+row.query, nil))
		if w.Code != row.status || !strings.Contains(w.Body.String(), row.want) || r.writes > 0 {
			t.Errorf("%s: %d %s", row.name, w.Code, w.Body)
		}
	}
}

func TestTheRecordSaysWhetherCephHasEverything(t *testing.T) {
	for where, want := range map[v1alpha1.Authority]bool{v1alpha1.AuthorityCache: false, v1alpha1.AuthorityCeph: true} {
		r := newRecord()
		r.v.Status.Authority = where
		w := httptest.NewRecorder()
		sound("n1", r).Handler().ServeHTTP(w,
			httptest.NewRequest(http.MethodGet, escache.PathRecord+"?pool=p&image=i", nil))
		if got := strings.Contains(w.Body.String(), `"inCeph":true`); got != want {
			t.Errorf("%s: %s", where, w.Body)
		}
	}
}

func TestTheRecordTellsWhichMachineHasTheVolume(t *testing.T) {
	for at, want := range map[string]bool{"n1": true, "n2": false, "": false} {
		r := newRecord()
		r.v.Status.AttachedNode = at
		r.v.Status.SetHostID("n1", "machine-1")
		w := httptest.NewRecorder()
		sound("n1", r).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, escache.PathRecord+"?pool=p&image=i", nil))
		if got := strings.Contains(w.Body.String(), `"attachedHostID":"machine-1"`); got != want {
			t.Errorf("attached to %q: %s", at, w.Body)
		}
	}
}

func TestTheRecordTellsWhatWasDiscarded(t *testing.T) {
	for _, discarded := range []*v1alpha1.DiscardedCache{nil, {Epoch: 5}} {
		r := newRecord()
		r.v.Status.Discarded = discarded
		w := httptest.NewRecorder()
		sound("n1", r).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, escache.PathRecord+"?pool=p&image=i", nil))
		if got := strings.Contains(w.Body.String(), `"discardedEpoch":5`); got != (discarded != nil) {
			t.Errorf("discarded %+v: %s", discarded, w.Body)
		}
	}
}

func TestTheRecordTellsWhoMayBeFrozen(t *testing.T) {
	r := newRecord()
	r.v.Status.ClientAddress = "10.0.0.1:0/1"
	r.v.Status.Fenced = []v1alpha1.FencedClient{{Node: "n2", Address: "10.0.0.2:0/2"}, {Address: "10.0.0.3:0/3"}, {Node: "n3"}}
	for _, want := range []string{`"inUse":true`, `"fenced":["n2","n3"]`} {
		w := httptest.NewRecorder()
		sound("n1", r).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, escache.PathRecord+"?pool=p&image=i", nil))
		if !strings.Contains(w.Body.String(), want) {
			t.Errorf("there is no %s in %s", want, w.Body)
		}
	}
	r.v.Status.ClientAddress, r.v.Status.Fenced = "", nil
	w := httptest.NewRecorder()
	sound("n1", r).Handler().ServeHTTP(w, httptest.NewRequest(http.MethodGet, escache.PathRecord+"?pool=p&image=i", nil))
	if body := w.Body.String(); strings.Contains(body, "inUse") || strings.Contains(body, "fenced") {
		t.Error(body)
	}
}
