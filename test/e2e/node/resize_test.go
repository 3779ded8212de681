//go:build e2e

package node

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/test/labtest"
)

// attributesClass is a VolumeAttributesClass with these parameters.
func attributesClass(name, parameters string) string {
	return fmt.Sprintf(`
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata: {name: %s}
driverName: csi.escache.io
parameters: {%s}
`, name, parameters)
}

// cacheResize gives a claim with a running pod a larger cache, which it gets when the pod moves, and a smaller
// one afterwards. Each time what was written before is there.
func cacheResize(t *testing.T, w *world) {
	w.apply(t, attributesClass("e2e-node-large", "cacheSize: 128Mi")+attributesClass("e2e-node-small", "cacheSize: 32Mi")+
		attributesClass("e2e-node-huge", "cacheSize: 60Ti"))
	defer func() { // the claim keeps one of them until it is deleted, too
		_, _ = w.try(context.WithoutCancel(t.Context()), "", "delete", "volumeattributesclass", "--wait=false",
			"e2e-node-large", "e2e-node-small", "e2e-node-huge")
	}()
	id := w.claim(t, "resized", "e2e-node-ext4", "Filesystem", "512Mi")
	w.pod(t, "resized-0", w.nodes[0], "resized", "Filesystem", forever)
	sum := w.fill(t, "resized-0")
	w.replicasHave(t, id, 64<<20)

	w.wantAttributes(t, "resized", "e2e-node-large")
	w.kubectl(t, "wait", "--for=jsonpath={.status.currentVolumeAttributesClassName}=e2e-node-large", "pvc/resized", "--timeout=120s")
	w.resizeWaits(t, id, v1alpha1.ReasonResizeAttached)
	w.replicasHave(t, id, 64<<20) // nothing changes under I/O
	w.same(t, "resized-0", sum)
	w.removePod(t, "resized-0", id)
	w.resizeWaits(t, id, v1alpha1.ReasonResizeDetached)

	w.pod(t, "resized-1", w.nodes[1], "resized", "Filesystem", forever)
	w.same(t, "resized-1", sum)
	w.replicasHave(t, id, 128<<20)
	w.resizeWaits(t, id, "")
	sum = w.fill(t, "resized-1")

	w.wantAttributes(t, "resized", "e2e-node-huge")
	labtest.WaitForCommand(t, "an Event says that there is no room", commandTime, func(ctx context.Context) error {
		out, err := w.try(ctx, "", "-n", namespace, "get", "events", "-o", "jsonpath={.items[*].message}")
		if err == nil && !strings.Contains(out, "has no room for one of 60Ti") {
			err = fmt.Errorf("the Events are %s", out)
		}
		return err
	})
	w.wantAttributes(t, "resized", "e2e-node-small")
	w.resizeWaits(t, id, v1alpha1.ReasonResizeAttached)
	w.removePod(t, "resized-1", id)
	w.pod(t, "resized-2", w.nodes[2], "resized", "Filesystem", forever)
	w.same(t, "resized-2", sum)
	w.replicasHave(t, id, 32<<20)
	w.removePod(t, "resized-2", id)
}

// modifiedInUse changes mode or dirty age of a cache in use. Then the host loses its power, and the host that takes the
// volume over has the change, too.
func modifiedInUse(t *testing.T, w *world) {
	w.modifies(t, "aged", "maxDirtyAge: 40s", escache.ModeWriteback, "max_age 40000")
	w.modifies(t, "through", "cacheMode: writethrough", escache.ModeWritethrough, "") // which has no dirty age
}

func (w *world) modifies(t *testing.T, name, attributes string, mode escache.Mode, option string) {
	t.Helper()
	changed := "e2e-node-" + name
	w.apply(t, attributesClass(changed, attributes))
	defer func() {
		_, _ = w.try(context.WithoutCancel(t.Context()), "", "delete", "volumeattributesclass", changed, "--wait=false")
	}()
	id := w.claim(t, name, "e2e-node-ext4", "Filesystem", "256Mi")
	first := w.volume(t, id).Spec.Replicas[0]
	w.pod(t, name+"-1", first, name, "Filesystem", forever)
	w.cacheIs(t, first, id, escache.ModeWriteback, "")
	sum := w.fill(t, name+"-1")
	w.wantAttributes(t, name, changed)
	w.cacheIs(t, first, id, mode, option)
	w.same(t, name+"-1", sum)

	w.redundant(t, id)
	heir := peer(w.volume(t, id), first)
	w.losePower(t, first, name+"-1")
	w.pod(t, name+"-2", heir, name, "Filesystem", forever)
	w.same(t, name+"-2", sum)
	w.cacheIs(t, heir, id, mode, option)
	w.powerOn(t, first)
	w.removePod(t, name+"-2", id)
	w.kubectl(t, "delete", "pvc", name, "--timeout=120s")
	w.nothingLeft(t)
}

// cacheIs waits until a host's cache of the volume is in this mode, and its kernel has this option of dm-writecache.
// The engine log has its options in a process.
func (w *world) cacheIs(t *testing.T, node, id string, mode escache.Mode, option string) {
	t.Helper()
	inKernel := labtest.ClassEngine() == string(escache.EngineWritecache)
	labtest.WaitForCommand(t, fmt.Sprintf("the cache on %s is in %s with %q", node, mode, option), commandTime, func(ctx context.Context) error {
		if has := w.onHost(t, node, id).Mode; has != mode {
			return fmt.Errorf("it is in %s", has)
		}
		table, err := w.lab.Shell(ctx, node, "dmsetup table --target writecache")
		if err == nil && inKernel && !strings.Contains(table, option) {
			err = fmt.Errorf("the kernel has %s", table)
		}
		return err
	})
}

// wantAttributes gives a claim another VolumeAttributesClass.
func (w *world) wantAttributes(t *testing.T, claim, class string) {
	t.Helper()
	w.kubectl(t, "patch", "pvc", claim, "--type=merge", "-p", `{"spec":{"volumeAttributesClassName":"`+class+`"}}`)
}

// resizeWaits waits until the record says that a change of the size waits for this, or for nothing.
func (w *world) resizeWaits(t *testing.T, id, reason string) {
	t.Helper()
	labtest.WaitForCommand(t, "the change of the cache's size waits for "+reason, commandTime, func(ctx context.Context) error {
		out, err := w.try(ctx, "", "get", "cachevolume", id, "-o",
			`jsonpath={.status.conditions[?(@.type=="`+v1alpha1.ConditionCacheResized+`")].reason}`)
		if err == nil && out != reason {
			err = fmt.Errorf("it waits for %q", out)
		}
		return err
	})
}

// replicasHave fails unless there are two LVs of the volume, on the hosts on record, and of this size.
func (w *world) replicasHave(t *testing.T, id string, bytes int64) {
	t.Helper()
	v := w.volume(t, id)
	if v.Spec.CacheBytes != bytes {
		t.Errorf("on record is a cache of %d bytes, not of %d", v.Spec.CacheBytes, bytes)
	}
	name := volume.NameOf(cachevolume.Ref(v))
	for _, node := range w.nodes {
		want := ""
		if v.Spec.HasReplica(node) {
			want = fmt.Sprint(bytes)
		}
		got := w.shell(t, node, "lvs --noheadings --nosuffix --units b -o lv_size -S lv_name="+name)
		if strings.TrimSpace(got) != want {
			t.Errorf("the LV on %s has %q bytes, not %q", node, got, want)
		}
	}
}
