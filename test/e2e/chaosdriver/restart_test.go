//go:build e2e

package chaosdriver

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/labtest"
)

// escached does not know what is on its host until LVM has answered. Nobody may take that for
// "nothing".
func restartRows() []row {
	return []row{
		{when: "restart", what: "LVM hangs, escached is killed, and the pod goes", core: true, run: hungLVM},
		{when: "restart", what: "the same on a fenced holder, long after the fence", run: hungLVMUnderFence},
	}
}

func hungLVM(s *scene) {
	s.write()
	s.rest()
	release := s.killWithLVMHung(s.holder)
	s.kubectl(s, "delete", "pod", s.pod, "--wait=false")
	for begin := time.Now(); time.Since(begin) < 25*time.Second; time.Sleep(time.Second) {
		v := s.record()
		if v.Status.AttachedNode != s.holder.Name || v.Status.Authority != v1alpha1.AuthorityCache {
			s.Fatalf("nobody knows what %s has, and the volume is attached to %q, its truth in %s", s.holder.Name, v.Status.AttachedNode, v.Status.Authority)
		}
	}
	s.fault()
	release()
	s.detached()
	s.inCeph()
	s.use(s.partner())
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.check.Verify(s, s.holder, s.device)
	s.write()
	s.finish()
}

// killWithLVMHung has another command hold the lock of the volume group for ever, and escached start
// again meanwhile.
func (s *scene) killWithLVMHung(h *labtest.Host) (release func()) {
	s.Helper()
	const lock = "/run/lock/lvm/V_escache"
	ctx, cancel := context.WithCancel(s.Context())
	s.Cleanup(cancel)
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = h.Try(ctx, nil, "flock", lock, "sleep", "1000") // it ends by being killed
	}()
	labtest.WaitFor(s, "LVM hangs on "+h.Name, commandTime, func(ctx context.Context) error {
		_, err := h.Try(ctx, nil, "sh", "-c", "! flock -n "+lock+" true")
		return err
	})
	old := h.ServicePID(s)
	h.Run(s, "kill", "-9", old)
	labtest.WaitFor(s, "escached on "+h.Name+" does not know what is there", commandTime, func(ctx context.Context) error {
		status, err := h.API.VolumeStatus(ctx, s.image.VolumeRef)
		switch {
		case err == nil:
			return fmt.Errorf("it says %+v", *status)
		case labtest.CodeOf(err) != escache.CodeRecovering:
			return err
		}
		return nil
	})
	return func() {
		s.Helper()
		cancel()
		<-done
		h.WaitForService(s, commandTime)
	}
}

// hungLVMUnderFence: what is fenced stays fenced while nobody knows whether its map is gone. The
// link is cut and csi-node stopped, or else the old holder gives its device up at once.
func hungLVMUnderFence(s *scene) {
	s.write()
	old, client := s.holder, s.record().Status.ClientAddress
	s.stop(old, "csi-node")
	s.cutBoth(old, s.partner())
	release := s.killWithLVMHung(old)
	s.forced(old)
	s.takes(s.partner())
	s.goOn(old, "kubelet")
	s.fencedLongAgo()
	s.staysFenced(client, 40*time.Second)
	release()
	s.staysFenced(client, 20*time.Second)
	s.goOn(old, "csi-node")
	s.unfenced(client)
	s.whole()
	s.finish()
}

// fencedLongAgo sets the record's fences back, as if no dev_connect could be under way any more.
func (s *scene) fencedLongAgo() {
	s.Helper()
	labtest.WaitForCommand(s, "the fences are set back", commandTime, func(ctx context.Context) error {
		v, err := s.api.Volume(ctx, s.volume)
		if err != nil {
			return err
		}
		if len(v.Status.Fenced) == 0 {
			return errors.New("nobody is fenced")
		}
		patch, comma := "[", ""
		for i := range v.Status.Fenced {
			patch += fmt.Sprintf(`%s{"op":"replace","path":"/status/fenced/%d/time","value":%q}`, comma, i, time.Now().Add(-time.Hour).UTC().Format(time.RFC3339))
			comma = ","
		}
		_, err = s.try(ctx, "", "patch", "cachevolume", s.volume, "--subresource=status", "--type=json", "-p", patch+"]")
		return err
	})
}
