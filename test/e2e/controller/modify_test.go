//go:build e2e

package controller

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
)

// attributes is a VolumeAttributesClass with one line of parameters.
func attributes(name, parameters string) string {
	return fmt.Sprintf("apiVersion: storage.k8s.io/v1\nkind: VolumeAttributesClass\nmetadata: {name: %s}\ndriverName: csi.escache.io\n"+
		"parameters: {%s}\n", name, parameters)
}

const modifiable = `
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec:
  accessModes: [ReadWriteOncePod]
  storageClassName: escache
  volumeAttributesClassName: first
  resources: {requests: {storage: 2Gi}}
`

// modifyLife is what a person does: a claim with a class, another class while the volume is detached,
// one while it is in use, and one that cannot be.
func modifyLife(t *testing.T, w *world) {
	d := w.launch(t, "a", soon...)
	leader(t, time.Minute, d)
	w.kube.SidecarsAs(t, w.account, "a", d.socket(), topologyArgs)
	for _, objects := range []string{
		class, attributes("first", "maxDirtyAge: 5m"), attributes("second", "maxDirtyAge: 30s"),
		attributes("third", `cacheMode: writethrough, highWatermark: default, lowWatermark: default`),
		attributes("never", "pool: rbd"), modifiable,
	} {
		w.kubectl(t, objects, "apply", "-f", "-")
	}
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/data", "--timeout=60s")
	options := v1alpha1.CacheOptions{HighWatermark: 70, LowWatermark: 30, MaxDirtyAgeSeconds: 300}
	if v := w.one(t); v.Spec.CacheOptions != options || v.Spec.Modifications != 0 {
		t.Errorf("made with a class: %+v", v.Spec)
	}

	w.changeClass(t, "second")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.currentVolumeAttributesClassName}=second", "pvc/data", "--timeout=60s")
	options.MaxDirtyAgeSeconds = 30
	v := w.one(t)
	if v.Spec.CacheOptions != options || v.Spec.Modifications != 1 || v.Status.Applied != nil {
		t.Errorf("changed while detached: %+v, %+v", v.Spec, v.Status)
	}

	node := v.Spec.Replicas[0]
	until(t, func() error { return d.publish(t.Context(), v.Name, node) })
	host, ref := w.fleet.Hosts[node], cachevolume.Ref(v)
	host.Stage(ref, "127.0.0.1:0/4712", w.one(t).Status.Epoch, escache.ModeWriteback)
	modified := func(what string, mode escache.Mode, want escache.CacheOptions) {
		t.Helper()
		eventually(t, time.Minute, func() bool {
			return host.Options(ref) == want && host.Status(ref).Mode == mode && !w.one(t).ModificationPending()
		}, func() string {
			return fmt.Sprintf("%s: the cache is in %s with %+v; on record is %+v", what, host.Status(ref).Mode, host.Options(ref), w.one(t).Status)
		})
	}
	modified("attached", escache.ModeWriteback, escache.CacheOptions{HighWatermark: 70, LowWatermark: 30, MaxDirtyAgeSeconds: 30})
	w.changeClass(t, "third")
	modified("changed in use", escache.ModeWritethrough, escache.CacheOptions{MaxDirtyAgeSeconds: 30})
	w.kubectl(t, "", "wait", "--for=condition=Modified", "cachevolume/"+v.Name, "--timeout=60s")

	before := w.one(t).Spec
	w.changeClass(t, "never")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.modifyVolumeStatus.status}=Infeasible", "pvc/data", "--timeout=60s")
	eventually(t, time.Minute, func() bool {
		return strings.Contains(w.kubectl(t, "", "get", "events", "-o", "jsonpath={.items[*].message}"), "can be changed")
	}, func() string { return "no Event says what can be changed" })
	if now := w.one(t).Spec; now.Modifications != before.Modifications || now.Pool != before.Pool {
		t.Errorf("a class that cannot be changed %+v to %+v", before, now)
	}

	host.Release(ref)
	until(t, func() error { return d.unpublish(t.Context(), v.Name, node) })
	w.kubectl(t, "", "delete", "pvc", "data", "--timeout=60s")
	w.empty(t)
	w.kubectl(t, "", "delete", "volumeattributesclass", "first", "second", "third", "never")
	w.kubectl(t, "", "delete", "storageclass", "escache")
}

// changeClass gives the claim another VolumeAttributesClass.
func (w *world) changeClass(t *testing.T, name string) {
	t.Helper()
	w.kubectl(t, "", "patch", "pvc", "data", "--type=merge", "-p", `{"spec":{"volumeAttributesClassName":"`+name+`"}}`)
}
