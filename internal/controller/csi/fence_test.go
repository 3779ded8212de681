package csi_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

const oldClient = "10.0.0.1:0/1"

// fenced makes a volume that was taken from its first node by force, as long ago as a dev_connect
// can take.
func (w *world) fenced(id string) (v *v1alpha1.CacheVolume, dead, partner string) {
	w.t.Helper()
	return w.fencedClient(id, oldClient)
}

// fencedClient is fenced for a node that had mapped the image with that client.
func (w *world) fencedClient(id, address string) (v *v1alpha1.CacheVolume, dead, partner string) {
	w.t.Helper()
	v = w.create(id)
	dead, partner = v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.publish(id, dead)
	must(w.t, err)
	w.host(dead).Connect(ref(v), address)
	v = w.volume(id)
	v.Status.ClientAddress = address
	must(w.t, w.api.Status().Update(context.Background(), v))
	w.taint(dead)
	must(w.t, w.unpublish(id, dead))
	v = w.volume(id)
	if len(v.Status.Fenced) != 1 || v.Status.Fenced[0].Node != dead {
		w.t.Fatalf("fenced %+v", v.Status.Fenced)
	}
	v.Status.Fenced[0].Time = metav1.NewTime(time.Now().Add(-time.Hour))
	must(w.t, w.api.Status().Update(context.Background(), v))
	return v, dead, partner
}

// lift has the fences lifted that can be, and returns the addresses that are left.
func (w *world) lift(id string) []string {
	w.t.Helper()
	left, err := w.locked.Unfence(context.Background(), id)
	must(w.t, err)
	v := w.volume(id)
	if left != len(v.Status.Fenced) {
		w.t.Errorf("%d are left, and %d on record", left, len(v.Status.Fenced))
	}
	return w.images.fenced
}

func TestAFenceIsLiftedOnceTheMapIsGone(t *testing.T) {
	w := newWorld(t)
	v, dead, partner := w.fenced("pvc-1")
	if left := w.lift("pvc-1"); !slices.Contains(left, oldClient) {
		t.Fatal("lifted, and the host still has the device")
	}
	w.host(dead).Stop()
	if left := w.lift("pvc-1"); !slices.Contains(left, oldClient) {
		t.Fatal("lifted, and nobody knows what the host has")
	}
	_, err := w.publish("pvc-1", partner)
	must(t, err)
	w.host(dead).Restart(t)
	w.host(dead).Release(ref(v)) // a reboot
	w.images.fail = volumes.ErrUnavailable
	if _, err := w.locked.Unfence(context.Background(), "pvc-1"); err == nil || len(w.volume("pvc-1").Status.Fenced) != 1 {
		t.Fatalf("forgotten while Ceph does not answer: %v", err)
	}
	w.images.fail = nil
	if left := w.lift("pvc-1"); len(left) > 0 || len(w.volume("pvc-1").Status.Fenced) > 0 {
		t.Errorf("left: %v", left)
	}
	w.lift("pvc-1") // again: nothing is to be done
}

// TestADetachAsksAnEarlierHolderThatWasFenced: a clean holder alone cannot say that the truth is in
// Ceph, as the earlier one may still write to both copies.
func TestADetachAsksAnEarlierHolderThatWasFenced(t *testing.T) {
	detach := func(t *testing.T, prepare func(*world, *v1alpha1.CacheVolume, string)) (w *world, v *v1alpha1.CacheVolume, dead string) {
		t.Helper()
		w = newWorld(t)
		v, dead, partner := w.fenced("pvc-1")
		_, err := w.publish("pvc-1", partner)
		must(t, err)
		w.host(partner).Write(ref(v), 0)
		prepare(w, v, dead)
		must(t, w.unpublish("pvc-1", partner))
		return w, v, dead
	}
	t.Run("it has come back without the device", func(t *testing.T) {
		w, _, _ := detach(t, func(w *world, v *v1alpha1.CacheVolume, dead string) {
			w.host(dead).Release(ref(v))
			w.host(dead).Write(ref(v), 0)
		})
		if s := w.volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCeph {
			t.Errorf("status %+v", s)
		}
	})
	t.Run("it still has the device, and then no more", func(t *testing.T) {
		w, v, dead := detach(t, func(*world, *v1alpha1.CacheVolume, string) {})
		if s := w.volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache {
			t.Errorf("status %+v", s)
		}
		w.host(dead).Release(ref(v))
		w.host(dead).Write(ref(v), 0)
		w.lift("pvc-1")
		if s := w.volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCeph {
			t.Errorf("status %+v after the fence was lifted", s)
		}
	})
}

