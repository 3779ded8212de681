package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// server answers with what the test sets, and notes what it was asked.
type server struct {
	answer func(method, path string) (int, string)
	asked  []string
	body   string
	kind   string
}

func start(t *testing.T) (*server, *Client) {
	t.Helper()
	s := &server{}
	h := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		s.asked = append(s.asked, r.Method+" "+r.URL.RequestURI())
		s.body, s.kind = string(body), r.Header.Get("Content-Type")
		code, answer := s.answer(r.Method, r.URL.RequestURI())
		w.WriteHeader(code)
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(h.Close)
	c, err := New(&rest.Config{Host: h.URL})
	if err != nil {
		t.Fatal(err)
	}
	return s, c
}

func volume(name, pool, image string) string {
	return fmt.Sprintf(`{"metadata":{"name":%q,"resourceVersion":"7"},"spec":{"pool":%q,"image":%q}}`, name, pool, image)
}

func TestErrorsAreReported(t *testing.T) {
	s, c := start(t)
	for code, want := range map[int]error{
		http.StatusNotFound: ErrNotFound, http.StatusConflict: ErrConflict, http.StatusServiceUnavailable: ErrUnavailable,
		http.StatusTooManyRequests: ErrUnavailable, http.StatusInternalServerError: ErrUnavailable,
		http.StatusUnauthorized: ErrForbidden, http.StatusForbidden: ErrForbidden,
	} {
		s.answer = func(string, string) (int, string) { return code, `{"kind":"Status","message":"why not"}` }
		if _, err := c.Volume(t.Context(), "v"); !errors.Is(err, want) || !strings.Contains(err.Error(), "why not") {
			t.Errorf("%d: %v", code, err)
		}
	}
	s.answer = func(string, string) (int, string) { return http.StatusTeapot, `{"message":"no"}` }
	if _, err := c.Volume(t.Context(), "v"); err == nil || errors.Is(err, ErrUnavailable) || errors.Is(err, ErrNotFound) {
		t.Errorf("an answer that nobody expects: %v", err)
	}
	down, err := New(&rest.Config{Host: "http://127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := down.Volume(t.Context(), "v"); !errors.Is(err, ErrUnavailable) {
		t.Errorf("down: %v", err)
	}
}

func TestAReadOnlyVolumeIsReadByItsName(t *testing.T) {
	s, c := start(t)
	s.answer = func(string, string) (int, string) {
		return http.StatusOK, `{"metadata":{"name":"r"},"spec":{"image":"escache-r"},"status":{"copies":[{"node":"n1","imageID":"1d1"}]}}`
	}
	v, err := c.ReadOnlyVolume(t.Context(), "r")
	if err != nil || v.Spec.Image != "escache-r" || v.CopyOn("n1") == nil || v.CopyOn("n1").ImageID != "1d1" || v.CopyOn("n2") != nil {
		t.Errorf("%+v, %v", v, err)
	}
	if len(s.asked) != 1 || s.asked[0] != "GET /apis/escache.io/v1alpha1/readonlyvolumes/r" {
		t.Errorf("asked %q", s.asked)
	}
	if _, err := c.ReadOnlyVolume(t.Context(), ".."); !errors.Is(err, ErrNotFound) || len(s.asked) != 1 {
		t.Errorf("a name that is none: %v, asked %q", err, s.asked)
	}
}

// A path with one of these names is another object's, or the list of all.
func TestANameThatIsNoneIsNotAskedFor(t *testing.T) {
	s, c := start(t)
	s.answer = func(string, string) (int, string) { return http.StatusOK, volume("v", "rbd", "v") }
	for _, name := range []string{"", ".", ".."} {
		if v, err := c.Volume(t.Context(), name); !errors.Is(err, ErrNotFound) || len(s.asked) > 0 {
			t.Errorf("%q: %v, %v; asked for %q", name, v, err, s.asked)
		}
	}
}

func TestAVolumeIsFoundByItsImage(t *testing.T) {
	s, c := start(t)
	c.ImagePrefix = "escache-"
	pages := map[string]string{
		"GET /apis/escache.io/v1alpha1/cachevolumes?limit=250": `{"metadata":{"continue":"more"},"items":[` + volume("a", "p", "x") + `]}`,
		"GET /apis/escache.io/v1alpha1/cachevolumes?continue=more&limit=250": `{"metadata":{},"items":[` +
			volume("b", "other", "img") + "," + volume("c", "p", "img") + `]}`,
		"GET /apis/escache.io/v1alpha1/cachevolumes/c":     volume("c", "p", "img"),
		"GET /apis/escache.io/v1alpha1/cachevolumes/same":  volume("same", "p", "same"),
		"GET /apis/escache.io/v1alpha1/cachevolumes/pvc-1": volume("pvc-1", "p", "escache-pvc-1"),
	}
	s.answer = func(method, path string) (int, string) {
		if page, ok := pages[method+" "+path]; ok {
			return http.StatusOK, page
		}
		return http.StatusNotFound, "{}"
	}
	v, err := c.VolumeOf(t.Context(), escache.VolumeRef{Pool: "p", Image: "same"})
	if err != nil || v.Name != "same" || len(s.asked) != 1 {
		t.Errorf("%v %v %q", v, err, s.asked)
	}
	s.asked = nil
	v, err = c.VolumeOf(t.Context(), escache.VolumeRef{Pool: "p", Image: "escache-pvc-1"})
	if err != nil || v.Name != "pvc-1" || len(s.asked) != 1 {
		t.Errorf("%v %v %q", v, err, s.asked)
	}
	if v, err = c.VolumeOf(t.Context(), escache.VolumeRef{Pool: "other", Image: "escache-pvc-1"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("the name fits and the pool does not: %v %v", v, err)
	}
	if v, err = c.VolumeOf(t.Context(), escache.VolumeRef{Pool: "p", Image: "img"}); err != nil || v.Name != "c" {
		t.Errorf("%v %v", v, err)
	}
	if _, err = c.VolumeOf(t.Context(), escache.VolumeRef{Pool: "p", Image: "nowhere"}); !errors.Is(err, ErrNotFound) {
		t.Errorf("%v", err)
	}
}

// TestAVolumeIsFoundByOneReadWhateverThePrefix: the arbiter looks volumes up while I/O is frozen, all
// volumes of a lost host at once. A list of all volumes for each would take too long.
func TestAVolumeIsFoundByOneReadWhateverThePrefix(t *testing.T) {
	s, c := start(t)
	for prefix, image := range map[string]string{"cluster-a-": "cluster-a-pvc-1", "": "pvc-1", "x": "xpvc-1", "escache-": "escache-pvc-1"} {
		c.ImagePrefix = prefix
		s.asked = nil
		s.answer = func(method, path string) (int, string) {
			if method+" "+path == "GET /apis/escache.io/v1alpha1/cachevolumes/pvc-1" {
				return http.StatusOK, volume("pvc-1", "p", image)
			}
			return http.StatusNotFound, "{}"
		}
		v, err := c.VolumeOf(t.Context(), escache.VolumeRef{Pool: "p", Image: image})
		if err != nil || v.Name != "pvc-1" || len(s.asked) != 1 {
			t.Errorf("prefix %q: %v, %q", prefix, err, s.asked)
		}
	}
}

func TestChangesNameTheVersionTheyWereDecidedOn(t *testing.T) {
	s, c := start(t)
	s.answer = func(string, string) (int, string) { return http.StatusOK, volume("v", "p", "i") }
	v := &v1alpha1.CacheVolume{}
	v.Name, v.ResourceVersion = "v", "42"
	var sent struct {
		Metadata struct {
			ResourceVersion string            `json:"resourceVersion"`
			Annotations     map[string]string `json:"annotations"`
		} `json:"metadata"`
		Status map[string]any `json:"status"`
	}
	if _, err := c.PatchStatus(t.Context(), v, map[string]any{"dirtyBytes": 5}); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(s.body), &sent); err != nil || sent.Metadata.ResourceVersion != "42" || sent.Status["dirtyBytes"] != 5.0 ||
		s.asked[0] != "PATCH /apis/escache.io/v1alpha1/cachevolumes/v/status" || s.kind != "application/merge-patch+json" {
		t.Errorf("%q %s %s", s.asked, s.kind, s.body)
	}
	for want, nodes := range map[string][]string{"n1,n2": {"n1", "n2"}, "": {}} {
		if _, err := c.PatchStatus(t.Context(), v, map[string]any{"outdated": nodes}); err != nil {
			t.Fatal(err)
		}
		sent.Status = nil
		if err := json.Unmarshal([]byte(s.body), &sent); err != nil || !reflect.DeepEqual(sent.Status["summary"], map[string]any{"outdated": want}) {
			t.Errorf("outdated nodes %q: %s", nodes, s.body)
		}
	}
	s.asked = s.asked[:1]
	if _, err := c.Annotate(t.Context(), v, "k", "x"); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(s.body), &sent); err != nil || sent.Metadata.Annotations["k"] != "x" ||
		s.asked[1] != "PATCH /apis/escache.io/v1alpha1/cachevolumes/v" {
		t.Errorf("%q %s", s.asked, s.body)
	}
}

