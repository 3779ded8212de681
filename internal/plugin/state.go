package plugin

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/redundancy"
)

// state is all that the driver has recorded of groups, volumes and flushes.
type state struct {
	groups  []v1alpha1.NodeGroup
	volumes []v1alpha1.CacheVolume
	flushes []v1alpha1.CacheFlush
	uses    uses
	waiting map[string][]problem // pods that wait, by volume
}

func readState(ctx context.Context, api client.Reader, now time.Time) (*state, error) {
	groups, volumes, flushes := &v1alpha1.NodeGroupList{}, &v1alpha1.CacheVolumeList{}, &v1alpha1.CacheFlushList{}
	for _, list := range []client.ObjectList{groups, volumes, flushes} {
		if err := api.List(ctx, list); err != nil {
			return nil, err
		}
	}
	all, err := readUses(ctx, api)
	if err != nil {
		return nil, err
	}
	waiting, err := all.waiting(ctx, api, "", now)
	if err != nil {
		return nil, err
	}
	s := &state{groups.Items, volumes.Items, flushes.Items, all, waiting}
	byName := func(a, b client.Object) int { return cmp.Compare(a.GetName(), b.GetName()) }
	slices.SortFunc(s.groups, func(a, b v1alpha1.NodeGroup) int { return byName(&a, &b) })
	slices.SortFunc(s.volumes, func(a, b v1alpha1.CacheVolume) int { return byName(&a, &b) })
	slices.SortFunc(s.flushes, func(a, b v1alpha1.CacheFlush) int { return byName(&a, &b) })
	return s, nil
}

// problem is one thing that is wrong: the object that has it, and what to do about it.
type problem struct{ where, what, todo string }

func (s *state) problems() []problem {
	var all []problem
	for i := range s.groups {
		g := &s.groups[i]
		for _, m := range g.Status.Members {
			if !m.Ready && !slices.Contains(g.Spec.CordonedNodes, m.Name) {
				all = append(all, problem{"host " + m.Name, m.Message,
					"check escached there (systemctl status escached, journalctl -u escached), its network and its power"})
			}
		}
		if n := len(g.Status.StaleReplicas); n > 0 {
			all = append(all, problem{"group " + g.Name, fmt.Sprintf("%d stale replicas wait for their host, to be removed", n),
				"nothing: the driver removes them when the host is back; if a host is gone for good, take it out of the group"})
		}
	}
	for i := range s.groups {
		all = append(all, guardProblems(&s.groups[i])...)
	}
	for i := range s.volumes {
		v := &s.volumes[i]
		all = append(append(all, volumeProblems(v, s.group(v))...), s.waiting[v.Name]...)
	}
	for i := range s.flushes {
		all = append(all, flushProblems(&s.flushes[i])...)
	}
	return all
}

// guardProblems returns what keeps a group that was deleted, and which hosts outside a group have
// replicas.
func guardProblems(g *v1alpha1.NodeGroup) []problem {
	var all []problem
	for _, kind := range []string{v1alpha1.GroupDeletionBlocked, v1alpha1.GroupFormerMembers} {
		if c := meta.FindStatusCondition(g.Status.Conditions, kind); c != nil && c.Status == metav1.ConditionTrue {
			all = append(all, problem{"group " + g.Name, c.Message, "do what the message says; docs/hosts has the commands"})
		}
	}
	return all
}

// flushProblems returns the volumes that could not be written back, or else why the whole flush
// failed.
func flushProblems(f *v1alpha1.CacheFlush) []problem {
	const todo = "fix that, and flush again"
	var all []problem
	for _, v := range f.Status.Volumes {
		if v.Phase == v1alpha1.FlushFailed {
			all = append(all, problem{"flush " + f.Name, v.Name + ": " + v.Message, todo})
		}
	}
	complete := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.FlushConditionComplete)
	if len(all) == 0 && f.Status.Phase == v1alpha1.FlushFailed && complete != nil {
		all = append(all, problem{"flush " + f.Name, complete.Message, todo})
	}
	return all
}

func volumeProblems(v *v1alpha1.CacheVolume, group *v1alpha1.NodeGroup) []problem {
	where := "volume " + v.Name
	var all []problem
	one := redundancy.Of(v, group, redundancy.Evidence{})
	for _, c := range v.Status.Faults() {
		if c.Type == v1alpha1.ConditionRedundant && !one.Whole() {
			continue // told below
		}
		all = append(all, problem{where, c.Message, remedy(c.Reason)})
	}
	if !one.Whole() {
		all = append(all, problem{where, one.Message + "; " + stake(one), remedy(one.Reason)})
	}
	if stuck := unreachableData(v); stuck != "" {
		all = append(all, problem{where, stuck, nextStep(v)})
	}
	if c := meta.FindStatusCondition(v.Status.Conditions, v1alpha1.ConditionReleased); v.Spec.Release && c != nil {
		all = append(all, problem{where, "it waits to be released: " + c.Message,
			"do what the message says; to keep the volume: kubectl escache release --cancel --volume " + v.Name})
	}
	if !v.DeletionTimestamp.IsZero() {
		all = append(all, problem{where, "it has been in deletion since " + v.DeletionTimestamp.Format("2006-01-02 15:04:05"),
			"if that lasts: kubectl describe pv " + v.Name + " shows what it waits for"})
	}
	return all
}

// stake says what the loss of the last copy would lose.
func stake(f redundancy.Finding) string {
	if f.InCeph {
		return "Ceph has everything"
	}
	text := v1alpha1.HumanBytes(f.ExposedBytes) + " are on one host only"
	if !f.Since.IsZero() {
		text += ", since " + f.Since.UTC().Format("2006-01-02 15:04:05") + " UTC"
	}
	return text
}