// TestAnEntryThatWasThereBeforeStays: an operator or krbd put the client on the blocklist, for longer
// than the driver needs it there.
func TestAnEntryThatWasThereBeforeStays(t *testing.T) {
	for name, tc := range map[string]struct {
		until time.Time
		stays bool
	}{
		"and lasts":    {time.Now().Add(time.Hour), true},
		"and is ended": {time.Now().Add(-time.Minute), false},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			w.images.blocked = map[string]time.Time{oldClient: tc.until}
			v, dead, _ := w.fenced("pvc-1")
			w.host(dead).Release(ref(v))
			left := w.lift("pvc-1")
			if slices.Contains(left, oldClient) != tc.stays || len(w.volume("pvc-1").Status.Fenced) > 0 {
				t.Errorf("on the blocklist are %v, on record %+v", left, w.volume("pvc-1").Status.Fenced)
			}
		})
	}
}

// TestAnEntryThatWasThereBeforeIsKnownInAnySpelling: the kernel, which tells escached the address, writes some
// IPv6 addresses in another way than Ceph does.
func TestAnEntryThatWasThereBeforeIsKnownInAnySpelling(t *testing.T) {
	const ofKernel, ofCeph = "[fd00::5efe:10.0.0.1]:0/1", "[fd00::5efe:a00:1]:0/1"
	w := newWorld(t)
	until := time.Now().Add(time.Hour).Truncate(time.Second)
	w.images.blocked = map[string]time.Time{ofCeph: until}
	v, _, _ := w.fencedClient("pvc-1", ofKernel)
	if e := v.Status.Fenced[0].EarlierUntil; e == nil || !e.Time.Equal(until) {
		t.Errorf("on record %+v, want the end of the earlier entry, %s", v.Status.Fenced[0], until)
	}
}

func TestAClientOfNobodyKnownStaysFenced(t *testing.T) {
	w := newWorld(t)
	v, dead, _ := w.fenced("pvc-1")
	v.Status.Fenced = append(v.Status.Fenced, v1alpha1.FencedClient{Address: "10.9.9.9:0/9", Epoch: 1, Time: v.Status.Fenced[0].Time})
	must(t, w.api.Status().Update(context.Background(), v))
	w.host(dead).Release(ref(v))
	w.lift("pvc-1")
	if left := w.volume("pvc-1").Status.Fenced; len(left) != 1 || left[0].Address != "10.9.9.9:0/9" {
		t.Errorf("left: %+v", left)
	}
}

// TestAMapThatCameLateIsFencedToo is about a dev_connect that was under way while its node lost the
// volume: the next holder finds the image in use.
func TestAMapThatCameLateIsFencedToo(t *testing.T) {
	w := newWorld(t)
	v, dead, partner := w.fenced("pvc-1")
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	const late = "10.0.0.1:0/2"
	w.images.open[image] = []string{late}
	_, err := w.publish("pvc-1", partner)
	must(t, err)
	if !slices.Contains(w.images.fenced, late) {
		t.Errorf("fenced %v", w.images.fenced)
	}
	entries := w.volume("pvc-1").Status.Fenced
	if len(entries) != 2 || entries[1].Address != late || entries[1].Epoch != 1 || entries[1].Node != dead {
		t.Errorf("on record %+v, of %s", entries, dead)
	}
	// Now somebody has it, who opens the image himself: the repeated call fences nobody.
	w.images.open[image] = []string{"10.0.0.2:0/1"}
	_, err = w.publish("pvc-1", partner)
	must(t, err)
	if slices.Contains(w.images.fenced, "10.0.0.2:0/1") {
		t.Errorf("the holder itself is fenced: %v", w.images.fenced)
	}
}

