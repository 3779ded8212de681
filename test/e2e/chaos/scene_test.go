//go:build e2e

package chaos

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

const (
	mib = 1 << 20
	// rebootLimit is for an emulated machine on a busy one, and so are the others.
	rebootLimit  = 5 * time.Minute
	goOnLimit    = 2 * time.Minute
	connectLimit = 3 * time.Minute
	noticeLimit  = time.Minute
)

// scene is one volume in use, and what is done to it.
type scene struct {
	*testing.T

	lab        *labtest.Lab
	n1, n2, n3 *labtest.Host
	v          *labtest.Volume
	check      *labtest.Checker

	// holder has the volume: its device, its Ceph client and the writer that uses it.
	holder *labtest.Host
	device string
	client string
	writer *labtest.Writer
	// off are hosts without power; recovered is how long each fault kept the volume from being
	// used.
	off       []*labtest.Host
	recovered []time.Duration
}

// open makes the volume and gives it to the first host.
func (s *scene) open() {
	s.Helper()
	s.v = s.lab.NewVolume(s, labtest.VolumeSpec{})
	s.v.Lay(s)
	s.check = labtest.NewChecker()
	s.connect(s.n1)
}

// connect gives the volume to a host, as often as it takes: so does the kubelet.
func (s *scene) connect(h *labtest.Host) {
	s.Helper()
	epoch := s.v.NextEpoch(s, h)
	labtest.WaitFor(s, h.Name+" connects", connectLimit, func(ctx context.Context) error {
		answer, err := h.API.DevConnect(ctx, s.v.ConnectRequest(epoch))
		if err == nil {
			s.holder, s.device, s.client = h, answer.Device, answer.ClientAddress
		}
		return err
	})
}

// write has the holder write all the time.
func (s *scene) write() {
	s.Helper()
	s.writer = s.check.Write(s, s.holder, s.device)
	s.writer.WaitForMore(s, 30, goOnLimit)
}

// rest ends the writer, so that the volume is idle and dirty.
func (s *scene) rest() {
	s.Helper()
	s.writer.Stop(s)
	s.writer = nil
}

// goesOn waits until the holder takes writes again.
func (s *scene) goesOn() {
	s.Helper()
	begin := time.Now()
	if s.writer == nil {
		s.writer = s.check.Write(s, s.holder, s.device)
	}
	s.writer.WaitForMore(s, 10, goOnLimit)
	s.recovered = append(s.recovered, time.Since(begin))
}

// takenOver is the forced hand-over to another host.
func (s *scene) takenOver(to *labtest.Host) {
	s.Helper()
	begin := time.Now()
	s.lab.Blocklist(s, s.client)
	s.connect(to)
	s.usedBy(to, begin)
}

func (s *scene) usedBy(to *labtest.Host, begin time.Time) {
	s.Helper()
	s.recovered = append(s.recovered, time.Since(begin))
	s.check.TakenOver(s, to, s.device)
	s.writer = nil
	s.write()
}

func (s *scene) powerOff(h *labtest.Host) {
	s.Helper()
	s.lab.PowerOff(s, h)
	s.off = append(s.off, h)
}

// powerOn brings all hosts back.
func (s *scene) powerOn() {
	s.Helper()
	for _, h := range s.off {
		s.lab.PowerOn(s, h)
	}
	for _, h := range s.off {
		h.WaitForService(s, rebootLimit)
	}
	s.off = nil
}

// whole brings everything back and waits until both copies are current.
func (s *scene) whole() {
	s.Helper()
	s.lab.ResumeCeph(s)
	s.lab.Heal(s)
	s.powerOn()
	s.v.WaitForPeer(s, s.holder)
}

// returnsToFirst powers the hosts on: the first one is used again, and nothing is lost.
func (s *scene) returnsToFirst() {
	s.Helper()
	begin := time.Now()
	s.powerOn()
	s.connect(s.n1)
	s.usedBy(s.n1, begin)
	s.whole()
	s.finish()
}

