//go:build e2e

package chaosdriver

import (
	"context"
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// The record is not what it was.
func recordRows() []row {
	return []row{
		{when: "record", what: "etcd is restored to before the attach, and the holder is lost", run: restored},
		{when: "record", what: "etcd is restored to when the first host had it; the second has taken it over since", run: restoredAttached},
		{when: "record", what: "etcd is restored to when a host had it that was cut off since; its successor lives", run: restoredBesideHeir},
		{when: "record", what: "the NodeGroup is deleted and made anew under a writer", run: groupDeleted},
		{when: "record", what: "the host of the second copy is edited out of its NodeGroup, then lost", run: memberLeaves},
		{when: "record", what: "each copy in turn is marked as outdated by hand, then the holder is lost", run: markedByHand},
		{when: "record", what: "an outdated copy is marked as current by hand, then the holder is lost", run: unmarkedByHand},
	}
}

// restored: the record says that Ceph has everything, and the hosts have what Ceph has not. Nothing
// is given to anybody until a person has looked (docs/restore-etcd.md).
func restored(s *scene) {
	s.leaves()
	s.inCeph()
	check(s, s.client.SaveEtcd(s.Context()))
	first := s.lab.Host(s, s.record().Spec.Replicas[0])
	s.use(first)
	s.write()
	epoch, second := s.record().Status.Epoch, s.partner()
	s.watch.pause()
	s.powerOff(first)
	check(s, s.client.RestoreEtcd(s.Context()))
	if v := s.record(); v.Status.Epoch >= epoch || v.Status.Authority != v1alpha1.AuthorityCeph {
		s.Fatalf("the record was not set back: epoch %d, truth in %s", v.Status.Epoch, v.Status.Authority)
	}
	s.pods += 10 // names that neither record has
	s.taint(s, first.Name)
	s.refuses(second, behind)
	s.isBehind()
	s.boot(first)
	s.refuses(first, behind)
	for _, h := range []*labtest.Host{first, second} {
		if status := s.on(h); status.State != escache.StateStandby {
			s.Errorf("%s has %+v", h.Name, status)
		}
	}
	s.bringUpToDate()
	s.watch.again()
	s.fault()
	s.takes(first)
	s.whole()
	s.takenOver = false
	s.finish()
}

// behind is what an Event says of a record that was set back.
const behind = "(?i)later attachment|older than"

func (s *scene) isBehind() {
	s.Helper()
	if c := meta.FindStatusCondition(s.record().Status.Conditions, v1alpha1.ConditionRecordBehindDisks); c == nil || c.Status != "True" {
		s.Errorf("the condition is %+v", c)
	}
}

// bringUpToDate does what docs/restore-etcd.md says. The command is repeated until the hosts have linked their
// copies, and Ceph has given up the clients of those that were off.
func (s *scene) bringUpToDate() {
	s.Helper()
	v := s.record()
	labtest.WaitForCommand(s, "the record is up to date", podTime, func(context.Context) error {
		said := labtest.Escache(s, "", "adopt", "--all", "--apply", "--pool", v.Spec.Pool, "--image", v.Spec.Image)
		if said.Code != 0 {
			return errors.New(said.All())
		}
		s.Logf("%s", strings.TrimSpace(said.Out))
		return nil
	})
	now := s.record()
	if now.Status.Epoch <= v.Status.Epoch || now.Status.AttachedNode != "" || now.Status.Phase != v1alpha1.VolumeReady ||
		meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
		s.Fatalf("the record is %+v", now.Status)
	}
}

// restoredAttached: the record, the VolumeAttachment and the pod say that the first host has the volume. It
// boots, and its kubelet stages what its disk has. The second host has newer data, and is off. Only the
// image tells.
func restoredAttached(s *scene) {
	s.write()
	first, second, pod := s.holder, s.partner(), s.pod
	check(s, s.client.SaveEtcd(s.Context()))
	s.writer.WaitForMore(s, 30, goOnTime) // what the backup does not know
	s.fault()
	s.powerOff(first)
	s.loses()
	s.takes(second)
	epoch, fenced := s.record().Status.Epoch, s.record().Status.Fenced
	s.rest()
	s.watch.pause()
	s.powerOff(second)
	check(s, s.client.RestoreEtcd(s.Context()))
	if v := s.record(); v.Status.Epoch >= epoch || v.Status.AttachedNode != first.Name || v.Status.Authority != v1alpha1.AuthorityCache {
		s.Fatalf("the record was not set back: epoch %d, attached to %q, truth in %s", v.Status.Epoch, v.Status.AttachedNode, v.Status.Authority)
	}
	s.boundUpToDate(first, second, pod, fenced)
}

// restoredBesideHeir: the first host was cut off, and is back once the record is set back to when it had the
// volume. It has to stay frozen, because the second host has the volume and writes.
func restoredBesideHeir(s *scene) {
	s.write()
	first, second, pod := s.holder, s.partner(), s.pod
	check(s, s.client.SaveEtcd(s.Context()))
	s.writer.WaitForMore(s, 30, goOnTime) // what the backup does not know
	s.fault()
	check(s, s.client.Cut(s.Context(), first.Name, labclient.Cut{}))
	s.loses()
	s.takes(second)
	fenced := s.record().Status.Fenced
	s.watch.pause()
	check(s, s.client.RestoreEtcd(s.Context()))
	if v := s.record(); v.Status.AttachedNode != first.Name || v.Status.IsOutdated(first.Name) {
		s.Fatalf("the record was not set back: attached to %q, outdated %q", v.Status.AttachedNode, v.Status.Outdated)
	}
	check(s, s.client.Heal(s.Context()))
	labtest.WaitFor(s, "the record is compared before the first host goes on", podTime, func(context.Context) error {
		if !meta.IsStatusConditionTrue(s.record().Status.Conditions, v1alpha1.ConditionRecordBehindDisks) {
			return errors.New("nobody has compared it")
		}
		return nil
	})
	for begin := time.Now(); time.Since(begin) < 20*time.Second; time.Sleep(time.Second) {
		if status := s.on(first); status.Device != "" && !status.IOSuspended {
			s.Fatalf("%s goes on beside %s: %+v", first.Name, second.Name, status)
		}
	}
	s.fault()
	s.goesOn()
	s.rest()
	s.powerOff(second)
	s.powerOff(first)
	s.boundUpToDate(first, second, pod, fenced)
}