// unreachableData describes a detached volume that may hold data that is not in Ceph; "" for all
// others.
func unreachableData(v *v1alpha1.CacheVolume) string {
	if !v.Status.LeftDirty() {
		return ""
	}
	return fmt.Sprintf("it is not attached, and %s in the cache on %s may not be in Ceph", v1alpha1.HumanBytes(v.Status.DirtyBytes),
		strings.Join(holders(v), " and "))
}

// holders returns the nodes with a current copy or, if there is none, those with any copy.
func holders(v *v1alpha1.CacheVolume) []string {
	current := authority.Current(v)
	if len(current) == 0 {
		return v.Spec.Replicas
	}
	return current
}

// remedy says what to do about a condition's reason; see internal/node/health.
func remedy(reason string) string {
	switch reason {
	case v1alpha1.ReasonPeerLost, v1alpha1.ReasonHostSilent, v1alpha1.ReasonHostDeleted:
		return "bring the other host back, or let csi-controller replace the copy (docs/redundancy.md); before you take this host down, " +
			"flush the volume"
	case v1alpha1.ReasonPeerDiskLost:
		return "replace the other host's NVMe device; csi-controller replaces the copy meanwhile (docs/redundancy.md)"
	case v1alpha1.ReasonHostLeft, v1alpha1.ReasonHostReinstalled, v1alpha1.ReasonReplicaMissing:
		return "nothing: csi-controller makes another copy, unless that is off (docs/redundancy.md)"
	case v1alpha1.ReasonCopyStaysAway:
		return "check the replication network between the hosts"
	case v1alpha1.ReasonPeerOutdated, "Resyncing":
		return "nothing: it is catching up"
	case v1alpha1.ReasonLocalDiskLost:
		return "check the host's NVMe device; flush the volume and move its pod"
	case "IOFrozen":
		return "bring back the other host or the Kubernetes API; I/O then goes on by itself"
	case "CephUnavailable", "CephStalled":
		return "check Ceph (ceph -s); writes go on until the cache is full"
	case "CacheNearlyFull":
		return "check Ceph: it takes data more slowly than the pods write; for new volumes, set a larger cacheSize in the StorageClass"
	case "CacheError":
		return "once Ceph is back: kubectl escache flush --volume=NAME; it clears the error"
	case "EscachedSilent":
		return "restart escached on the host; I/O goes on without it"
	default:
		return "see the message"
	}
}

// nextStep says what an operator should do next with a volume.
func nextStep(v *v1alpha1.CacheVolume) string {
	switch {
	case meta.IsStatusConditionTrue(v.Status.Conditions, v1alpha1.ConditionRecordBehindDisks):
		return "do not delete anything: a host has data that this record does not know, as after a restore of an old etcd; " +
			"docs/restore-etcd.md says how to bring the record up to date"
	case v.Status.Phase == v1alpha1.VolumeConflict:
		return "decide which copy counts: kubectl escache adopt --all says what image and hosts say, and what helps"
	case v.Spec.Release:
		return "wait: it is being released, and its image stays; kubectl escache release --cancel --volume " + v.Name + " keeps the volume"
	case unreachableData(v) != "":
		return fmt.Sprintf("start its pod on %s once, which flushes it; if those hosts are gone for good: kubectl escache discard-cache %s",
			strings.Join(holders(v), " or "), v.Name)
	case v.Status.AttachedNode == "":
		return "nothing: it can be attached to any host of the group"
	case len(v.Status.WriteThrough) > 0 && v.Status.Authority != v1alpha1.AuthorityCache:
		return "its pod can be moved at once; kubectl escache uncordon, or deleting the CacheFlush, restores write-back"
	case v.Status.Phase != v1alpha1.VolumeReady:
		return "wait: its image is being created"
	default:
		return "nothing; before you take its host down: kubectl escache evacuate " + v.Status.AttachedNode
	}
}

// volumeOfClaim returns the CacheVolume of a claim.
func volumeOfClaim(ctx context.Context, api client.Reader, namespace, name string) (*v1alpha1.CacheVolume, error) {
	pvc := &corev1.PersistentVolumeClaim{}
	if err := api.Get(ctx, client.ObjectKey{Namespace: namespace, Name: name}, pvc); err != nil {
		if apierrors.IsNotFound(err) {
			return nil, fmt.Errorf("there is no PersistentVolumeClaim %s in namespace %s; choose another namespace with -n",
				name, namespace)
		}
		return nil, err
	}
	if pvc.Spec.VolumeName == "" {
		return nil, fmt.Errorf("PersistentVolumeClaim %s/%s is not bound yet; kubectl describe shows what it waits for", namespace, name)
	}
	pv := &corev1.PersistentVolume{}
	if err := api.Get(ctx, client.ObjectKey{Name: pvc.Spec.VolumeName}, pv); err != nil {
		return nil, err
	}
	if pv.Spec.CSI == nil || pv.Spec.CSI.Driver != v1alpha1.DriverName {
		return nil, fmt.Errorf("PersistentVolumeClaim %s/%s is not a volume of %s", namespace, name, v1alpha1.DriverName)
	}
	return readVolume(ctx, api, pv.Spec.CSI.VolumeHandle)
}

func readVolume(ctx context.Context, api client.Reader, name string) (*v1alpha1.CacheVolume, error) {
	v := &v1alpha1.CacheVolume{}
	err := api.Get(ctx, client.ObjectKey{Name: name}, v)
	if apierrors.IsNotFound(err) && !isNoResource(err) {
		return nil, fmt.Errorf("there is no CacheVolume %s; kubectl escache status lists them", name)
	}
	return v, err
}
