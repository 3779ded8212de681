package overview

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// serve starts the page in front of an API server that knows the tokens "viewer" and "stranger".
func serve(t *testing.T, change ...func(*Config)) (*httptest.Server, *int) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, v1alpha1.AddToScheme} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	seen := metav1.Now()
	g := &v1alpha1.NodeGroup{ObjectMeta: metav1.ObjectMeta{Name: "rack1"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"n1", "n2", "n3"}}}
	g.Status.Summary = v1alpha1.NodeGroupSummary{Ready: "2/3", Dirty: "3Gi"}
	g.Status.Members = []v1alpha1.NodeGroupMember{
		{Name: "n1", Ready: true, CacheCapacityBytes: 1 << 40, CacheAllocatedBytes: 1 << 38, DirtyBytes: 3 << 30, Volumes: 1, Primaries: 1, LastSeen: &seen},
		{Name: "n2", Ready: true, CacheCapacityBytes: 1 << 40, CacheAllocatedBytes: 1 << 38, Volumes: 1, LastSeen: &seen},
		{Name: "n3", Message: "<b>no</b> answer"},
	}
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1", Annotations: map[string]string{v1alpha1.AnnotationClaim: "shop/<script>"}}}
	v.Spec = v1alpha1.CacheVolumeSpec{Group: "rack1", Replicas: []string{"n1", "n2"}, CacheBytes: 4 << 30}
	v.Status = v1alpha1.CacheVolumeStatus{Authority: v1alpha1.AuthorityCache, AttachedNode: "n1", Epoch: 1, DirtyBytes: 3 << 30, Outdated: []string{"n2"}}
	v.Status.Conditions = []metav1.Condition{
		{Type: v1alpha1.ConditionRedundant, Status: "False", Reason: v1alpha1.ReasonPeerLost, Message: "n2 does not answer"},
		{Type: v1alpha1.ConditionRepairing, Status: "True", Reason: "Copying", Message: "n1 copies to n3"},
	}
	v.Status.Repair = &v1alpha1.ReplicaRepair{Lost: "n2", Substitute: "n3", Since: seen}
	v.Status.Resync = &v1alpha1.VolumeResync{
		Node: "n3", Percent: 12, LeftBytes: 3 << 30, BytesPerSecond: 17 << 20, RemainingSeconds: 180, Seen: metav1.NewTime(seen.Add(-time.Hour)),
	}
	taken := &v1alpha1.CacheSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snap-1"}, Spec: v1alpha1.CacheSnapshotSpec{Volume: "pvc-1"}}
	taken.Status = v1alpha1.CacheSnapshotStatus{Taken: &seen, Summary: v1alpha1.CacheSnapshotSummary{Size: "10Gi"}}
	f := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "evacuate-n1"}, Spec: v1alpha1.CacheFlushSpec{Node: "n1", Mode: "Drain"}}
	f.Status = v1alpha1.CacheFlushStatus{Phase: v1alpha1.FlushRunning, Percent: 40, Summary: v1alpha1.CacheFlushSummary{Left: "1.8Gi", Rate: "90Mi/s"}}
	reviews := 0
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(g, v, f, taken).WithInterceptorFuncs(interceptor.Funcs{
		Create: func(_ context.Context, _ client.WithWatch, o client.Object, _ ...client.CreateOption) error {
			switch r := o.(type) {
			case *authenticationv1.TokenReview:
				reviews++
				r.Status.Authenticated = r.Spec.Token == "viewer" || r.Spec.Token == "stranger"
				r.Status.User.Username = r.Spec.Token
			case *authorizationv1.SubjectAccessReview:
				a := r.Spec.ResourceAttributes
				r.Status.Allowed = r.Spec.User == "viewer" && a.Verb == "list" && a.Resource == "cachevolumes" && a.Group == "escache.io"
			}
			return nil
		},
	}).Build()
	c := testConfig(api, api)
	for _, set := range change {
		set(&c)
	}
	s := httptest.NewServer(New(c).Handler())
	t.Cleanup(s.Close)
	return s, &reviews
}

func testConfig(records client.Reader, api client.Client) Config {
	return Config{
		Records: records, API: api, Leader: func(context.Context) (string, error) { return "controller-b", nil },
		Identity: "controller-a", Version: "v0.3.0", Namespace: "storage", Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Options: Options{Grafana: "https://grafana.example/d/escache?orgId=1"},
	}
}

func get(t *testing.T, url, token string) (int, string, http.Header) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	body, _ := io.ReadAll(answer.Body)
	return answer.StatusCode, string(body), answer.Header
}

func TestOnlyWhomKubernetesAllowsSeesThePage(t *testing.T) {
	s, reviews := serve(t)
	for _, path := range []string{"/", "/live", "/events"} {
		for token, want := range map[string]int{"": 401, "guess": 401, "stranger": 403, "viewer": 200} {
			if path == "/events" && want == 200 {
				continue // it goes on: see TestNewsComeAsTheyHappen
			}
			code, body, _ := get(t, s.URL+path, token)
			if code != want || strings.Contains(body, "pvc-1") != (want == 200) {
				t.Errorf("%s as %q: %d\n%s", path, token, code, body)
			}
		}
	}
	if *reviews != 3 {
		t.Errorf("%d reviews of three tokens", *reviews)
	}
}

