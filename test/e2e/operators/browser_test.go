//go:build e2e

package operators

import (
	"bytes"
	"context"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// inBrowser looks at the page as Chromium shows it: its script has to get through the page's own
// policy, and see when it is stale. ESCACHE_SCREENS=DIR keeps pictures of it.
func (w *world) inBrowser(t *testing.T, address, token string) {
	target, err := url.Parse(address)
	must(t, err)
	var asked atomic.Int32
	var broken atomic.Bool
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = trusting(nil).Transport
	// Chromium has no flag for a header; what a login sets as a cookie comes from here instead.
	front := httptest.NewServer(http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/live" {
			asked.Add(1)
			if broken.Load() {
				http.Error(out, "away", http.StatusBadGateway)
				return
			}
		}
		if r.URL.Path != "/login" {
			r.Header.Set("Authorization", "Bearer "+token)
		}
		proxy.ServeHTTP(out, r)
	}))
	defer front.Close()
	if page := chromium(t, "--dump-dom", front.URL); asked.Load() == 0 || !strings.Contains(page, "pvc-a") || strings.Contains(page, `class="stale"`) {
		t.Errorf("the page asked %d times for news, and shows\n%s", asked.Load(), page)
	}
	broken.Store(true)
	if page := chromium(t, "--dump-dom", front.URL); !strings.Contains(page, `class="stale"`) {
		t.Errorf("the page does not say that what it shows is old:\n%s", page)
	}
	broken.Store(false)
	if dir := os.Getenv("ESCACHE_SCREENS"); dir != "" {
		for name, size := range map[string]string{"desktop": "1280,1000", "phone": "500,1600"} {
			chromium(t, "--window-size="+size, "--screenshot="+filepath.Join(dir, "page-"+name+".png"), front.URL)
			chromium(t, "--window-size="+size, "--screenshot="+filepath.Join(dir, "login-"+name+".png"), address)
		}
	}
}

func chromium(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, "chromium", append([]string{
		"--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
		"--disable-component-update", "--disable-sync", "--ignore-certificate-errors", "--user-data-dir=" + t.TempDir(),
		"--virtual-time-budget=7000", // for the page's clock, which then does not wait
	}, args...)...)
	var out, complaints bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaints
	if err := command.Run(); err != nil {
		t.Fatalf("chromium (hack/setup.sh screens installs it): %v\n%s", err, complaints.String())
	}
	return out.String()
}
