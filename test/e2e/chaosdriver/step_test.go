//go:build e2e

package chaosdriver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/labtest"
)

// What consists of several steps is broken between them.
func stepRows() []row {
	return []row{
		{when: "steps", what: "of snapshots: escached and csi-controller are killed in them", run: snapshotsKilled},
		{when: "steps", what: "of an expansion: escached and csi-controller are killed in it", run: expansionKilled},
		{when: "steps", what: "of a drain: escached and csi-controller are killed in it", run: drainKilled},
		{when: "steps", what: "of giving a device up: the old holder's escached is killed at each", run: abandonKilled},
	}
}

// killControllers ends both replicas of csi-controller at once.
func (s *scene) killControllers() {
	s.Helper()
	killed, err := killControllers()
	check(s, err)
	if killed == 0 {
		s.Fatalf("there is no csi-controller to kill")
	}
}

// killControllers kills every csi-controller of the lab, and returns how many there were.
func killControllers() (killed int, err error) {
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		return 0, err
	}
	for _, file := range files {
		line, err := os.ReadFile(file)
		if program, _, _ := strings.Cut(string(line), "\x00"); err != nil || filepath.Base(program) != "csi-controller" {
			continue
		}
		var pid int
		if _, err := fmt.Sscan(filepath.Base(filepath.Dir(file)), &pid); err == nil && syscall.Kill(pid, syscall.SIGKILL) == nil {
			killed++
		}
	}
	return killed, nil
}

// snapshot asks for one, and returns its name.
func (s *scene) snapshot(i int) string {
	s.Helper()
	name := fmt.Sprintf("%s-s%d", s.name, i)
	s.apply(s, fmt.Sprintf(`
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshot
metadata: {name: %s, namespace: %s}
spec: {volumeSnapshotClassName: %s, source: {persistentVolumeClaimName: %s}}
`, name, namespace, class, s.name))
	return name
}

func (s *scene) ready(snapshot string) {
	s.Helper()
	s.kubectl(s, "wait", "--for=jsonpath={.status.readyToUse}=true", "volumesnapshot/"+snapshot, fmt.Sprintf("--timeout=%s", podTime))
}

// hasAll reads a snapshot in Ceph, and removes it: everything is there that was acknowledged before
// it was asked for.
func (s *scene) hasAll(snapshot string, acked labtest.Acks) {
	s.Helper()
	content := s.kubectl(s, "get", "volumesnapshot", snapshot, "-o", "jsonpath={.status.boundVolumeSnapshotContentName}")
	handle := s.kubectl(s, "get", "volumesnapshotcontent", content, "-o", "jsonpath={.status.snapshotHandle}")
	var record v1alpha1.CacheSnapshot
	check(s, s.get(s.Context(), &record, "cachesnapshot", handle))
	h := s.third()
	device, unmap := h.MapSnapshot(s, s.image, record.Spec.Snapshot)
	h.Verify(s, device, acked)
	unmap()
	s.kubectl(s, "delete", "volumesnapshot", snapshot, "--timeout=120s")
}

func snapshotsKilled(s *scene) {
	s.write()
	for i, breaks := range []func(){
		func() { s.holder.KillService(s) },
		s.killControllers,
		func() { time.Sleep(time.Second); s.holder.KillService(s) },
		func() { time.Sleep(time.Second); s.killControllers() },
	} {
		acked := s.writer.Acks()
		snapshot := s.snapshot(i)
		s.fault()
		breaks()
		s.goesOn()
		s.ready(snapshot)
		s.hasAll(snapshot, acked)
	}
	s.whole()
	s.finish()
}

func expansionKilled(s *scene) {
	s.write()
	s.kubectl(s, "patch", "pvc", s.name, "--type=merge", "-p", `{"spec":{"resources":{"requests":{"storage":"128Mi"}}}}`)
	s.fault()
	s.killControllers()
	s.holder.KillService(s)
	s.goesOn()
	labtest.WaitForCommand(s, "the device has grown", podTime, func(ctx context.Context) error {
		out, err := s.holder.Try(ctx, nil, "blockdev", "--getsize64", s.device)
		if err == nil && out != fmt.Sprint(128<<20) {
			err = fmt.Errorf("it has %s bytes", out)
		}
		return err
	})
	s.goesOn()
	s.whole()
	s.finish()
}

func drainKilled(s *scene) {
	s.write()
	s.apply(s, fmt.Sprintf(`
apiVersion: escache.io/v1alpha1
kind: CacheFlush
metadata: {name: %s}
spec: {mode: Drain, volume: %s}
`, s.name, s.volume))
	s.Cleanup(func() {
		_, _ = s.try(context.WithoutCancel(s.Context()), "", "delete", "cacheflush", s.name, "--ignore-not-found", "--timeout=120s")
	})
	s.fault()
	s.holder.KillService(s)
	s.killControllers()
	s.goesOn()
	s.recordIs("is drained", func(v *cacheVolume) error {
		if v.Status.Authority != v1alpha1.AuthorityCeph {
			return fmt.Errorf("its truth is in %s", v.Status.Authority)
		}
		return nil
	})
	s.holder.KillService(s)
	s.goesOn()
	// Write-back begins again, and that is broken, too.
	_, err := s.try(s.Context(), "", "delete", "cacheflush", s.name, "--wait=false")
	check(s, err)
	s.killControllers()
	s.holder.KillService(s)
	s.writesBack()
	s.goesOn()
	s.whole()
	s.finish()
}

// writesBack waits until nobody claims any more that the volume writes through, and it does not.
func (s *scene) writesBack() {
	s.Helper()
	s.recordIs("writes back again", func(v *cacheVolume) error {
		if v.Status.Authority != v1alpha1.AuthorityCache || len(v.Status.WriteThrough) > 0 {
			return fmt.Errorf("its truth is in %s, claims %+v", v.Status.Authority, v.Status.WriteThrough)
		}
		return nil
	})
}

// abandonKilled has the volume go to and fro by force, and the loser die at another step each time.
func abandonKilled(s *scene) {
	s.write()
	for _, point := range []string{"abandon/decided", "abandon/detached", "abandon/removed", "abandon/outdated"} {
		old, heir := s.holder, s.partner()
		s.forced(old)
		old.TraceCrashPoints(s)
		old.CrashAt(s, point)
		s.takes(heir)
		s.goOn(old, "kubelet")
		s.untaint(old)
		s.givenUp(old)
		s.whole() // some points come after the device is gone
		if !old.Crashed(s) {
			s.Errorf("%s was not reached on %s", point, old.Name)
		}
	}
	s.finish()
}
