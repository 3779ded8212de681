package authority

import (
	"errors"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// A pod got the volume in epoch 7 where it was being written back, and was gone before it was staged.
func TestDetachGivesBackWhatNoPodHasUsed(t *testing.T) {
	began := func(s *v1alpha1.CacheVolumeStatus) { inCache(s); s.AttachedNode, s.FlushEpoch = "n1", 6 }
	but := func(change func(*v1alpha1.CacheVolumeStatus)) func(*v1alpha1.CacheVolumeStatus) {
		return func(s *v1alpha1.CacheVolumeStatus) { began(s); change(s) }
	}
	of := func(epoch int64, change func(*escache.VolumeStatus)) answer {
		a := holding(escache.StateConnected)
		if a.Status.Epoch = epoch; change != nil {
			change(&a.Status)
		}
		return a
	}
	unused, back, dead := of(6, nil), Detachment{GiveBack: true}, Death{Reason: "tainted"}
	for _, tc := range []struct {
		name   string
		status func(*v1alpha1.CacheVolumeStatus)
		holder answer
		death  Death
		want   Detachment
		err    error
	}{
		{"it has the device of the write-back", began, unused, Death{}, back, nil},
		{"it is flushing", began, of(6, func(s *escache.VolumeStatus) { s.State = escache.StateFlushing }), Death{}, back, nil},
		{"its cache reports an error", began, of(6, func(s *escache.VolumeStatus) { s.State = escache.StateError }), Death{}, back, nil},
		{"a write-back before that one made it", began, of(4, nil), Death{}, back, nil},
		{"its own copy is outdated since", but(func(s *v1alpha1.CacheVolumeStatus) { s.Outdated = []string{"n1"} }), unused, Death{}, back, nil},
		{"NodeStage has connected it", began, of(7, nil), Death{}, Detachment{}, ErrRefused},
		{"NodeStage is connecting it", began, of(6, func(s *escache.VolumeStatus) { s.Connecting = true }), Death{}, Detachment{}, ErrRefused},
		{"NodeStage has put its client on record", but(func(s *v1alpha1.CacheVolumeStatus) { s.ClientAddress = "a" }), unused, Death{},
			Detachment{}, ErrRefused},
		{"it was not being written back", but(func(s *v1alpha1.CacheVolumeStatus) { s.FlushEpoch = 0 }), unused, Death{},
			Detachment{}, ErrRefused},
		{"the device is of a later attachment of a pod", but(func(s *v1alpha1.CacheVolumeStatus) { s.FlushEpoch = 3 }), unused, Death{},
			Detachment{}, ErrRefused},
		{"Ceph has everything", but(func(s *v1alpha1.CacheVolumeStatus) { s.Authority = v1alpha1.AuthorityCeph }), unused, Death{},
			Detachment{}, ErrRefused},
		{"the attachment has no cache", but(func(s *v1alpha1.CacheVolumeStatus) { s.Uncached = &v1alpha1.UncachedAttachment{Epoch: 7} }), unused,
			Death{}, Detachment{}, ErrRefused},
		{"the device has no cache", began, of(6, func(s *escache.VolumeStatus) { s.Uncached = true }), Death{}, Detachment{}, ErrRefused},
		{"it has stopped the device", began, standby(new(int64(1))), Death{}, Detachment{}, nil},
		{"it does not answer", began, answer{Err: errors.New("no route")}, Death{}, Detachment{}, ErrUnreachable},
		{"it has seen a later attachment", began, of(99, nil), Death{}, Detachment{}, ErrUnreachable},
		{"another machine answers in its place", but(func(s *v1alpha1.CacheVolumeStatus) { s.SetHostID("n1", "its own") }), unused, Death{},
			Detachment{Fence: true, MayCome: true}, nil},
		{"Kubernetes has given it up", began, unused, dead, Detachment{Fence: true, MayCome: true}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(tc.status)
			got, err := Detach(v, "n1", tc.holder.heard(v, "n1"), tc.death)
			if !errors.Is(err, tc.err) || (err == nil) != (tc.err == nil) {
				t.Fatalf("got %v", err)
			}
			if got.Reason = ""; got != tc.want {
				t.Errorf("got %+v, want %+v", got, tc.want)
			}
		})
	}
}
