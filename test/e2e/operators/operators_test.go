//go:build e2e

package operators

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/escachetest"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func quantity(bytes int64) *resource.Quantity { return resource.NewQuantity(bytes, resource.BinarySI) }

// steady is the traffic of a volume that is written back faster than its pod writes.
var steady = escachetest.Traffic{CephPerSecond: 150 * mib, PodPerSecond: 20 * mib}

// TestOperators goes through one world, in this order.
func TestOperators(t *testing.T) {
	w := start(t)
	t.Run("kinds that are not installed", func(t *testing.T) {
		for _, args := range [][]string{{"status"}, {"flush", "--node=n1"}, {"evacuate", "n1"}, {"explain", "--volume", "x"}, {"orphans"}} {
			says(t, w.escache(t, 1, args...), "install escache-csi's Helm chart")
		}
	})
	w.install(t)
	w.lead(t)
	for _, name := range []string{"a", "b"} {
		w.attach(t, name, "n1", 300*mib)
		w.fleet.Hosts["n1"].Load(ref(name), steady)
	}
	w.attach(t, "c", "n2", 10*mib)
	t.Run("wrong names", w.wrongNames)
	t.Run("no permission", w.noPermission)
	t.Run("status and explain", w.statusAndExplain)
	t.Run("the web page", w.thePage)
	t.Run("preflight", w.preflight)
	t.Run("flush a claim", w.flushClaim)
	t.Run("on a terminal", w.onTerminal)
	t.Run("evacuate and uncordon", w.evacuation)
	t.Run("second copies", w.secondCopies)
	t.Run("a group with a volume", w.guardedGroup)
	t.Run("another leader in the middle", w.anotherLeader)
	t.Run("discard a cache", w.discard)
	t.Run("support bundle", w.bundle)
	t.Run("a benchmark", w.benchmark)
	w.attach(t, "data-app-0", "n1", 20*mib)
	w.attach(t, "data-app-1", "n2", 20*mib)
	w.attach(t, "data-app-2", "n1", 20*mib)
	w.detach(t, "data-app-2")
	for _, name := range []string{"a", "b"} { // a flush of what is written to all the time does not end well, as it should
		w.fleet.Hosts["n1"].Load(ref(name), escachetest.Traffic{})
	}
	t.Run("docs", w.runDocs)
}

func (w *world) wrongNames(t *testing.T) {
	says(t, w.escache(t, 1, "flush", "zz", "-n", "shop", "--wait"), "no PersistentVolumeClaim shop/zz")
	says(t, w.escache(t, 1, "flush", "--node=zz", "--wait"), "no node zz")
	says(t, w.escache(t, 1, "flush", "--group=zz", "--wait"), "no NodeGroup zz")
	says(t, w.escache(t, 1, "evacuate", "zz"), "node zz is in no NodeGroup")
	says(t, w.escache(t, 1, "cordon", "zz"), "there is no NodeGroup zz, and node zz is in no NodeGroup")
	says(t, w.escache(t, 1, "rebalance", "--dry-run", "--empty=zz"), "zz: there is no such NodeGroup")
	says(t, w.escache(t, 1, "move", "zz", "--group=rack1"), "no CacheVolume zz")
	says(t, w.escache(t, 1, "move", "pvc-a", "--group=zz"), "no NodeGroup zz")
	says(t, w.escache(t, 1, "rebalance", "--apply", "--empty=rack1"), "kubectl escache cordon rack1")
	says(t, w.escache(t, 1, "replace-host", "zz", "n4"), "node zz is in no NodeGroup")
	says(t, w.escache(t, 1, "replace-host", "n3", "zz"), "Kubernetes has no node zz", "nothing was changed")
	says(t, w.escache(t, 1, "explain", "zz", "-n", "shop"), "no PersistentVolumeClaim zz in namespace shop")
	says(t, w.escache(t, 1, "explain", "--volume", "zz"), "no CacheVolume zz")
	says(t, w.escache(t, 1, "discard-cache", "zz"), "no CacheVolume zz")
	says(t, w.escache(t, 1, "status", "--context", "zz"), "zz")
	says(t, w.escache(t, 1, "status", "--group=zz"), "there is no NodeGroup zz")
	says(t, w.escache(t, 1, "status", "--node=zz"), "node zz is in no NodeGroup")
	says(t, w.escache(t, 2, "status", "--sort-by=zz"), "none of")
	says(t, w.escache(t, 1, "explain", "host/zz"), "node zz is in no NodeGroup")
	says(t, w.escache(t, 1, "explain", "snapshot/zz"), "there is no CacheSnapshot zz")
}