// finish verifies what was promised, on the holder and, after a flush, in Ceph alone. It compares the two copies, which have to be
// current by now, and ends the volume's life in good order.
func (s *scene) finish() {
	s.Helper()
	if s.writer != nil {
		s.writer.Stop(s)
	}
	s.check.Verify(s, s.holder, s.device)
	s.v.Flush(s, s.holder)
	other := s.v.Hosts[1-slices.Index(s.v.Hosts, s.holder)]
	s.v.MustBeEqual(s, s.holder, other)
	s.v.Stop(s, s.holder)
	alone, unmap := s.n3.MapAlone(s, s.v)
	s.check.Verify(s, s.n3, alone)
	unmap()
	s.v.Remove(s, nil)
}

// while runs a call that the fault interrupts; what it answers does not matter, but that it answers
// does. It returns when the host's status shows the call, or the call has ended: then there is nothing left to interrupt.
func (s *scene) while(
	h *labtest.Host, what string, shows func(escache.VolumeStatus) bool, call func(context.Context) error,
) (wait func(), underWay bool) {
	s.Helper()
	ctx, cancel := context.WithTimeout(s.Context(), connectLimit)
	done := make(chan error, 1)
	go func() { done <- call(ctx) }()
	s.Cleanup(cancel)
	labtest.WaitFor(s, what+" is under way on "+h.Name, noticeLimit, func(ctx context.Context) error {
		if len(done) > 0 {
			return nil
		}
		status, err := h.API.VolumeStatus(ctx, s.v.VolumeRef)
		if err == nil && !shows(*status) {
			err = fmt.Errorf("its status is %+v", *status)
		}
		return err
	})
	underWay = len(done) == 0
	return func() {
		s.Helper()
		if slices.Contains(s.off, h) {
			cancel() // nobody is there to answer
			<-done
			return
		}
		err := <-done
		s.Logf("%s, interrupted, ended with: %v", what, err)
		if ctx.Err() != nil {
			s.Errorf("%s did not end within %s", what, connectLimit)
		}
		cancel()
	}, underWay
}

// flushing begins a flush of data that Ceph has not. It goes on as long as the writer does, and no longer than a minute.
func (s *scene) flushing() (wait func()) {
	s.Helper()
	h := s.holder
	flushes := func(st escache.VolumeStatus) bool { return st.State == escache.StateFlushing }
	wait, underWay := s.while(h, "flush", flushes, func(ctx context.Context) error {
		answer, err := h.API.Flush(ctx, escache.FlushRequest{VolumeRef: s.v.VolumeRef, TimeoutSeconds: 60})
		if err == nil {
			err = fmt.Errorf("%+v", *answer) //nolint:err113 // what is logged
		}
		return err
	})
	if !underWay {
		wait()
		s.Fatalf("the flush on %s had ended before the fault", h.Name)
	}
	return wait
}

// connecting begins to give the volume to a host, which must not have it yet.
func (s *scene) connecting(h *labtest.Host) (wait func()) {
	s.Helper()
	epoch := s.v.NextEpoch(s, h)
	connects := func(st escache.VolumeStatus) bool { return st.Connecting }
	wait, underWay := s.while(h, "dev_connect", connects, func(ctx context.Context) error {
		_, err := h.API.DevConnect(ctx, s.v.ConnectRequest(epoch))
		return err
	})
	if !underWay {
		s.Logf("dev_connect on %s had ended before the fault", h.Name)
	}
	return wait
}

// resyncing has the second host miss writes and return; it is being resynchronised when this
// returns. The link is slow until it is healed, so that the resync takes much longer than the fault.
func (s *scene) resyncing() {
	s.Helper()
	s.powerOff(s.n2)
	s.v.WaitForStatus(s, s.n1, "runs alone", noticeLimit, alone)
	// A minute and a half on a slow link; beside the region that is checked.
	s.check.Add(s.n1.Fill(s, s.device, 8*mib, 12*mib))
	s.lab.CutSome(s, s.n1, labclient.Cut{From: s.n2.Name, Slow: true})
	s.powerOn()
	s.v.WaitForStatus(s, s.n1, "resynchronises its peer", noticeLimit, func(st escache.VolumeStatus) bool {
		return len(st.Peers) == 1 && st.Peers[0].Linked() && st.Peers[0].DiskState == escache.DiskInconsistent
	})
}

func alone(st escache.VolumeStatus) bool {
	return !st.IOSuspended && len(st.Peers) == 1 && st.Peers[0].DiskState == "Outdated"
}