func TestPageShowsGroupsAndEscapesWhatItShows(t *testing.T) {
	s, _ := serve(t)
	_, body, header := get(t, s.URL+"/", "viewer")
	for _, word := range []string{
		"rack1", "2/3 hosts ready", "256Gi of 1Ti", `value="25"`, "↔ n2: 1 volume,", "1 with an outdated copy", "evacuate-n1", "40 %", "shop/&lt;script&gt;",
		"&lt;b&gt;no", `value="75"`, "controller-b leads", "by controller-a, version v0.3.0", "n2 (not current)",
		"https://grafana.example/d/escache?orgId=1&amp;var-volume=pvc-1", "n1 copies to n3", "17Mi/s", "3m0s", "12 % at 2", "snap-1", "10Gi", "1 with one copy, 1 in repair",
		"n2 does not answer; 3Gi are on one host only", "bring the other host back", "kubectl -n storage get pods",
	} {
		if !strings.Contains(body, word) {
			t.Errorf("no %q in\n%s", word, body)
		}
	}
	for _, word := range []string{"cache 0 of 0", "1 volumes", "seen 0s", "<script>", " style=", " onclick="} {
		if strings.Contains(body, word) {
			t.Errorf("%q in\n%s", word, body)
		}
	}
	policy := header.Get("Content-Security-Policy")
	if !strings.Contains(policy, "script-src 'self'") || strings.Contains(policy, "unsafe") || !strings.Contains(policy, "frame-ancestors 'none'") {
		t.Errorf("policy %q", policy)
	}
	if problems, volumes := strings.Index(body, "What is wrong"), strings.Index(body, `id="volumes"`); problems > volumes {
		t.Error("problems do not come first")
	}
}

func TestScriptAndStyleAreThereBeforeALogin(t *testing.T) {
	s, _ := serve(t)
	for path, kind := range map[string]string{"/page.js": "text/javascript", "/page.css": "text/css"} {
		code, body, header := get(t, s.URL+path, "")
		if code != 200 || body == "" || !strings.HasPrefix(header.Get("Content-Type"), kind) {
			t.Errorf("%s: %d, %s", path, code, header.Get("Content-Type"))
		}
	}
	if code, _, _ := get(t, s.URL+"/page.html", "viewer"); code != 404 {
		t.Errorf("the template is served: %d", code)
	}
}

func TestLoginKeepsTheTokenFromScripts(t *testing.T) {
	s, _ := serve(t)
	jar, _ := cookiejar.New(nil)
	browser := &http.Client{Jar: jar}
	for token, want := range map[string]int{"guess": 401, "stranger": 403, "viewer": 200} {
		answer, err := browser.PostForm(s.URL+"/login", url.Values{"token": {token}})
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("%s: %d", token, answer.StatusCode)
		}
	}
	direct := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	answer, err := direct.PostForm(s.URL+"/login", url.Values{"token": {"viewer"}})
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	if to := answer.Header.Get("Location"); answer.StatusCode != http.StatusSeeOther || to != "./" {
		t.Errorf("%d to %q, which may not be below a proxy's path", answer.StatusCode, to)
	}
	if c := answer.Cookies(); len(c) != 1 || !c[0].HttpOnly || c[0].SameSite != http.SameSiteStrictMode {
		t.Errorf("cookies %v", c)
	}
}

func TestNothingCanBeChangedThere(t *testing.T) {
	s, _ := serve(t)
	for _, method := range []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete} {
		r, _ := http.NewRequestWithContext(t.Context(), method, s.URL+"/", nil)
		r.Header.Set("Authorization", "Bearer viewer")
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %d", method, answer.StatusCode)
		}
	}
}

func TestTokensNeverGoInTheClear(t *testing.T) {
	for address, ok := range map[string]bool{"": true, "127.0.0.1:8443": true, "[::1]:8443": true, ":8443": false, "10.0.0.1:8443": false, "nonsense": false} {
		o := Options{Address: address}
		if err := o.Validate(); (err == nil) != ok {
			t.Errorf("%q: %v", address, err)
		}
	}
	if err := (&Options{Address: ":8443", Cert: "c", Key: "k"}).Validate(); err != nil {
		t.Error(err)
	}
	for dashboard, ok := range map[string]bool{"https://g/d/x": true, "javascript:alert(1)": false, "g/d/x": false, "https://": false} {
		if err := (&Options{Address: "[::1]:1", Grafana: dashboard}).Validate(); (err == nil) != ok {
			t.Errorf("%q: %v", dashboard, err)
		}
		if err := (&Options{Address: "[::1]:1", Docs: dashboard}).Validate(); (err == nil) != ok {
			t.Errorf("docs %q: %v", dashboard, err)
		}
	}
	if err := (&Options{Address: ":8443", Cert: "c"}).Validate(); err == nil {
		t.Error("a certificate without a key")
	}
}