func TestAnEventIsOnTheClaimOrElseOnTheVolume(t *testing.T) {
	s, c := start(t)
	s.answer = func(method, path string) (int, string) {
		if strings.HasSuffix(path, "/persistentvolumeclaims/data") {
			return http.StatusOK, `{"metadata":{"name":"data","namespace":"app","uid":"u-1"}}`
		}
		if method == http.MethodPost {
			return http.StatusCreated, "{}"
		}
		return http.StatusNotFound, "{}"
	}
	v := &v1alpha1.CacheVolume{}
	v.Name, v.UID = "pvc-1", "u-2"
	v.Annotations = map[string]string{v1alpha1.AnnotationClaim: "app/data"}
	event := Event{Warning: true, Reason: "PeerLost", Message: strings.Repeat("x", 3000), Time: time.Now()}
	if err := c.Emit(t.Context(), "n1", v, event); err != nil {
		t.Fatal(err)
	}
	var sent coreEvent
	if err := json.Unmarshal([]byte(s.body), &sent); err != nil {
		t.Fatal(err)
	}
	if sent.InvolvedObject.Kind != "PersistentVolumeClaim" || sent.InvolvedObject.UID != "u-1" || sent.Metadata.Namespace != "app" ||
		sent.Type != "Warning" || len(sent.Message) != messageLimit || s.asked[len(s.asked)-1] != "POST /api/v1/namespaces/app/events" {
		t.Errorf("%q %+v", s.asked, sent)
	}
	v.Annotations[v1alpha1.AnnotationClaim] = "app/deleted"
	if err := c.Emit(t.Context(), "n1", v, event); err != nil {
		t.Fatal(err)
	}
	_ = json.Unmarshal([]byte(s.body), &sent)
	if sent.InvolvedObject.Kind != "CacheVolume" || sent.Metadata.Namespace != "default" {
		t.Errorf("%+v", sent.InvolvedObject)
	}
}

