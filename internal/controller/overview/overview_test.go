package overview

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// serve starts the page in front of an API server that knows the tokens "viewer" and "stranger".
func serve(t *testing.T) (*httptest.Server, *int) {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, v1alpha1.AddToScheme} {
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
	f := &v1alpha1.CacheFlush{ObjectMeta: metav1.ObjectMeta{Name: "evacuate-n1"}, Spec: v1alpha1.CacheFlushSpec{Node: "n1", Mode: "Drain"}}
	f.Status = v1alpha1.CacheFlushStatus{Phase: v1alpha1.FlushRunning, Percent: 40, Summary: v1alpha1.CacheFlushSummary{Left: "1.8Gi", Rate: "90Mi/s"}}
	reviews := 0
	api := fake.NewClientBuilder().WithScheme(scheme).WithObjects(g, v, f).WithInterceptorFuncs(interceptor.Funcs{
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
	s := httptest.NewServer(New(Options{}, api, api, slog.New(slog.DiscardHandler), time.Now).Handler())
	t.Cleanup(s.Close)
	return s, &reviews
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
	for _, path := range []string{"/", "/live"} {
		for token, want := range map[string]int{"": 401, "guess": 401, "stranger": 403, "viewer": 200} {
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
		"rack1", "2/3 hosts ready", "256Gi of 1Ti", "width:25%", "↔ n2: 1 volume,", "1 with an outdated copy", "evacuate-n1", "40 %", "shop/&lt;script&gt;",
		"&lt;b&gt;no", "width:75%",
	} {
		if !strings.Contains(body, word) {
			t.Errorf("no %q in\n%s", word, body)
		}
	}
	for _, word := range []string{"cache 0 of 0", "1 volumes", "seen 0s"} {
		if strings.Contains(body, word) {
			t.Errorf("%q in\n%s", word, body)
		}
	}
	if policy := header.Get("Content-Security-Policy"); !strings.Contains(policy, "script-src 'sha256-") || !strings.Contains(policy, "frame-ancestors 'none'") {
		t.Errorf("policy %q", policy)
	}
	_, after, _ := strings.Cut(body, "<script>")
	script, _, _ := strings.Cut(after, "</script>")
	sum := sha256.Sum256([]byte(script))
	if hash := base64.StdEncoding.EncodeToString(sum[:]); script == "" || !strings.Contains(header.Get("Content-Security-Policy"), hash) {
		t.Errorf("the policy does not let the page's script run, whose hash is %s", hash)
	}
	// For looking at it in a browser.
	if path := os.Getenv("ESCACHE_PAGE"); path != "" {
		if err := os.WriteFile(path, []byte(body), 0o644); err != nil {
			t.Fatal(err)
		}
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
	if err := (&Options{Address: ":8443", Cert: "c"}).Validate(); err == nil {
		t.Error("a certificate without a key")
	}
}
