//go:build e2e

package chaosdriver

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// scene is one volume, the pod that has it, and what is done to them.
type scene struct {
	*testing.T
	*world

	name   string // of the claim
	class  string // its StorageClass
	volume string // of the CacheVolume
	image  *labtest.Volume
	check  *labtest.Checker
	watch  *watch

	// holder is the host of the pod, device the volume there: the writer uses it beside the pod.
	holder *labtest.Host
	pod    string
	device string
	writer *labtest.Writer
	pods   int
	// takenOver: the copy that was the second one in the beginning was read.
	takenOver bool

	others []*scene // more volumes of the row

	begun     time.Time // of the fault
	recovered []time.Duration
}

func (w *world) newScene(t *testing.T) *scene {
	w.rows++
	return &scene{T: t, world: w, name: fmt.Sprintf("r%d", w.rows), class: class, check: labtest.NewChecker()}
}

// open makes a claim and a pod that has it, and returns when both copies are current.
func (s *scene) open() {
	s.Helper()
	s.openOn(nil)
}

// openOn is open on a certain host, which gets a copy of the volume if it has none.
func (s *scene) openOn(h *labtest.Host) {
	s.Helper()
	s.apply(s, fmt.Sprintf(`
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: %s, namespace: %s}
spec: {accessModes: [ReadWriteOnce], volumeMode: Block, storageClassName: %s, resources: {requests: {storage: 64Mi}}}
`, s.name, namespace, s.class))
	s.kubectl(s, "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/"+s.name, "--timeout=240s")
	s.volume = labtest.VolumeOf(func(args ...string) string { return s.kubectl(s, args...) }, s.name)
	v := s.record()
	s.image = s.lab.VolumeOf(escache.VolumeRef{Pool: v.Spec.Pool, Image: v.Spec.Image})
	s.watch = s.startWatch()
	if h == nil {
		h = s.lab.Host(s, v.Spec.Replicas[0])
	}
	s.use(h)
	s.redundant()
}

func (s *scene) record() *cacheVolume {
	s.Helper()
	v, err := s.api.Volume(s.Context(), s.volume)
	check(s, err)
	return v
}

// partner is the host of the other copy, and third one that has none.
func (s *scene) partner() *labtest.Host {
	s.Helper()
	replicas := s.record().Spec.Replicas
	return s.lab.Host(s, replicas[1-slices.Index(replicas, s.holder.Name)])
}

func (s *scene) third() *labtest.Host {
	s.Helper()
	v := s.record()
	i := slices.IndexFunc(s.lab.Hosts, func(h *labtest.Host) bool { return !v.Spec.HasReplica(h.Name) && h.Name != s.deleted })
	return s.lab.Hosts[i]
}

// ask starts a pod on a host and does not wait for it.
func (s *scene) ask(h *labtest.Host) {
	s.Helper()
	if s.record().Status.Authority == v1alpha1.AuthorityCeph {
		s.image.LaidAnew() // the attach may do that
	}
	s.pods++
	s.pod = fmt.Sprintf("%s-%d", s.name, s.pods)
	s.apply(s, labtest.Pod{
		Name: s.pod, Namespace: namespace, Host: h.Name, Claim: s.name, Script: "exec sleep 1000000", Block: true, HostNetwork: true,
	}.Object(s))
}

// use starts a pod on a host and returns when it runs.
func (s *scene) use(h *labtest.Host) {
	s.Helper()
	s.ask(h)
	s.runs(h)
}

// runs waits until the pod that was asked for runs.
func (s *scene) runs(h *labtest.Host) {
	s.Helper()
	if _, err := s.try(s.Context(), "", "-n", namespace, "wait", "--for=condition=Ready", "pod/"+s.pod, fmt.Sprintf("--timeout=%s", podTime)); err != nil {
		ctx := context.WithoutCancel(s.Context())
		events, _ := s.said(ctx, "Pod", s.pod)
		volumes, _ := s.try(ctx, "", "get", "cachevolume", s.volume, "-o", "yaml")
		s.Fatalf("%v\n%q\n%s", err, events, volumes)
	}
	s.holder, s.device = h, s.on(h).Device
	if s.device == "" {
		s.Fatalf("pod %s runs, and %s has no device of %s", s.pod, h.Name, s.volume)
	}
}

// on is what a host's escached says of the volume.
func (s *scene) on(h *labtest.Host) escache.VolumeStatus {
	s.Helper()
	status, err := h.API.VolumeStatus(s.Context(), s.image.VolumeRef)
	check(s, err)
	return *status
}

// write has the holder's device written all the time.
func (s *scene) write() {
	s.Helper()
	s.writer = s.check.Write(s, s.holder, s.device)
	s.writer.WaitForMore(s, 30, goOnTime)
}

// rest ends the writer, so that the volume is idle and dirty.
func (s *scene) rest() {
	s.Helper()
	s.writer.Stop(s)
	s.writer = nil
	if dirty := s.on(s.holder).DirtyBytes; dirty == nil || *dirty == 0 {
		s.Fatalf("nothing is dirty on %s", s.holder.Name)
	}
}

