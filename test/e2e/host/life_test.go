//go:build e2e

package host

import (
	"context"
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/labtest"
)

// step is one verb in the life of a volume, and what is done between it and the next.
type step struct {
	name string
	call func(context.Context) error
	then func()
}

// Names of steps.
const (
	put, connect, flush, stop, remove = "put replica", "dev_connect", "flush", "stop", "delete replica"
	writethrough, writeback           = "mode writethrough", "mode writeback"
	options                           = "options"
	hold, release, resize             = "hold", "release", "resize"
	paused, endPause                  = "hold with a pause", "release of the pause"
)

// belongs says which steps a connected volume's life has when others are wanted: a hold must be
// released, and only what drains can stop to.
func belongs(name string, wanted func(name string) bool) bool {
	switch name {
	case connect, flush, stop:
		return true
	case hold, release:
		return wanted(hold) || wanted(release)
	case paused, endPause:
		return wanted(paused) || wanted(endPause)
	case writethrough:
		return wanted(writethrough) || wanted(writeback)
	}
	return wanted(name)
}

const growth = 4 * mib

// life is that of one volume on the first two hosts, with data written whenever it is connected, so
// that each verb has something to lose.
type life struct {
	t    *testing.T
	v    *labtest.Volume
	n1   *labtest.Host
	acks labtest.Acks
}

// live makes an image with this cache engine, takes it through the steps that are wanted and those that they need, and
// looks whether Ceph has everything in the end.
func live(t *testing.T, lab *labtest.Lab, engine escache.Engine, wanted func(name string) bool, do func(step)) {
	t.Helper()
	v := lab.NewVolume(t, labtest.VolumeSpec{SizeBytes: 16 * mib, CacheBytes: 16 * mib, Engine: engine})
	l := &life{t: t, v: v, n1: lab.Hosts[0]}
	for _, s := range l.steps(wanted) {
		do(s)
		s.then()
	}
	if len(l.acks) > 0 {
		alone, unmap := lab.Hosts[2].MapAlone(t, v)
		lab.Hosts[2].Verify(t, alone, l.acks)
		unmap()
	}
	v.RemoveImage(t)
}

func (l *life) steps(wanted func(name string) bool) []step {
	connected := l.connectedSteps()
	if slices.ContainsFunc(connected, func(s step) bool { return wanted(s.name) }) {
		connected = slices.DeleteFunc(connected, func(s step) bool { return !belongs(s.name, wanted) })
	} else {
		connected = nil
	}
	t, v, n1 := l.t, l.v, l.n1
	return slices.Concat(
		[]step{{put, func(ctx context.Context) error { _, err := n1.API.PutReplica(ctx, v.Request()); return err }, func() { v.LayOn(t, v.Hosts[1]) }}},
		connected,
		[]step{{remove, func(ctx context.Context) error { return n1.API.DeleteReplica(ctx, v.VolumeRef) },
			func() { v.DropOn(t, v.Hosts[1]) }}},
	)
}

func (l *life) connectedSteps() []step {
	t, v, n1, ref := l.t, l.v, l.n1, l.v.VolumeRef
	device := "/dev/escache/" + v.String()
	epoch := v.NextEpoch(t, n1)
	write := func(at int64) func() {
		return func() { l.acks = append(l.acks, n1.Fill(t, device, at*mib, mib/2)...) }
	}
	nothing := func() {}
	endHold := func(ctx context.Context) error { return n1.API.Release(ctx, escache.ReleaseRequest{VolumeRef: ref}) }
	return []step{
		{connect, func(ctx context.Context) error {
			_, err := n1.API.DevConnect(ctx, v.ConnectRequest(epoch))
			return err
		}, write(0)},
		{writethrough, func(ctx context.Context) error {
			return n1.API.SetMode(ctx, escache.ModeRequest{VolumeRef: ref, Mode: escache.ModeWritethrough})
		}, write(1)},
		{writeback, func(ctx context.Context) error {
			return n1.API.SetMode(ctx, escache.ModeRequest{VolumeRef: ref, Mode: escache.ModeWriteback})
		}, write(2)},
		{options, func(ctx context.Context) error {
			want := escache.CacheOptions{HighWatermark: 60, LowWatermark: 40, MaxDirtyAgeSeconds: 3600}
			answer, err := n1.API.SetOptions(ctx, escache.OptionsRequest{VolumeRef: ref, Epoch: epoch, Options: want})
			if err == nil && answer.Options != want {
				t.Errorf("options: %+v", *answer)
			}
			return err
		}, write(4)},
		{hold, func(ctx context.Context) error {
			_, err := n1.API.Hold(ctx, escache.HoldRequest{VolumeRef: ref, MaxSeconds: 60})
			return err
		}, nothing},
		{release, endHold, write(3)},
		{paused, func(ctx context.Context) error {
			held, err := n1.API.Hold(ctx, escache.HoldRequest{VolumeRef: ref, MaxSeconds: 60, Pause: true})
			if err == nil && !held.Paused {
				t.Errorf("I/O does not rest: %+v", *held)
			}
			return err
		}, nothing},
		{endPause, endHold, write(5)},
		{resize, func(ctx context.Context) error {
			v.Grow(t, v.SizeBytes+growth)
			return n1.API.Resize(ctx, escache.ResizeRequest{VolumeRef: ref, SizeBytes: v.SizeBytes + growth})
		}, write(v.SizeBytes / mib)},
		{flush, func(ctx context.Context) error {
			answer, err := n1.API.Flush(ctx, escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 60})
			if err == nil && !answer.Clean {
				t.Errorf("flush: %+v", *answer)
			}
			return err
		}, func() { n1.Verify(t, device, l.acks) }},
		{stop, func(ctx context.Context) error { return n1.API.Stop(ctx, escache.StopRequest{VolumeRef: ref}) }, nothing},
	}
}
