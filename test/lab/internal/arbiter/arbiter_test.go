package arbiter

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
)

var volume = escache.VolumeRef{Pool: "rbd", Image: "v"} //nolint:gochecknoglobals // a constant

func open(t *testing.T) *Store {
	t.Helper()
	s, err := Open(filepath.Join(t.TempDir(), "records.json"))
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func attach(t *testing.T, s *Store, node string, epoch int64) {
	t.Helper()
	if _, err := s.Attach(volume, "", node, epoch); err != nil {
		t.Fatal(err)
	}
}

func TestOnlyANewerEpochTakesTheVolume(t *testing.T) {
	tests := map[string]struct {
		node  string
		epoch int64
		stale bool
	}{
		"newer, another node":    {"n2", 6, false},
		"newer, same node":       {"n1", 6, false},
		"the same once more":     {"n1", 5, false},
		"same epoch, other node": {"n2", 5, true},
		"older":                  {"n1", 4, true},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			attach(t, s, "n1", 5)
			_, err := s.Attach(volume, "", test.node, test.epoch)
			if errors.Is(err, ErrStale) != test.stale {
				t.Errorf("got %v", err)
			}
			if r, _ := s.Get(volume); test.stale && (r.AttachedNode != "n1" || r.Epoch != 5) {
				t.Errorf("a refused claim changed the record: %+v", r)
			}
		})
	}
}

func TestOfManyRivalsForAnEpochOneWins(t *testing.T) {
	s := open(t)
	var won atomic.Int32
	var group sync.WaitGroup
	for _, node := range []string{"n1", "n2", "n3", "n4", "n5"} {
		group.Go(func() {
			if _, err := s.Attach(volume, "", node, 1); err == nil {
				won.Add(1)
			}
		})
	}
	group.Wait()
	if won.Load() != 1 {
		t.Errorf("%d won", won.Load())
	}
}

func TestAPeerIsOutdatedOnlyForTheOneWhoMayWrite(t *testing.T) {
	tests := map[string]struct {
		request escache.OutdatePeerRequest
		granted bool
	}{
		"attached node, its epoch": {escache.OutdatePeerRequest{VolumeRef: volume, ImageID: "i", Node: "n1", Peer: "n2", Epoch: 5}, true},
		"not attached":             {escache.OutdatePeerRequest{VolumeRef: volume, ImageID: "i", Node: "n2", Peer: "n1", Epoch: 5}, false},
		"older epoch":              {escache.OutdatePeerRequest{VolumeRef: volume, ImageID: "i", Node: "n1", Peer: "n2", Epoch: 4}, false},
		"epoch nobody gave":        {escache.OutdatePeerRequest{VolumeRef: volume, ImageID: "i", Node: "n1", Peer: "n2", Epoch: 6}, false},
		"another image":            {escache.OutdatePeerRequest{VolumeRef: volume, ImageID: "j", Node: "n1", Peer: "n2", Epoch: 5}, false},
		"unknown volume": {
			escache.OutdatePeerRequest{VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "w"}, Node: "n1", Peer: "n2", Epoch: 5}, false,
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			s := open(t)
			if _, err := s.Attach(volume, "i", "n1", 5); err != nil {
				t.Fatal(err)
			}
			err := s.OutdatePeer(test.request)
			if (err == nil) != test.granted {
				t.Errorf("got %v", err)
			}
			r, err := s.Get(volume)
			if want := test.granted; err != nil || slices.Equal(r.Outdated, []string{"n2"}) != want || !want && len(r.Outdated) > 0 {
				t.Errorf("record %+v, %v", r, err)
			}
		})
	}
}

func TestOneThatIsItselfOutdatedIsNeverGranted(t *testing.T) {
	s := open(t)
	attach(t, s, "n1", 1)
	outdate := func(node, peer string, epoch int64) error {
		return s.OutdatePeer(escache.OutdatePeerRequest{VolumeRef: volume, Node: node, Peer: peer, Epoch: epoch})
	}
	if err := outdate("n1", "n2", 1); err != nil {
		t.Fatal(err)
	}
	attach(t, s, "n2", 2)
	if err := outdate("n2", "n1", 2); !errors.Is(err, authority.ErrRefused) {
		t.Errorf("granted to an outdated node: %v", err)
	}
	if _, err := s.Resynced(volume, "n2"); err != nil {
		t.Fatal(err)
	}
	if err := outdate("n2", "n1", 2); err != nil {
		t.Errorf("refused after its resync: %v", err)
	}
}