func (w *world) noPermission(t *testing.T) {
	stranger := w.stranger(t)
	for _, args := range [][]string{{"status"}, {"flush", "a", "-n", "shop"}, {"evacuate", "n1"}, {"cordon", "rack1"}, {"rebalance", "--dry-run"}, {"move", "pvc-a", "--group=rack1"}, {"replace-host", "n3", "n4"}, {"explain", "a", "-n", "shop"}} {
		says(t, w.as(t, stranger, "", 1, args...), "forbidden", "Ask an administrator")
	}
}

func (w *world) statusAndExplain(t *testing.T) {
	deadline := time.Now().Add(30 * time.Second)
	for !strings.Contains(w.escache(t, 0, "status"), "Ready") && time.Now().Before(deadline) {
		time.Sleep(200 * time.Millisecond)
	}
	says(t, w.escache(t, 0, "status"), "rack1", "n1", "pvc-a", "shop/a", "Ready")
	says(t, w.escache(t, 0, "status", "-o", "wide"), "rbd/escache-a")
	says(t, w.escache(t, 0, "status", "-o", "name"), "nodegroup.escache.io/rack1", "cachevolume.escache.io/pvc-b")
	list := metav1.List{}
	must(t, json.Unmarshal([]byte(w.escache(t, 0, "status", "-o", "json")), &list))
	if len(list.Items) < 4 {
		t.Errorf("%d items", len(list.Items))
	}
	says(t, w.escache(t, 0, "explain", "a", "-n", "shop"), "rbd/escache-a", "to n1, epoch 1", "in the cache", "evacuate n1")
	says(t, w.kubectl(t, "get", "nodegroups,cachevolumes"), "n1,n2,n3", "REPLICA1", "REPLICA2")
	says(t, w.escache(t, 0, "orphans"), "no orphans")
	says(t, w.escache(t, 0, "explain", "host/n1"), "n1, of group rack1", "pvc-a", "pvc-b", "evacuate n1")
	says(t, w.escache(t, 0, "explain", "group/rack1"), "rack1 of n1, n2, n3", "Ready=", "pvc-c")
	names := func(args ...string) string {
		return w.escache(t, 0, append([]string{"status", "-o", "name"}, args...)...)
	}
	for args, want := range map[string]string{
		"--group=rack1 --sort-by=dirty": "abc", "--node=n2": "c", "--node=n1,n2": "abc", "-n=shop": "abc", "-n=default": "",
	} {
		got := names(strings.Fields(args)...)
		for _, name := range []string{"a", "b", "c"} {
			if strings.Contains(got, "/pvc-"+name+"\n") != strings.Contains(want, name) {
				t.Errorf("%s: %s", args, got)
			}
		}
	}
	if all := names("--sort-by=dirty"); strings.Index(all, "/pvc-c\n") < max(strings.Index(all, "/pvc-a\n"), strings.Index(all, "/pvc-b\n")) {
		t.Errorf("c has the least dirty:\n%s", all)
	}
}

func (w *world) flushClaim(t *testing.T) {
	out := w.escache(t, 0, "flush", "c", "-n", "shop", "--wait", "--timeout=2m")
	says(t, out, "1 of 1 volumes are clean")
	if s := w.fleet.Hosts["n2"].Status(ref("c")); *s.DirtyBytes != 0 || s.Mode != escache.ModeWriteback {
		t.Errorf("%+v", s)
	}
	out = w.escache(t, 3, "flush", "a", "-n", "shop", "--wait", "--timeout=1s")
	says(t, out, "time is up after 1s", "given up after 1 s")
}