// TestAMapThatComesAfterTheNextHolderWasChosenIsFenced: the dev_connect of the node that lost the
// volume ends so late.
func TestAMapThatComesAfterTheNextHolderWasChosenIsFenced(t *testing.T) {
	w := newWorld(t)
	v, dead, partner := w.fenced("pvc-1")
	_, err := w.publish("pvc-1", partner)
	must(t, err)
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	const late, holder = "10.0.0.1:0/2", "10.0.0.2:0/1"
	w.images.open[image] = []string{late, holder}
	must(t, w.locked.FenceLate(context.Background(), "pvc-1"))
	must(t, w.locked.FenceLate(context.Background(), "pvc-1")) // again: it is on record once
	if !slices.Contains(w.images.fenced, late) || slices.Contains(w.images.fenced, holder) {
		t.Errorf("fenced %v", w.images.fenced)
	}
	entries := w.volume("pvc-1").Status.Fenced
	if len(entries) != 2 || entries[1].Address != late || entries[1].Epoch != 1 || entries[1].Node != dead {
		t.Errorf("on record %+v, of %s", entries, dead)
	}
}

// TestAMapThatComesAfterTheNextHolderWasUndoneIsFenced: the client of the next holder is on record. Its
// stage failed for good and was undone, so the image was free for the late dev_connect.
func TestAMapThatComesAfterTheNextHolderWasUndoneIsFenced(t *testing.T) {
	w := newWorld(t)
	v, _, partner := w.fenced("pvc-1")
	_, err := w.publish("pvc-1", partner)
	must(t, err)
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	const late, holder = "10.0.0.1:0/2", "10.0.0.2:0/1"
	v = w.volume("pvc-1")
	v.Status.ClientAddress = holder
	must(t, w.api.Status().Update(context.Background(), v))
	w.images.open[image] = []string{late, holder}
	must(t, w.locked.FenceLate(context.Background(), "pvc-1"))
	if slices.Contains(w.images.fenced, late) {
		t.Errorf("fenced while the holder has the image: %v", w.images.fenced)
	}
	w.images.open[image] = []string{late}
	must(t, w.locked.FenceLate(context.Background(), "pvc-1"))
	if !slices.Contains(w.images.fenced, late) || slices.Contains(w.images.fenced, holder) {
		t.Errorf("fenced %v", w.images.fenced)
	}
}

// TestAFencedHolderThatLivesGivesItsDeviceUp: its kubelet is dead, its host and the replication link
// are not. As long as it has the device, its peer cannot be promoted.
func TestAFencedHolderThatLivesGivesItsDeviceUp(t *testing.T) {
	t.Run("to its partner", func(t *testing.T) {
		w := newWorld(t)
		v, holder, partner := w.fenced("pvc-1")
		w.host(holder).Supersede(ref(v), v.Status.Epoch+1)
		_, err := w.publish("pvc-1", partner)
		must(t, err)
		if s := w.host(holder).Status(ref(v)); s.Device != "" {
			t.Errorf("node %s still has the device: %+v", holder, s)
		}
	})
	t.Run("to whoever writes back for a third node", func(t *testing.T) {
		w := newWorld(t)
		v, holder, _ := w.fenced("pvc-1")
		w.host(holder).Supersede(ref(v), v.Status.Epoch+1)
		_, err := w.publish("pvc-1", other(v))
		must(t, err)
		if s := w.host(holder).Status(ref(v)); s.Device != "" {
			t.Errorf("node %s still has the device: %+v", holder, s)
		}
	})
	t.Run("or its partner does not get the volume", func(t *testing.T) {
		w := newWorld(t)
		v, holder, partner := w.fenced("pvc-1")
		w.host(holder).Change(ref(v), func(s *escache.VolumeStatus) {
			s.Peers = []escache.Peer{{Name: partner, ConnectionState: escache.LinkConnected, DiskState: escache.DiskUpToDate}}
		})
		_, err := w.publish("pvc-1", partner)
		wants(t, err, codes.Unavailable, holder, "still has its device")
	})
	t.Run("but nobody waits for one that does not answer", func(t *testing.T) {
		w := newWorld(t)
		_, holder, partner := w.fenced("pvc-1")
		w.host(holder).Stop()
		_, err := w.publish("pvc-1", partner)
		must(t, err)
	})
}