// boundUpToDate boots two hosts that are off. The record, the VolumeAttachment and the pod say that the first one has
// the volume, and the second one has newer data.
func (s *scene) boundUpToDate(first, second *labtest.Host, pod string, fenced []v1alpha1.FencedClient) {
	s.Helper()
	s.pods += 10 // names that neither record has
	s.boot(first)
	s.pod = pod
	s.isTold("the volume is refused to "+first.Name, behind)
	s.isBehind()
	s.staysUnused(first, 20*time.Second)
	s.boot(second)
	s.staysUnused(first, 10*time.Second)
	s.kubectl(s, "delete", "pod", s.pod, "--wait=false")
	s.bringUpToDate()
	s.watch.again()
	s.detached()
	s.fault()
	s.takes(second)
	s.whole()
	s.takenOver = false // the first host's copy is read, too
	s.finish()
	for _, client := range fenced {
		if client.Address != "" { // of which the restored record does not know
			s.lab.Command(s, "ceph", "osd", "blocklist", "rm", client.Address)
		}
	}
}

// staysUnused looks for so long whether a host leaves its copy alone.
func (s *scene) staysUnused(h *labtest.Host, long time.Duration) {
	s.Helper()
	for begin := time.Now(); time.Since(begin) < long; time.Sleep(time.Second) {
		if status := s.on(h); status.Role == escache.RolePrimary || status.Device != "" {
			s.Fatalf("%s uses its copy: %+v", h.Name, status)
		}
	}
}

// groupDeleted: a group with a volume stays until somebody takes its finalizer off, and is made anew then
// (docs/limits.md).
func groupDeleted(s *scene) {
	s.write()
	s.fault()
	s.kubectl(s, "delete", "nodegroup", group, "--wait=false")
	s.goesOn()
	fenced, err := fencedForYears(s.Context()) // the group takes its list of those of earlier rows along
	check(s, err)
	s.fenced = fenced
	s.kubectl(s, "patch", "nodegroup", group, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
	s.groupOf(s, s.names())
	s.world.ready(s)
	s.goesOn()
	s.whole()
	s.finish()
}

// memberLeaves: a copy on a host that has left counts for as long as it is current. After that the group has
// another. Before the host is a member again, its volume group is made anew (docs/hosts/replace-a-host.md).
func memberLeaves(s *scene) {
	s.repairs("10m")
	s.write()
	left, third := s.partner(), s.third()
	s.Cleanup(func() { s.groupOf(s, s.names()) })
	nodes := s.names()
	nodes[slices.Index(nodes, left.Name)] = "e2e-spare" // there is no such host
	s.groupOf(s, nodes)
	s.fault()
	s.goesOn()
	if v := s.record(); !v.Spec.HasReplica(left.Name) || v.Status.IsOutdated(left.Name) {
		s.Errorf("%s has left with a current copy, and the copies are on %q, outdated %q", left.Name, v.Spec.Replicas, v.Status.Outdated)
	}
	s.fault()
	s.powerOff(left)
	s.goesOn()
	s.copied(third)
	s.recovered = append(s.recovered, time.Since(s.begun))
	s.newDisk(left)
	s.groupOf(s, s.names())
	s.world.ready(s)
	s.goesOn()
	s.whole()
	s.finish()
}

// markedByHand: a copy that is said to be outdated is not used, and counts again as soon as it is seen to be
// current.
func markedByHand(s *scene) {
	s.write()
	holder, partner := s.holder, s.partner()
	s.mark(partner)
	s.fault()
	s.goesOn()
	s.redundant()
	s.mark(holder)
	s.goesOn()
	s.fault()
	s.powerOff(holder)
	s.loses()
	s.takes(partner)
	s.boot(holder)
	s.whole()
	s.finish()
}

// unmarkedByHand: the holder goes on alone, and nobody may believe the record that says otherwise. Either the
// holder puts that right while it lives, or the old copy is refused.
func unmarkedByHand(s *scene) {
	s.write()
	holder, partner := s.holder, s.alone()
	s.mark()
	s.goesOn()
	time.Sleep(againTime)
	s.powerOff(holder)
	s.loses()
	s.boot(partner)
	s.refuses(partner, "node "+holder.Name+" .*at stake")
	s.fault()
	s.boot(holder)
	s.takes(holder)
	s.whole()
	s.takenOver = false
	s.finish()
}

// mark writes on record that the copies on these hosts are outdated, and that no others are.
func (s *scene) mark(hosts ...*labtest.Host) {
	s.Helper()
	outdated := []string{}
	for _, h := range hosts {
		outdated = append(outdated, h.Name)
	}
	patch, err := json.Marshal(map[string]any{"status": map[string]any{"outdated": outdated}})
	check(s, err)
	s.kubectl(s, "patch", "cachevolume", s.volume, "--subresource=status", "--type=merge", "-p", string(patch))
}
