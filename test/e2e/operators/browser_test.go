//go:build e2e

package operators

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// front is a proxy before the page, which gives it the token and can be broken.
type front struct {
	*httptest.Server

	asked            atomic.Int32 // for news, now and then
	noEvents, noLive atomic.Bool
}

func newFront(t *testing.T, address, token string) *front {
	t.Helper()
	target, err := url.Parse(address)
	must(t, err)
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport = trusting(nil).Transport
	f := &front{}
	f.Server = httptest.NewServer(http.StripPrefix("/storage", http.HandlerFunc(func(out http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/live" {
			f.asked.Add(1)
		}
		if r.URL.Path == "/events" && f.noEvents.Load() || r.URL.Path == "/live" && f.noLive.Load() {
			http.Error(out, "away", http.StatusBadGateway)
			return
		}
		r.Header.Set("Authorization", "Bearer "+token)
		proxy.ServeHTTP(out, r)
	})))
	t.Cleanup(f.Close)
	return f
}

// inBrowser looks at the page as Chromium shows it, behind a proxy and below a path: its script has to
// get through the page's own policy. ESCACHE_SCREENS=DIR keeps pictures of it.
func (w *world) inBrowser(t *testing.T, address, token string) {
	f := newFront(t, address, token)
	c := startChromium(t)
	c.look(1280, 1000, "light")
	c.open(f.URL + "/storage/")
	t.Run("news come by themselves", func(t *testing.T) {
		c.t = t
		c.until("news come as events", `document.body?.dataset.stream === "open"`)
		c.run(`document.querySelector("#hosts-n2 a").focus(); window.kept = true`)
		w.change(t, c)
		if c.run(`window.kept && document.activeElement.getAttribute("href")`) != "?node=n2" {
			t.Error("the page was loaded again, or the keyboard is elsewhere")
		}
		c.run(`window.summary = document.getElementById("summary"); window.before = summary.textContent`)
		well := w.trouble(t)
		c.until("problems are announced in the element that a screen reader watches", `summary.isConnected && summary.textContent !== before`)
		well()
		c.until("their end is, too", `summary.isConnected && summary.textContent === before`)
		if n := f.asked.Load(); n > 0 || len(c.complaints) > 0 {
			t.Errorf("it asked %d times; complaints %q", n, c.complaints)
		}
	})
	t.Run("by keyboard", func(t *testing.T) { c.t = t; byKeyboard(t, c, f.URL+"/storage/") })
	t.Run("for everybody", func(t *testing.T) {
		c.t = t
		defer w.trouble(t)()
		forEverybody(t, c, f.URL+"/storage/", address)
	})
	t.Run("without events", func(t *testing.T) {
		c.t = t
		f.noEvents.Store(true)
		c.open(f.URL + "/storage/")
		w.change(t, c)
		if f.asked.Load() == 0 {
			t.Error("nobody asked")
		}
		f.noLive.Store(true)
		c.until("it says that what it shows is old", `document.getElementById("stale").textContent.includes("old")`)
		f.noLive.Store(false)
		c.until("it is up to date again", `document.getElementById("stale").textContent === ""`)
	})
	t.Run("a login", func(t *testing.T) {
		c.t = t
		c.open(address)
		c.tab()
		c.typed(token)
		c.tab()
		c.enter()
		c.until("the page is shown, and gets events", `document.body?.dataset.stream === "open"`)
		if cookie := c.run("document.cookie"); cookie != "" {
			t.Errorf("scripts can read %v", cookie)
		}
	})
}

// change changes a record, and waits until the page shows that.
func (w *world) change(t *testing.T, c *chromium) {
	t.Helper()
	const shown = `document.querySelector("#volumes-pvc-c td[data-label=Dirty]").textContent`
	v := w.volume(t, "c")
	v.Status.DirtyBytes += 5 * mib
	must(t, w.api.Status().Update(t.Context(), v))
	c.until("a change is shown", fmt.Sprintf("%s.includes(%q)", shown, v1alpha1.HumanBytes(v.Status.DirtyBytes)))
}

