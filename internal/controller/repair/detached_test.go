package repair_test

import (
	"testing"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// leave takes a volume from its holder, with so much dirty on both of its hosts.
func (w *world) leave(name string, dirty int64) {
	w.t.Helper()
	for _, node := range w.volume(name).Spec.Replicas {
		w.fleet.Hosts[node].Release(ref(name))
		w.fleet.Hosts[node].Write(ref(name), dirty)
	}
	w.record(name, func(v *v1alpha1.CacheVolume) {
		v.Status.AttachedNode, v.Status.ClientAddress, v.Status.DirtyBytes = "", "", dirty
	})
}

// until polls until the truth of the volume is in Ceph and no node has it.
func (w *world) until(name string) *v1alpha1.CacheVolume {
	w.t.Helper()
	for range 6 {
		w.steps(1)
		if s := w.volume(name).Status; s.Authority == v1alpha1.AuthorityCeph && s.AttachedNode == "" {
			return w.volume(name)
		}
	}
	w.t.Fatalf("it is not written back: %+v", w.volume(name).Status)
	return nil
}

func TestADetachedVolumeIsWrittenBackWhenItsOtherHostStaysAway(t *testing.T) {
	w := newWorld(t, "v")
	w.policy.After = 10 * time.Minute
	w.leave("v", 4096)
	w.fleet.Hosts["n1"].Stop() // its last holder, as after a forced detach
	w.poll()
	w.now = w.now.Add(2 * time.Minute)
	w.steps(1)
	if why, s := w.whyNot("v"), w.volume("v").Status; why != v1alpha1.ReasonHostSilent || s.Authority != v1alpha1.AuthorityCache {
		t.Errorf("one of two hosts is away for two minutes, and the record says %q: %+v", why, s)
	}
	w.now = w.now.Add(10 * time.Minute)
	v := w.until("v")
	if _, connected := w.fleet.Hosts["n2"].Connected(ref("v")); connected || v.Status.Epoch != 2 {
		t.Errorf("n2 still has it: %+v", v.Status)
	}
}
