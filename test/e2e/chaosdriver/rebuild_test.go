//go:build e2e

package chaosdriver

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// Kubernetes has lost all that it knew of volumes, and there is no backup.
func rebuildRows() []row {
	return []row{
		{when: "record", what: "all are lost with volumes in use, and made anew of images and hosts", run: allLost},
		{when: "record", what: "all are lost while a pod writes, and no host fails", run: lostInUse},
	}
}

// allLost follows docs/disaster-recovery.md, "Kubernetes is lost". The etcd that comes back is one from before
// there were volumes, with the driver in it. One volume is clean, one has one current copy, and the others have
// two. All hosts have lost their power, so their Ceph clients have left their locks. The hosts of one of
// these cannot see each other at first: nobody may guess which of its copies counts.
func allLost(s *scene) {
	s.saveEmptyEtcd()
	clean := s.another(s.lab.Hosts[0])
	clean.write()
	clean.writer.Stop(s)
	clean.leaves()
	clean.inCeph()
	var dirty []*scene
	for _, h := range s.lab.Hosts {
		o := s.another(h)
		o.write()
		dirty = append(dirty, o)
	}
	alone := dirty[0]
	partner := alone.partner()
	alone.fault()
	s.cutBoth(alone.holder, partner)
	alone.goesOn()
	for _, o := range dirty { // the cut is between the hosts of others, too
		if samePair(o.record(), alone.record()) {
			o.isOutdated(o.partner())
		}
	}
	alone.goesOn()
	was := map[string]*cacheVolume{}
	var unseen *cacheVolume // by each other
	for _, o := range append(dirty, clean) {
		v := o.record()
		was[o.volume] = v
		if o != clean && len(v.Status.Outdated) == 0 {
			unseen = v
		}
	}
	if unseen == nil {
		s.Fatalf("all volumes have their copies on the same two hosts")
	}

	for _, o := range append(dirty, clean) {
		o.watch.pause()
		o.fault()
	}
	for _, h := range s.lab.Hosts {
		s.powerOff(h)
	}
	s.restoreEmptyEtcd()
	check(s, s.client.Cut(s.Context(), unseen.Spec.Replicas[0], labclient.Cut{From: unseen.Spec.Replicas[1]}))
	for _, h := range s.lab.Hosts {
		s.boot(h)
	}
	s.world.ready(s)

	for volume, line := range s.adoptAll(1) {
		v, want := was[volume], v1alpha1.RebuildDone
		// The image says who had a volume last, and not that it was clean afterwards.
		if len(v.Status.Outdated) == 0 && (samePair(v, unseen) || samePair(v, was[alone.volume])) {
			want = v1alpha1.RebuildConflict
		}
		if line.Outcome != want {
			s.Errorf("while two hosts do not see each other, volume %s: %s, not %s: %s", volume, line.Outcome, want, line.Message)
		}
	}
	for _, o := range dirty {
		if o.volume == unseen.Name {
			o.cannotBeAsked(unseen.Spec.Replicas)
		}
	}
	check(s, s.client.Heal(s.Context()))
	for _, node := range unseen.Spec.Replicas {
		labtest.WaitFor(s, node+" sees the other copy", goOnTime, func(ctx context.Context) error {
			status, err := s.lab.Host(s, node).API.VolumeStatus(ctx, escache.VolumeRef{Pool: unseen.Spec.Pool, Image: unseen.Spec.Image})
			if err == nil && !labtest.Redundant(*status) {
				err = fmt.Errorf("it says %s, peers %+v", status.DiskState, status.Peers)
			}
			return err
		})
	}
	if lines := s.adoptAll(0); len(lines) != len(was) {
		s.Errorf("found: %+v", lines)
	}

	for _, o := range dirty {
		o.watch.again()
		v := o.record()
		if v.Status.Epoch <= was[o.volume].Status.Epoch || v.Status.Authority != v1alpha1.AuthorityCache {
			s.Errorf("made anew: %+v of %+v", v.Status, was[o.volume].Status)
		}
		o.takes(o.holder)
	}
	clean.watch.again()
	clean.use(clean.holder)
	clean.check.Verify(s, clean.holder, clean.device)
	for _, o := range append(dirty, clean) {
		s.kubectl(s, "patch", "persistentvolume", o.volume, "--type=merge", "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
		o.takenOver = o.volume != unseen.Name // of one the second copy is read, too
		o.whole()
		o.finish()
	}
}

// lostInUse follows docs/disaster-recovery.md on a host that goes on: its kubelet does not see that the pod is gone
// before it is restarted. It ends the pod then, and nobody knows the volume, so the device is stopped by hand.
func lostInUse(s *scene) {
	s.saveEmptyEtcd()
	used := s.another(s.lab.Hosts[0])
	used.write()
	was := used.record()
	used.watch.pause()
	used.fault()
	s.restoreEmptyEtcd()
	s.world.ready(s)
	if line := s.adoptAll(1)[used.volume]; line.Outcome != v1alpha1.RebuildWaits {
		s.Errorf("a host has the volume connected, and it is %s: %s", line.Outcome, line.Message)
	}
	used.goesOn() // the record's loss stops no I/O

	used.rest()
	used.holder.Shell(s, "kill $(cat "+serviceDir+"kubelet.pid)")
	call := func(verb, more string) string {
		return fmt.Sprintf(`curl -sf --unix-socket /run/escache/escached.sock -X POST -d '{"pool":%q,"image":%q%s}' http://localhost/v1/%s`,
			used.image.Pool, used.image.Image, more, verb)
	}
	labtest.WaitFor(s, "the device on "+used.holder.Name+" can be stopped", podTime, func(ctx context.Context) error {
		_, err := used.holder.Try(ctx, nil, "sh", "-c", call("flush", `,"timeoutSeconds":60`)+" && "+call("stop", ""))
		return err
	})
	labtest.WaitFor(s, used.holder.Name+" has let go of the volume", podTime, func(ctx context.Context) error {
		status, err := used.holder.API.VolumeStatus(ctx, used.image.VolumeRef)
		if err == nil && (status.Device != "" || status.DirtyBytes == nil || *status.DirtyBytes > 0) {
			err = fmt.Errorf("it has %+v", status)
		}
		return err
	})
	if line := s.adoptAll(0)[used.volume]; line.Outcome != v1alpha1.RebuildDone || line.Authority != v1alpha1.AuthorityCeph {
		s.Errorf("made anew: %+v", line)
	}
	if v := used.record(); v.Status.Epoch <= was.Status.Epoch {
		s.Errorf("made anew with epoch %d, and it was %d", v.Status.Epoch, was.Status.Epoch)
	}
	used.watch.again()
	used.use(used.holder)
	s.kubectl(s, "patch", "persistentvolume", used.volume, "--type=merge", "-p", `{"spec":{"persistentVolumeReclaimPolicy":"Delete"}}`)
	used.whole()
	used.finish()
}

// saveEmptyEtcd removes the row's own volume and keeps a copy of etcd, with the driver in it and without volumes.
func (s *scene) saveEmptyEtcd() {
	s.Helper()
	s.leaves()
	s.inCeph()
	s.remove()
	check(s, s.waitForNothing(s.Context()))
	check(s, s.client.SaveEtcd(s.Context()))
}

func (s *scene) restoreEmptyEtcd() {
	s.Helper()
	check(s, s.client.RestoreEtcd(s.Context()))
	if left := s.kubectl(s, "get", "cachevolumes,persistentvolumes,persistentvolumeclaims", "-o", "name"); left != "" {
		s.Fatalf("Kubernetes still knows %s", left)
	}
}

// another opens one more volume of the row on a host.
func (s *scene) another(h *labtest.Host) *scene {
	s.Helper()
	o := s.newScene(s.T)
	s.others = append(s.others, o)
	s.Cleanup(func() { o.watch.end(s) })
	o.openOn(h)
	return o
}

// cannotBeAsked expects that nothing was made of a volume with which a pod could ask for it, and that its hosts
// leave its copies alone.
func (s *scene) cannotBeAsked(replicas []string) {
	s.Helper()
	if has := s.kubectl(s, "get", "pv/"+s.volume, "pvc/"+s.name, "--ignore-not-found", "-o", "name"); has != "" {
		s.Errorf("nothing proves which copy of %s is current, and there is %s", s.volume, has)
	}
	for _, node := range replicas {
		s.staysUnused(s.lab.Host(s, node), 5*time.Second)
	}
}

func samePair(a, b *cacheVolume) bool {
	return !slices.ContainsFunc(a.Spec.Replicas, func(node string) bool { return !b.Spec.HasReplica(node) })
}

// adoptAll makes the records anew, and returns what came of each volume.
func (s *scene) adoptAll(exit int) map[string]v1alpha1.RebuiltVolume {
	s.Helper()
	said := labtest.Escache(s, "", "adopt", "--all", "--apply", "-o", "json")
	if said.Code != exit {
		s.Fatalf("adopt --all: exit code %d, not %d: %s", said.Code, exit, said.All())
	}
	s.Logf("adopt --all: %s", strings.TrimSpace(said.Complaints))
	var found struct {
		Volumes []v1alpha1.RebuiltVolume `json:"volumes"`
	}
	check(s, json.Unmarshal([]byte(said.Out), &found))
	lines := map[string]v1alpha1.RebuiltVolume{}
	for _, line := range found.Volumes {
		s.Logf("%s: %s, epoch %d, truth in %s, outdated %q %s",
			line.Volume, line.Outcome, line.Epoch, line.Authority, line.Outdated, line.Message)
		lines[line.Volume] = line
	}
	return lines
}
