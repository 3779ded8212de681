package arbiter

import (
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/kube"
)

// Whoever wins the compare-and-swap, one copy stays current: the peer goes on record while the host
// with the failed disk asks. The peer may have everything all the same, and not be counted yet: then
// the watch has to look at once, because until it has counted the peer a power loss here loses what the
// peer alone has.
func TestAFailedDiskGoesOnRecord(t *testing.T) {
	body := `{"pool":"p","image":"i","imageID":"id","node":"n1","peer":"n2"}`
	booted := strings.Replace(body, "}", `,"booted":true}`, 1)
	for _, row := range []struct {
		name     string
		change   func(r *record)
		body     string
		status   int
		outdated []string
		looks    int
	}{
		{"its node asks", func(*record) {}, body, http.StatusNoContent, []string{"n1"}, 0},
		{"it is on record already", func(r *record) { r.v.Status.Outdated = []string{"n1"} }, body, http.StatusNoContent, []string{"n1"}, 0},
		{"the peer goes on record meanwhile", func(r *record) {
			r.meanwhile = func(v *v1alpha1.CacheVolume) { v.ResourceVersion, v.Status.Outdated = "second", []string{"n2"} }
		}, body, http.StatusConflict, []string{"n2"}, 1},
		{"it was booted, and the peer has the volume", func(r *record) { r.v.Status.AttachedNode = "n2" }, booted, http.StatusNoContent, []string{"n1"}, 0},
		{"it was booted, and has the volume", func(*record) {}, booted, http.StatusConflict, nil, 0},
		{"it was booted, and is the only current one", func(r *record) {
			r.v.Status.AttachedNode, r.v.Status.Outdated = "n2", []string{"n2"}
		}, booted, http.StatusConflict, []string{"n2"}, 0},
		{"another node asks", func(*record) {}, strings.Replace(body, `"n1"`, `"n3"`, 1), http.StatusConflict, nil, 0},
		{"no API", func(r *record) { r.readErr = kube.ErrUnavailable }, body, http.StatusServiceUnavailable, nil, 0},
		{"no JSON", func(*record) {}, "x", http.StatusBadRequest, nil, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			r := newRecord()
			row.change(r)
			w, looks := httptest.NewRecorder(), 0
			New("n1", r, func(*v1alpha1.CacheVolume) {}, func() { looks++ }, slog.New(slog.DiscardHandler)).Handler().ServeHTTP(w,
				httptest.NewRequest(http.MethodPost, escache.PathOutdateSelf, strings.NewReader(row.body)))
			if w.Code != row.status || !slices.Equal(r.v.Status.Outdated, row.outdated) || looks != row.looks {
				t.Errorf("%d %s, outdated %v, %d looks", w.Code, w.Body, r.v.Status.Outdated, looks)
			}
		})
	}
}

// The peer's csi-node has read the record, sees this copy current, and is about to take it off the
// list. If the disk fails in between, taking it off has to fail, although the record lists this copy
// already: or the peer would go on alone while this copy counts.
func TestAFailedDiskDefeatsARemovalThatIsUnderWay(t *testing.T) {
	r := newRecord()
	r.v.Status.Outdated = []string{"n1"}
	for range 2 { // also a second report, in the same second
		read, err := r.VolumeOf(t.Context(), escache.VolumeRef{Pool: "p", Image: "i"})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		New("n1", r, func(*v1alpha1.CacheVolume) {}, func() {}, slog.New(slog.DiscardHandler)).Handler().ServeHTTP(w,
			httptest.NewRequest(http.MethodPost, escache.PathOutdateSelf,
				strings.NewReader(`{"pool":"p","image":"i","imageID":"id","node":"n1","peer":"n2"}`)))
		if w.Code != http.StatusNoContent {
			t.Fatalf("%d %s", w.Code, w.Body)
		}
		removal := map[string]any{"outdated": []string{}, "conditions": read.Status.Conditions}
		if _, err := r.PatchStatus(t.Context(), read, removal); !errors.Is(err, kube.ErrConflict) {
			t.Fatalf("the removal went through: %v, outdated %v", err, r.v.Status.Outdated)
		}
	}
}