// fault is when something is broken.
func (s *scene) fault() { s.begun = time.Now() }

// goesOn waits until the holder's device takes writes again.
func (s *scene) goesOn() {
	s.Helper()
	if s.writer == nil {
		s.writer = s.check.Write(s, s.holder, s.device)
	}
	s.writer.WaitForMore(s, 10, goOnTime)
	s.recovered = append(s.recovered, time.Since(s.begun))
}

// pauses fails the row if a write is acknowledged after what is under way, or fails. While writes wait, the holder says that
// DRBD has frozen its I/O, if it answers.
func (s *scene) pauses(long time.Duration) {
	s.Helper()
	before := -1
	labtest.WaitFor(s, "writes wait", goOnTime, func(ctx context.Context) error {
		now := s.writer.Count()
		if now != before {
			before = now
			time.Sleep(5 * time.Second) // no write in so long: they wait
			return errors.New("writes go on")
		}
		if status, err := s.holder.API.VolumeStatus(ctx, s.image.VolumeRef); err == nil && !status.IOSuspended {
			return errors.New("no write ended for a while, and I/O is not frozen")
		}
		return nil
	})
	s.isFrozen()
	time.Sleep(long)
	s.isFrozen()
	if now := s.writer.Count(); now != before {
		s.Errorf("%d writes were acknowledged while they had to wait", now-before)
	}
}

// isFrozen fails the row if the holder's writer has ended, or its I/O is not frozen.
func (s *scene) isFrozen() {
	s.Helper()
	s.writer.MustWait(s)
	switch status, err := s.holder.API.VolumeStatus(s.Context(), s.image.VolumeRef); {
	case err != nil:
		s.Logf("%s does not say whether it is frozen: %v", s.holder.Name, err)
	case !status.IOSuspended:
		s.Errorf("writes wait on %s, and its I/O is not frozen: %+v", s.holder.Name, *status)
	}
}

// powerOff takes a host's power away.
func (s *scene) powerOff(h *labtest.Host) {
	s.Helper()
	s.lab.PowerOff(s, h)
}

// loses says to Kubernetes that the holder is lost, and returns when the volume is attached nowhere.
func (s *scene) loses() {
	s.Helper()
	s.taint(s, s.holder.Name)
	s.detached()
}

// detached waits until the pod is gone and the volume attached nowhere.
func (s *scene) detached() {
	s.Helper()
	s.recordIs("is attached nowhere", func(v *cacheVolume) error {
		if v.Status.AttachedNode != "" {
			return fmt.Errorf("it is attached to %s", v.Status.AttachedNode)
		}
		return nil
	})
	labtest.WaitForCommand(s, "pod "+s.pod+" is gone", podTime, func(ctx context.Context) error {
		out, err := s.try(ctx, "", "-n", namespace, "get", "pod", s.pod, "--ignore-not-found", "-o", "name")
		if err == nil && out != "" {
			err = fmt.Errorf("there is %s", out)
		}
		return err
	})
}

// recordIs waits until the volume's record is as wanted.
func (s *scene) recordIs(what string, wanted func(*cacheVolume) error) {
	s.Helper()
	labtest.WaitFor(s, "volume "+s.volume+" "+what, podTime, func(ctx context.Context) error {
		v, err := s.api.Volume(ctx, s.volume)
		if err == nil {
			err = wanted(v)
		}
		return err
	})
}

func (s *scene) isOutdated(h *labtest.Host) {
	s.Helper()
	s.recordIs("has "+h.Name+" on record as outdated", func(v *cacheVolume) error {
		if !v.Status.IsOutdated(h.Name) {
			return fmt.Errorf("outdated: %q", v.Status.Outdated)
		}
		return nil
	})
}

// takes has Kubernetes give the volume to another host, and verifies there what was acknowledged.
func (s *scene) takes(to *labtest.Host) {
	s.Helper()
	s.use(to)
	s.tookOver()
}

// tookOver is for a holder that runs and has not written yet.
func (s *scene) tookOver() {
	s.Helper()
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.check.TakenOver(s, s.holder, s.device)
	s.takenOver, s.writer = true, nil
	s.write()
}

// refuses asks for the volume on a host and waits until an Event of the pod says why it does not get
// it; then it takes the request back.
func (s *scene) refuses(h *labtest.Host, why string) {
	s.Helper()
	s.ask(h)
	s.isTold("the volume is refused to "+h.Name, why)
	if phase := s.kubectl(s, "get", "pod", s.pod, "-o", "jsonpath={.status.phase}"); phase != "Pending" {
		s.Fatalf("pod %s is %s", s.pod, phase)
	}
	s.leaves()
}