func (w *world) evacuation(t *testing.T) {
	out := w.escache(t, 0, "evacuate", "n1", "--wait", "--timeout=2m")
	says(t, out, "cordoned", "%", "everything on node n1 is in Ceph")
	for _, name := range []string{"a", "b"} {
		if v := w.volume(t, name); v.Status.Authority != v1alpha1.AuthorityCeph || w.mode("n1", name) != escache.ModeWritethrough {
			t.Errorf("%s: %+v", name, v.Status)
		}
	}
	w.escache(t, 0, "evacuate", "n1", "--wait", "--timeout=1m") // again
	says(t, w.escache(t, 0, "status"), "Cordoned", "Drained")
	says(t, w.escache(t, 0, "explain", "a", "-n", "shop"), "cacheflush/evacuate-n1", "in Ceph", "can be moved at once")
	says(t, w.escache(t, 0, "uncordon", "n1"), "its caches write back")
	for _, name := range []string{"a", "b"} {
		if v := w.volume(t, name); v.Status.Authority != v1alpha1.AuthorityCache || w.mode("n1", name) != escache.ModeWriteback {
			t.Errorf("%s: %+v", name, v.Status)
		}
	}
}

// secondCopies has n3 away, on which all volumes have their second copy and none is attached.
func (w *world) secondCopies(t *testing.T) {
	says(t, w.escache(t, 0, "evacuate", "n3", "--protect=none"), "3 volumes have one copy until n3 is back")
	says(t, w.escache(t, 1, "evacuate", "n3", "--protect=drain"), "first kubectl escache uncordon n3")
	w.escache(t, 0, "uncordon", "n3")
	out := w.escache(t, 0, "evacuate", "n3", "--wait", "--timeout=2m")
	says(t, out, "3 volumes attached elsewhere have their second copy there", "all 3 write through to Ceph, which has everything")
	if v := w.volume(t, "a"); v.Status.Authority != v1alpha1.AuthorityCeph || w.mode("n1", "a") != escache.ModeWritethrough {
		t.Errorf("%+v", v.Status)
	}
	outdated := func(nodes ...string) {
		w.edit(t, "a", func(v *v1alpha1.CacheVolume) { v.Status.Outdated = nodes })
	}
	w.link("n1", "n3", "a", false)
	outdated("n3")
	out = w.escache(t, 3, "uncordon", "n3", "--timeout=30s")
	says(t, out, "pvc-a: it writes through until the copy on node n3 is current", "the driver goes on")
	if w.mode("n1", "a") != escache.ModeWritethrough || w.mode("n1", "b") != escache.ModeWriteback {
		t.Error("a writes back with one copy, or b does not with two")
	}
	w.link("n1", "n3", "a", true)
	outdated()
	says(t, w.escache(t, 0, "uncordon", "n3"), "its caches write back")
	if v := w.volume(t, "a"); v.Status.Authority != v1alpha1.AuthorityCache || w.mode("n1", "a") != escache.ModeWriteback {
		t.Errorf("%+v", v.Status)
	}
}