// trouble puts on record what makes every part of the page show something. The function that it returns
// takes that away.
func (w *world) trouble(t *testing.T) func() {
	t.Helper()
	was := w.volume(t, "b").Status
	w.edit(t, "b", func(v *v1alpha1.CacheVolume) {
		v.Status.Outdated = []string{"n3"}
		v.Status.Repair = &v1alpha1.ReplicaRepair{Epoch: 1, Lost: "n3", Substitute: "n2", Since: metav1.Now()}
		v.Status.Conditions = []metav1.Condition{
			{
				Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonHostSilent,
				Message: "node n3 has not answered for 6m", LastTransitionTime: metav1.Now(),
			},
			{
				Type: v1alpha1.ConditionRepairing, Status: metav1.ConditionTrue, Reason: "Copying", Message: "the copy on n2 has 40 % of the cache",
				LastTransitionTime: metav1.Now(),
			},
		}
	})
	taken := &v1alpha1.CacheSnapshot{ObjectMeta: metav1.ObjectMeta{Name: "snapshot-of-a"}, Spec: v1alpha1.CacheSnapshotSpec{
		Volume: "pvc-a", ClusterID: "c", Pool: "rbd", Image: "escache-a", Snapshot: "s",
	}}
	must(t, w.api.Create(t.Context(), taken))
	taken.Status = v1alpha1.CacheSnapshotStatus{Taken: new(metav1.Now()), Summary: v1alpha1.CacheSnapshotSummary{Size: "1Gi"}}
	must(t, w.api.Status().Update(t.Context(), taken))
	flush := &v1alpha1.CacheFlush{
		ObjectMeta: metav1.ObjectMeta{Name: "of-nothing"}, Spec: v1alpha1.CacheFlushSpec{Volume: "pvc-zz", Mode: v1alpha1.FlushModeFlush},
	}
	must(t, w.api.Create(t.Context(), flush))
	return func() {
		must(t, w.api.Delete(t.Context(), taken))
		must(t, w.api.Delete(t.Context(), flush))
		w.edit(t, "b", func(v *v1alpha1.CacheVolume) { v.Status = was })
	}
}

func byKeyboard(t *testing.T, c *chromium, address string) {
	c.open(address)
	c.tab()
	if c.run("document.activeElement.className") != "skip" {
		t.Error("the first stop is not the link that skips the head")
	}
	c.enter()
	c.until("the link leads to what is wrong", `document.activeElement.id === "main"`)
	for n := 0; c.run(`document.activeElement.name !== "text"`) == true; n++ {
		if c.tab(); n > 100 {
			t.Fatal("the filter cannot be reached")
		}
	}
	c.typed("pvc-b")
	c.enter()
	c.until("only what fits is shown", `[...document.querySelectorAll("#volumes tr")].map(r => r.id).join() === "volumes-pvc-b"`)
	if search, _ := c.run("location.search").(string); !strings.Contains(search, "text=pvc-b") {
		t.Errorf("the address is %q", search)
	}
	c.until("news come of what fits", `document.body?.dataset.stream === "open"`)
	if c.run(`document.querySelectorAll("#volumes tr").length`) != 1.0 {
		t.Error("news have brought what does not fit")
	}
}

// forEverybody has axe-core look at the page and the login, in both colour schemes and sizes. The picture
// page-desktop-light.png is docs/pictures/web-page.png.
func forEverybody(t *testing.T, c *chromium, page, login string) {
	for _, scheme := range []string{"light", "dark"} {
		for name, size := range map[string][2]int{"desktop": {1280, 1000}, "phone": {500, 1600}} {
			c.look(size[0], size[1], scheme)
			for what, address := range map[string]string{"page": page, "login": login} {
				c.open(address)
				if what == "page" {
					c.until("every part shows something", `document.querySelectorAll(".problem").length >= 2 &&
						["repairs", "flushes", "snapshots"].every(part => document.querySelector("#" + part + " table"))`)
				}
				c.accessible(what + ", " + name + ", " + scheme)
				c.screenshot(what + "-" + name + "-" + scheme)
			}
		}
	}
	c.look(1280, 1000, "light")
	c.open(page)
	c.run(`document.body.insertAdjacentHTML("beforeend", "<img src=x>")`)
	if found := c.violations(); !strings.Contains(found, "image-alt") {
		t.Errorf("axe-core does not see a picture without words: %q", found)
	}
}