func TestEventsOfOneMomentHaveNamesOfTheirOwn(t *testing.T) {
	s, c := start(t)
	kept := map[string]bool{}
	s.answer = func(method, _ string) (int, string) {
		if method != http.MethodPost {
			return http.StatusNotFound, "{}"
		}
		var sent coreEvent
		if err := json.Unmarshal([]byte(s.body), &sent); err != nil {
			t.Error(err)
		}
		if kept[sent.Metadata.Name] {
			return http.StatusConflict, `{"message":"already exists"}`
		}
		kept[sent.Metadata.Name] = true
		return http.StatusCreated, "{}"
	}
	v := &v1alpha1.CacheVolume{}
	v.Name = "pvc-1"
	now := time.Now()
	first := Event{Reason: "Recovered", Message: "PeerLost is over", Time: now}
	for _, e := range []Event{first, {Reason: "Recovered", Message: "Resyncing is over", Time: now}, first} {
		if err := c.Emit(t.Context(), "n1", v, e); err != nil {
			t.Error(err)
		}
	}
	if len(kept) != 2 {
		t.Errorf("%d Events were kept of two that differ and one that was sent again", len(kept))
	}
}

func TestAHostThatShutsDownIsKnownByItsKubeletsWord(t *testing.T) {
	s, c := start(t)
	const ready = `{"status":{"conditions":[{"type":"DiskPressure","status":"False"},{"type":"Ready","status":%q,"message":%q}]}}`
	for _, row := range []struct {
		answer string
		down   bool
	}{
		{fmt.Sprintf(ready, "True", "kubelet is posting ready status"), false},
		{fmt.Sprintf(ready, "False", "[container runtime is down, node is shutting down]"), true},
		{fmt.Sprintf(ready, "False", "container runtime is down"), false},
		{fmt.Sprintf(ready, "Unknown", "Kubelet stopped posting node status."), false},
		{`{}`, false},
	} {
		s.answer = func(string, string) (int, string) { return http.StatusOK, row.answer }
		if down, err := c.NodeShutsDown(t.Context(), "n1"); down != row.down || err != nil {
			t.Errorf("%s: %v %v", row.answer, down, err)
		}
	}
	s.answer = func(string, string) (int, string) { return http.StatusForbidden, "" }
	if _, err := c.NodeShutsDown(t.Context(), "n1"); err == nil {
		t.Error("a refusal is taken for an answer")
	}
}

func TestADaemonSetIsDeletedWhenItIsGoneOrGoingOrNobodyMayAsk(t *testing.T) {
	s, c := start(t)
	for _, row := range []struct {
		code    int
		answer  string
		deleted bool
		fails   bool
	}{
		{http.StatusOK, `{"metadata":{"name":"escache-node"}}`, false, false},
		{http.StatusOK, `{"metadata":{"name":"escache-node","deletionTimestamp":"2026-01-02T03:04:05Z"}}`, true, false},
		{http.StatusNotFound, "", true, false},
		{http.StatusForbidden, "", true, false},
		{http.StatusUnauthorized, "", true, false},
		{http.StatusInternalServerError, "", false, true},
	} {
		s.answer = func(string, string) (int, string) { return row.code, row.answer }
		if deleted, err := c.DaemonSetDeleted(t.Context(), "system", "escache-node"); deleted != row.deleted || (err != nil) != row.fails {
			t.Errorf("%d %s: %v, %v", row.code, row.answer, deleted, err)
		}
	}
	if want := "GET /apis/apps/v1/namespaces/system/daemonsets/escache-node"; s.asked[0] != want {
		t.Errorf("asked %s, not %s", s.asked[0], want)
	}
}