// guardedGroup deletes a group that has a volume, and then the volume.
func (w *world) guardedGroup(t *testing.T) {
	group := &v1alpha1.NodeGroup{
		ObjectMeta: metav1.ObjectMeta{Name: "rack9"}, Spec: v1alpha1.NodeGroupSpec{Nodes: []string{"x1", "x2", "x3"}},
	}
	must(t, w.api.Create(t.Context(), group))
	v := &v1alpha1.CacheVolume{
		ObjectMeta: metav1.ObjectMeta{Name: "pvc-kept"},
		Spec: v1alpha1.CacheVolumeSpec{
			ClusterID: "c", Pool: "rbd", Image: "escache-kept", SizeBytes: 1 << 30, CacheBytes: 1 << 30, Group: "rack9",
			Replicas: []string{"x1", "x9"}, CacheMode: v1alpha1.CacheModeWriteback, Port: 7801, Minor: 101,
		},
	}
	must(t, w.api.Create(t.Context(), v))
	until := func(what string, holds func() bool) {
		t.Helper()
		for end := time.Now().Add(30 * time.Second); !holds(); time.Sleep(200 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("not within 30 s: %s\n%s", what, w.escache(t, 0, "status"))
			}
		}
	}
	read := func() error { return w.api.Get(t.Context(), client.ObjectKeyFromObject(group), group) }
	until("the group has a finalizer", func() bool { return read() == nil && len(group.Finalizers) > 0 })
	until("status tells of the host outside", func() bool {
		return strings.Contains(w.escache(t, 0, "status"), "node x9 is not in the group any more")
	})
	says(t, w.escache(t, 0, "explain", "--volume", "pvc-kept"), "node x9 is not in group rack9 any more")
	w.kubectl(t, "delete", "nodegroup", "rack9", "--wait=false")
	until("status names what keeps it", func() bool {
		return strings.Contains(w.escache(t, 0, "status"), "kept because 1 volume is in it (pvc-kept)")
	})
	must(t, w.api.Delete(t.Context(), v))
	until("the group is gone", func() bool { return apierrors.IsNotFound(read()) })
}

func (w *world) anotherLeader(t *testing.T) {
	w.fleet.Hosts["n1"].Write(ref("a"), 900*mib)
	w.escache(t, 0, "evacuate", "n1")
	time.Sleep(1500 * time.Millisecond) // in the middle, wherever that is
	w.retire()
	w.lead(t)
	w.escache(t, 0, "evacuate", "n1", "--wait", "--timeout=2m")
	w.retire()
	w.lead(t)
	w.escache(t, 0, "uncordon", "n1")
	if v := w.volume(t, "a"); v.Status.Authority != v1alpha1.AuthorityCache || len(v.Status.WriteThrough) > 0 || w.mode("n1", "a") != escache.ModeWriteback {
		t.Errorf("%+v", v.Status)
	}
}

func (w *world) discard(t *testing.T) {
	w.turnOff(t, "n2") // else csi-controller writes it back
	defer w.turnOn(t, "n2")
	w.leave(t, "c", "n2")
	v := w.volume(t, "c")
	says(t, w.escache(t, 0, "discard-cache", "pvc-c", "--dry-run"), "the copy on n2", "nothing was changed")
	says(t, w.as(t, w.kube.Kubeconfig(), "yes\n", 4, "discard-cache", "pvc-c"), "nothing was changed")
	all := &v1alpha1.CacheDiscardList{}
	must(t, w.api.List(t.Context(), all))
	if len(all.Items) != 0 {
		t.Errorf("%d were made", len(all.Items))
	}
	// Nobody carries it out here: what is made is the contract.
	says(t, w.as(t, w.kube.Kubeconfig(), "pvc-c\n", 3, "discard-cache", "pvc-c", "--timeout=1s", "--reason=fire"), "is pending")
	must(t, w.api.List(t.Context(), all))
	if len(all.Items) != 1 || all.Items[0].Spec.Epoch != v.Status.Epoch || all.Items[0].Spec.RequestedBy == "" || all.Items[0].Spec.Reason != "fire" {
		t.Errorf("%+v", all.Items)
	}
}

func (w *world) bundle(t *testing.T) {
	path := filepath.Join(t.TempDir(), "b.tar.gz")
	says(t, w.escache(t, 0, "support-bundle", "-f", path), "files")
	file, err := os.Open(path)
	must(t, err)
	defer file.Close()
	packed, err := gzip.NewReader(file)
	must(t, err)
	names := ""
	for archive := tar.NewReader(packed); ; {
		header, err := archive.Next()
		if err == io.EOF {
			break
		}
		must(t, err)
		names += header.Name + "\n"
	}
	says(t, names, "escache/cachevolumes.json", "escache/cacheflushes.json", "escache/nodes.json")
	if strings.Contains(names, "secret") {
		t.Error("secrets were read")
	}
}
