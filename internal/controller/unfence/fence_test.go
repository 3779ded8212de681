package unfence_test

import (
	"context"
	"slices"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

func TestAFenceIsLiftedOnceTheMapIsGone(t *testing.T) {
	w := newWorld(t)
	v, dead, partner := w.Fenced("pvc-1")
	if left := w.Lift("pvc-1"); !slices.Contains(left, csitest.OldClient) {
		t.Fatal("lifted, and the host still has the device")
	}
	w.Host(dead).Stop()
	if left := w.Lift("pvc-1"); !slices.Contains(left, csitest.OldClient) {
		t.Fatal("lifted, and nobody knows what the host has")
	}
	_, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	w.Host(dead).Restart(t)
	w.Host(dead).Release(csitest.Ref(v)) // a reboot
	w.Images.Fail = volumes.ErrUnavailable
	if _, err := w.Locked.Unfence(context.Background(), "pvc-1"); err == nil || len(w.Volume("pvc-1").Status.Fenced) != 1 {
		t.Fatalf("forgotten while Ceph does not answer: %v", err)
	}
	w.Images.Fail = nil
	if left := w.Lift("pvc-1"); len(left) > 0 || len(w.Volume("pvc-1").Status.Fenced) > 0 {
		t.Errorf("left: %v", left)
	}
	w.Lift("pvc-1") // again: nothing is to be done
}

// TestADetachAsksAnEarlierHolderThatWasFenced: a clean holder alone cannot say that the truth is in
// Ceph, as the earlier one may still write to both copies.
func TestADetachAsksAnEarlierHolderThatWasFenced(t *testing.T) {
	detach := func(t *testing.T, prepare func(*world, *v1alpha1.CacheVolume, string)) (w *world, v *v1alpha1.CacheVolume, dead string) {
		t.Helper()
		w = newWorld(t)
		v, dead, partner := w.Fenced("pvc-1")
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		w.Host(partner).Write(csitest.Ref(v), 0)
		prepare(w, v, dead)
		csitest.Must(t, w.Unpublish("pvc-1", partner))
		return w, v, dead
	}
	t.Run("it has come back without the device", func(t *testing.T) {
		w, _, _ := detach(t, func(w *world, v *v1alpha1.CacheVolume, dead string) {
			w.Host(dead).Release(csitest.Ref(v))
			w.Host(dead).Write(csitest.Ref(v), 0)
		})
		if s := w.Volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCeph {
			t.Errorf("status %+v", s)
		}
	})
	t.Run("it still has the device, and then no more", func(t *testing.T) {
		w, v, dead := detach(t, func(*world, *v1alpha1.CacheVolume, string) {})
		if s := w.Volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCache {
			t.Errorf("status %+v", s)
		}
		w.Host(dead).Release(csitest.Ref(v))
		w.Host(dead).Write(csitest.Ref(v), 0)
		w.Lift("pvc-1")
		if s := w.Volume("pvc-1").Status; s.Authority != v1alpha1.AuthorityCeph {
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
			w.Images.Blocked = map[string]time.Time{csitest.OldClient: tc.until}
			v, dead, _ := w.Fenced("pvc-1")
			w.Host(dead).Release(csitest.Ref(v))
			left := w.Lift("pvc-1")
			if slices.Contains(left, csitest.OldClient) != tc.stays || len(w.Volume("pvc-1").Status.Fenced) > 0 {
				t.Errorf("on the blocklist are %v, on record %+v", left, w.Volume("pvc-1").Status.Fenced)
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
	w.Images.Blocked = map[string]time.Time{ofCeph: until}
	v, _, _ := w.FencedClient("pvc-1", ofKernel)
	if e := v.Status.Fenced[0].EarlierUntil; e == nil || !e.Time.Equal(until) {
		t.Errorf("on record %+v, want the end of the earlier entry, %s", v.Status.Fenced[0], until)
	}
}

func TestAClientOfNobodyKnownStaysFenced(t *testing.T) {
	w := newWorld(t)
	v, dead, _ := w.Fenced("pvc-1")
	v.Status.Fenced = append(v.Status.Fenced, v1alpha1.FencedClient{Address: "10.9.9.9:0/9", Epoch: 1, Time: v.Status.Fenced[0].Time})
	csitest.Must(t, w.API.Status().Update(context.Background(), v))
	w.Host(dead).Release(csitest.Ref(v))
	w.Lift("pvc-1")
	if left := w.Volume("pvc-1").Status.Fenced; len(left) != 1 || left[0].Address != "10.9.9.9:0/9" {
		t.Errorf("left: %+v", left)
	}
}

// TestAMapThatCameLateIsFencedToo is about a dev_connect that was under way while its node lost the
// volume: the next holder finds the image in use.
func TestAMapThatCameLateIsFencedToo(t *testing.T) {
	w := newWorld(t)
	v, dead, partner := w.Fenced("pvc-1")
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	const late = "10.0.0.1:0/2"
	w.Images.Open[image] = []string{late}
	_, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	if !slices.Contains(w.Images.Fenced, late) {
		t.Errorf("fenced %v", w.Images.Fenced)
	}
	entries := w.Volume("pvc-1").Status.Fenced
	if len(entries) != 2 || entries[1].Address != late || entries[1].Epoch != 1 || entries[1].Node != dead {
		t.Errorf("on record %+v, of %s", entries, dead)
	}
	// Now somebody has it, who opens the image himself: the repeated call fences nobody.
	w.Images.Open[image] = []string{"10.0.0.2:0/1"}
	_, err = w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	if slices.Contains(w.Images.Fenced, "10.0.0.2:0/1") {
		t.Errorf("the holder itself is fenced: %v", w.Images.Fenced)
	}
}

// TestAMapThatComesAfterTheNextHolderWasChosenIsFenced: the dev_connect of the node that lost the
// volume ends so late.
func TestAMapThatComesAfterTheNextHolderWasChosenIsFenced(t *testing.T) {
	w := newWorld(t)
	v, dead, partner := w.Fenced("pvc-1")
	_, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	const late, holder = "10.0.0.1:0/2", "10.0.0.2:0/1"
	w.Images.Open[image] = []string{late, holder}
	csitest.Must(t, w.Locked.FenceLate(context.Background(), "pvc-1"))
	csitest.Must(t, w.Locked.FenceLate(context.Background(), "pvc-1")) // again: it is on record once
	if !slices.Contains(w.Images.Fenced, late) || slices.Contains(w.Images.Fenced, holder) {
		t.Errorf("fenced %v", w.Images.Fenced)
	}
	entries := w.Volume("pvc-1").Status.Fenced
	if len(entries) != 2 || entries[1].Address != late || entries[1].Epoch != 1 || entries[1].Node != dead {
		t.Errorf("on record %+v, of %s", entries, dead)
	}
}

// TestALateClientThatIsOnRecordIsLeftToItsRenewal: a killed client may hold the image's lock for long. Each look would fence it again,
// and nobody would learn that its entry was shortened.
func TestALateClientThatIsOnRecordIsLeftToItsRenewal(t *testing.T) {
	w := newWorld(t)
	v, _, partner := w.Fenced("pvc-1")
	_, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	w.open(v, csitest.OldClient)
	before := len(w.Images.Fenced)
	csitest.Must(t, w.Locked.FenceLate(t.Context(), "pvc-1"))
	if len(w.Images.Fenced) != before {
		t.Errorf("fenced %v, %d times before this look", w.Images.Fenced, before)
	}
}

// TestAMapThatComesAfterTheNextHolderWasUndoneIsFenced: the client of the next holder is on record. Its
// stage failed for good and was undone, so the image was free for the late dev_connect.
func TestAMapThatComesAfterTheNextHolderWasUndoneIsFenced(t *testing.T) {
	w := newWorld(t)
	v, _, partner := w.Fenced("pvc-1")
	_, err := w.Publish("pvc-1", partner)
	csitest.Must(t, err)
	image := volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: v.Spec.Image}
	const late, holder = "10.0.0.1:0/2", "10.0.0.2:0/1"
	v = w.Volume("pvc-1")
	v.Status.ClientAddress = holder
	csitest.Must(t, w.API.Status().Update(context.Background(), v))
	w.Images.Open[image] = []string{late, holder}
	csitest.Must(t, w.Locked.FenceLate(context.Background(), "pvc-1"))
	if slices.Contains(w.Images.Fenced, late) {
		t.Errorf("fenced while the holder has the image: %v", w.Images.Fenced)
	}
	w.Images.Open[image] = []string{late}
	csitest.Must(t, w.Locked.FenceLate(context.Background(), "pvc-1"))
	if !slices.Contains(w.Images.Fenced, late) || slices.Contains(w.Images.Fenced, holder) {
		t.Errorf("fenced %v", w.Images.Fenced)
	}
}

// TestAFencedHolderThatLivesGivesItsDeviceUp: its kubelet is dead, its host and the replication link
// are not. As long as it has the device, its peer cannot be promoted.
func TestAFencedHolderThatLivesGivesItsDeviceUp(t *testing.T) {
	t.Run("to its partner", func(t *testing.T) {
		w := newWorld(t)
		v, holder, partner := w.Fenced("pvc-1")
		w.Host(holder).Supersede(csitest.Ref(v), v.Status.Epoch+1)
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
		if s := w.Host(holder).Status(csitest.Ref(v)); s.Device != "" {
			t.Errorf("node %s still has the device: %+v", holder, s)
		}
	})
	t.Run("to whoever writes back for a third node", func(t *testing.T) {
		w := newWorld(t)
		v, holder, _ := w.Fenced("pvc-1")
		w.Host(holder).Supersede(csitest.Ref(v), v.Status.Epoch+1)
		_, err := w.Publish("pvc-1", csitest.Other(v))
		csitest.Must(t, err)
		if s := w.Host(holder).Status(csitest.Ref(v)); s.Device != "" {
			t.Errorf("node %s still has the device: %+v", holder, s)
		}
	})
	t.Run("or its partner does not get the volume", func(t *testing.T) {
		w := newWorld(t)
		v, holder, partner := w.Fenced("pvc-1")
		w.Host(holder).Change(csitest.Ref(v), func(s *escache.VolumeStatus) {
			s.Peers = []escache.Peer{{Name: partner, ConnectionState: escache.LinkConnected, DiskState: escache.DiskUpToDate}}
		})
		_, err := w.Publish("pvc-1", partner)
		csitest.Wants(t, err, codes.Unavailable, holder, "still has its device")
	})
	t.Run("but nobody waits for one that does not answer", func(t *testing.T) {
		w := newWorld(t)
		_, holder, partner := w.Fenced("pvc-1")
		w.Host(holder).Stop()
		_, err := w.Publish("pvc-1", partner)
		csitest.Must(t, err)
	})
}