func TestRecordsAreOnDiskBeforeTheAnswer(t *testing.T) {
	s := open(t)
	attach(t, s, "n1", 1)
	if err := s.OutdatePeer(escache.OutdatePeerRequest{VolumeRef: volume, Node: "n1", Peer: "n2", Epoch: 1}); err != nil {
		t.Fatal(err)
	}
	again, err := Open(s.path)
	if err != nil {
		t.Fatal(err)
	}
	if r, err := again.Get(volume); err != nil || !slices.Equal(r.Outdated, []string{"n2"}) || r.AttachedNode != "n1" {
		t.Errorf("read back %+v, %v", r, err)
	}
}

func TestWhatCannotBeSavedIsNotGranted(t *testing.T) {
	s := open(t)
	attach(t, s, "n1", 1)
	if err := os.RemoveAll(filepath.Dir(s.path)); err != nil {
		t.Fatal(err)
	}
	if err := s.OutdatePeer(escache.OutdatePeerRequest{VolumeRef: volume, Node: "n1", Peer: "n2", Epoch: 1}); err == nil {
		t.Error("granted")
	}
	if r, err := s.Get(volume); err != nil || len(r.Outdated) != 0 {
		t.Errorf("record %+v, %v", r, err)
	}
}

func TestOverHTTP(t *testing.T) {
	record := `{"pool":"rbd","image":"v","attachedNode":"n1","epoch":1}`
	steps := []struct {
		name, method, path, body string
		status                   int
		code                     escache.Code
	}{
		{"no record yet", "GET", "/v1/record?pool=rbd&image=v", "", 404, escache.CodeNotFound},
		{"attach", "PUT", "/v1/record", record, 200, ""},
		{"attach again", "PUT", "/v1/record", record, 200, ""},
		{"stale", "PUT", "/v1/record", strings.Replace(record, "n1", "n2", 1), 409, escache.CodeStaleEpoch},
		{"no epoch", "PUT", "/v1/record", `{"pool":"rbd","image":"v","attachedNode":"n1"}`, 400, escache.CodeInvalidRequest},
		{"unknown key", "PUT", "/v1/record", `{"pool":"rbd","image":"v","node":"n1","epoch":2}`, 400, escache.CodeInvalidRequest},
		{"not attached", "POST", "/v1/outdate-peer", `{"pool":"rbd","image":"v","imageID":"","node":"n2","peer":"n1","epoch":1}`,
			409, escache.CodeStaleEpoch},
		{"itself", "POST", "/v1/outdate-peer", `{"pool":"rbd","image":"v","imageID":"","node":"n1","peer":"n1","epoch":1}`, 400, escache.CodeInvalidRequest},
		{"granted", "POST", "/v1/outdate-peer", `{"pool":"rbd","image":"v","imageID":"","node":"n1","peer":"n2","epoch":1}`, 204, ""},
		{"there it is", "GET", "/v1/record?pool=rbd&image=v", "", 200, ""},
		{"resynced", "POST", "/v1/resynced", `{"pool":"rbd","image":"v","node":"n2"}`, 200, ""},
		{"delete", "DELETE", "/v1/record?pool=rbd&image=v", "", 204, ""},
		{"delete again", "DELETE", "/v1/record?pool=rbd&image=v", "", 204, ""},
		{"too much", "PUT", "/v1/record", `{"pool":"` + strings.Repeat("x", maxBody) + `"}`, 400, escache.CodeInvalidRequest},
	}
	handler := Handler(open(t))
	for _, step := range steps {
		recorder := httptest.NewRecorder()
		handler.ServeHTTP(recorder, httptest.NewRequest(step.method, step.path, strings.NewReader(step.body)))
		if recorder.Code != step.status {
			t.Fatalf("%s: %d %s", step.name, recorder.Code, recorder.Body)
		}
		if step.status < http.StatusBadRequest {
			continue
		}
		var problem escache.Problem
		if err := json.Unmarshal(recorder.Body.Bytes(), &problem); err != nil || problem.Code != step.code {
			t.Errorf("%s: %v %s", step.name, err, recorder.Body)
		}
	}
}