// isTold waits until an Event of the pod says so.
func (s *scene) isTold(what, why string) {
	s.Helper()
	says := regexp.MustCompile(why)
	labtest.WaitForCommand(s, what, podTime, func(ctx context.Context) error {
		told, err := s.said(ctx, "Pod", s.pod)
		if err != nil {
			return err
		}
		for reason, message := range told {
			if says.MatchString(message) {
				s.Logf("%s: %s", reason, strings.TrimSpace(message))
				return nil
			}
		}
		return fmt.Errorf("no %q in %q", why, told)
	})
}

// whole mends everything, and returns when both copies are current.
func (s *scene) whole() {
	s.Helper()
	check(s, s.mend(s.Context()))
	s.redundant()
}

func (s *scene) redundant() {
	s.Helper()
	s.recordIs("has two current copies", func(v *cacheVolume) error {
		c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionRedundant)
		if len(v.Status.Outdated) > 0 || c == nil || c.Status != "True" {
			return fmt.Errorf("outdated %q, %+v", v.Status.Outdated, c)
		}
		status, err := s.holder.API.VolumeStatus(s.Context(), s.image.VolumeRef)
		if err == nil && !labtest.Redundant(*status) {
			err = fmt.Errorf("%s says %s, peers %+v", s.holder.Name, status.DiskState, status.Peers)
		}
		return err
	})
}

// leaves deletes the pod, and returns when its volume is detached.
func (s *scene) leaves() {
	s.Helper()
	s.kubectl(s, "delete", "pod", s.pod, "--wait=false")
	s.detached()
}

// finish verifies what was promised: on the holder and as its pod sees it, on the second copy by
// taking it over, and in Ceph alone. It compares the two copies. Then it ends the volume's life in good order.
func (s *scene) finish() {
	s.Helper()
	if s.writer != nil {
		s.writer.Stop(s)
		s.writer = nil
	}
	s.check.Verify(s, s.holder, s.device)
	s.seenByPod()
	if !s.takenOver {
		s.secondCopy()
	}
	s.equalCopies()
	s.leaves()
	s.inCeph()
	s.remove()
}

// seenByPod compares what the pod reads with what was verified beside it.
func (s *scene) seenByPod() {
	s.Helper()
	const sum = "dd if=%s bs=64k count=64 2>/dev/null | sha1sum"
	beside := s.holder.Shell(s, fmt.Sprintf(sum, s.device))
	if seen := s.kubectl(s, "exec", s.pod, "--", "sh", "-c", fmt.Sprintf(sum, "/dev/data")); seen != beside {
		s.Errorf("the pod reads %s, and the device has %s", seen, beside)
	}
}

// secondCopy loses the holder for good, and reads what the other copy has.
func (s *scene) secondCopy() {
	s.Helper()
	heir := s.partner()
	s.powerOff(s.holder)
	s.loses()
	s.use(heir)
	s.check.TakenOver(s, s.holder, s.device)
	s.whole()
}

// equalCopies compares the two copies of a volume that a host has and nobody writes to any more.
func (s *scene) equalCopies() {
	s.Helper()
	s.redundant()
	labtest.WaitFor(s, "the cache of "+s.volume+" is clean", goOnTime, func(ctx context.Context) error { // csi-node may be busy with it
		answer, err := s.holder.API.Flush(ctx, escache.FlushRequest{VolumeRef: s.image.VolumeRef, TimeoutSeconds: 60})
		if err == nil && !answer.Clean {
			err = fmt.Errorf("%d bytes are dirty", answer.DirtyBytes)
		}
		return err
	})
	s.image.MustBeEqual(s, s.holder, s.partner())
}

// inCeph verifies what Ceph alone has of a detached volume.
func (s *scene) inCeph() {
	s.Helper()
	s.recordIs("has its truth in Ceph", func(v *cacheVolume) error {
		if v.Status.Authority != v1alpha1.AuthorityCeph {
			return fmt.Errorf("it is in %s, outdated %q, fenced %+v", v.Status.Authority, v.Status.Outdated, v.Status.Fenced)
		}
		return nil
	})
	h := s.third()
	alone, unmap := h.MapAlone(s, s.image)
	s.check.Verify(s, h, alone)
	unmap()
}

// remove deletes the claim; cleanUp finds what that leaves.
func (s *scene) remove() {
	s.Helper()
	s.watch.pause()
	s.kubectl(s, "delete", "pvc", s.name, "--timeout=240s")
}

// cutBoth cuts the link between two hosts.
func (s *scene) cutBoth(a, b *labtest.Host) {
	s.Helper()
	check(s, s.client.Cut(s.Context(), a.Name, labclient.Cut{From: b.Name}))
}

// stop sends SIGSTOP to a service of a host; mend lets it go on.
func (s *scene) stop(h *labtest.Host, service string) {
	s.Helper()
	h.Shell(s, "kill -STOP $(cat "+serviceDir+service+".pid)")
}

func (s *scene) goOn(h *labtest.Host, service string) {
	s.Helper()
	h.Shell(s, "kill -CONT $(cat "+serviceDir+service+".pid)")
}
