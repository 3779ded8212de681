// Package remedy says what an operator does about the reason of a condition. It is pure.
package remedy

import (
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Place says where something is wrong. A field that is not known, or differs because several objects
// have the same trouble, is empty: the text has the word VOLUME, HOST or GROUP then.
type Place struct{ Volume, Host, Group string }

// Escached says how escached runs on the hosts.
type Escached struct {
	// Known is false if the DaemonSets cannot be read. Both ways are told then.
	Known bool
	// Pods is false where it is a systemd unit.
	Pods bool
	// Namespace has the pods of the driver; "" if not known.
	Namespace string
}

// look says where escached on a host tells what it does.
func (e Escached) look() string {
	const unit = "on HOST: systemctl status escached, journalctl -u escached"
	pods := "kubectl -n " + e.namespace() + " get pods -o wide --field-selector spec.nodeName=HOST shows its pod, kubectl logs its log"
	switch {
	case !e.Known:
		return pods + "; if it is a systemd unit, " + unit
	case !e.Pods:
		return unit
	default:
		return pods
	}
}

func (e Escached) namespace() string {
	if e.Namespace == "" {
		return "escache-system" // as in docs/install.md
	}
	return e.Namespace
}

// known is what is to be done about one reason.
type known struct {
	// kind is the only type of condition that the row is for; "" for all.
	kind   string
	reason string
	todo   string
}

// Reasons that no condition has: the records as a whole say so.
const (
	// LeftDirty is a volume's that no host has and that may hold data which Ceph lacks.
	LeftDirty = "LeftDirty"
	// PodWaits is a pod's that cannot have its volume. Its last Event says why.
	PodWaits = "PodWaits"
	// InDeletion is a volume's that has been deleted and is still there.
	InDeletion = "InDeletion"
	// NotReady is a host's that takes no new replicas, if nothing more is known.
	NotReady = "NotReady"
	// StaleReplicas is a group's that waits for a host, to remove what no volume needs.
	StaleReplicas = "StaleReplicas"
	// NoController: nobody keeps the records up to date.
	NoController = "NoController"
	// PodsMissing: not all pods of the driver are there and ready.
	PodsMissing = "PodsMissing"
	// CertificateEnds: a certificate of the driver ends soon, or has ended.
	CertificateEnds = "CertificateEnds"
	// HostCertificateEnds: that of a host's escached does. csi-node should have renewed it.
	HostCertificateEnds = "HostCertificateEnds"
	// VersionsDiffer: hosts have different versions of escached.
	VersionsDiffer = "VersionsDiffer"
)

const (
	otherHost = "bring the other host back, or let csi-controller replace the copy, or write the volume back if no pod has it " +
		"(docs/redundancy.md); before you take this host down, flush the volume"
	copied  = "nothing: csi-controller makes another copy, unless that is off (docs/redundancy.md)"
	release = "do what the message says; to keep the volume: kubectl escache release --cancel --volume VOLUME"
	unmove  = "to leave it where it is: kubectl escache move VOLUME --cancel"
	resized = "to make the change, delete its pod: the next attachment makes it, if everything is in Ceph (docs/parameters.md)"
	hosts   = "do what the message says; docs/hosts has the commands"
	escache = "check HOST's power and network, and escached there: ESCACHED"
	repairs = "nothing: csi-controller is replacing a copy (docs/redundancy.md)"
)

// table is in the order of gravity: what may lose data comes first, what passes by itself last.
var table = slices.Concat(dataAtStake(), inTheWay(), ofHosts(), oneCopy(), ofGroups(), requests(), passing())

func dataAtStake() []known {
	return []known{
		{reason: "LaterAttachmentSeen", todo: "do not delete anything: a host has data that this record does not know, as after a " +
			"restore of an old etcd; stop its pods, then kubectl escache adopt --all brings the record up to date (docs/restore-etcd.md)"},
		{reason: "ClaimsDiffer", todo: "decide which copy counts: kubectl escache adopt --all says what image and hosts say, and what " +
			"helps (docs/disaster-recovery.md)"},
		{reason: "RecordWasSetBack", todo: "run kubectl escache adopt --all --apply once more: it has not ended (docs/restore-etcd.md)"},
		{reason: "CacheCorrupt", todo: "change nothing on HOST and discard nothing; kubectl escache support-bundle collects what others " +
			"need to help you. What is in Ceph is not touched. If the other copy is current, move the pod there"},
		{reason: v1alpha1.ReasonLocalDiskLost, todo: "check HOST's NVMe device; kubectl escache flush --volume=VOLUME, and move its pod " +
			"(docs/hosts/disk-replaced.md)"},
		{reason: LeftDirty, todo: "kubectl escache flush --volume=VOLUME --wait: HOST writes it back, no pod is needed; if that host " +
			"is gone for good: kubectl escache discard-cache VOLUME"},
	}
}

func inTheWay() []known {
	return []known{
		{reason: "IOFrozen", todo: "bring back the other host, or csi-node on HOST and its way to the Kubernetes API; I/O then goes on " +
			"by itself (docs/troubleshooting.md)"},
		{reason: "FilesystemReadOnly", todo: "bring Ceph back, then delete the pod: the volume is mounted again " +
			"(docs/filesystem-errors.md)"},
		{reason: "CacheError", todo: "once Ceph is back: kubectl escache flush --volume=VOLUME; it clears the error"},
		{reason: "CephUnavailable", todo: "check Ceph (ceph -s); writes go on until the cache is full (docs/ceph-maintenance.md)"},
		{reason: "CephStalled", todo: "check Ceph (ceph -s); writes go on until the cache is full (docs/ceph-maintenance.md)"},
		{reason: "CacheNearlyFull", todo: "check Ceph: it takes data more slowly than the pods write; give the claim a " +
			"VolumeAttributesClass with a larger cacheSize (docs/cache-disk-full.md)"},
		{reason: NoController, todo: "NAMESPACE get pods,leases: one pod of csi-controller has to run and to hold the lease; its log " +
			"says what it waits for"},
		{reason: PodsMissing, todo: "NAMESPACE get pods -o wide shows which pods are not ready, and on which hosts"},
		{reason: CertificateEnds, todo: "see why it is not renewed: with tls.mode generated, the log of csi-controller says so; with " +
			"certManager, its Certificate; with existing, put a new one into the Secret (docs/security.md)"},
		{reason: HostCertificateEnds, todo: "see why csi-node on HOST does not renew it: its log and kubectl get csr say so; with " +
			"tls.mode existing, replace it (docs/security.md). After its end no volume can be attached or detached there"},
		{reason: PodWaits, todo: "see the message; kubectl describe pod shows all of its Events"},
		{reason: "EscachedSilent", todo: "restart escached on HOST; I/O goes on without it. ESCACHED"},
		{reason: "SecretMissing", todo: "kubectl escache repair VOLUME, or attach it again: both give the host the link's secret again " +
			"(docs/hosts/host-reinstalled.md)"},
	}
}

// ofHosts come before the volumes that have one copy because of them.
func ofHosts() []known {
	return []known{
		{reason: "TooFewMembers", todo: "bring the hosts back that are not ready: no new volume can be placed in the group"},
		{reason: "EscachedUnreachable", todo: escache},
		{reason: "Unhealthy", todo: "do what the message says, on HOST; ESCACHED"},
		{reason: NotReady, todo: escache},
		{reason: "WrongHost", todo: "another machine answers for HOST: compare the address of the Node, the DNS name and the certificate " +
			"(docs/security.md)"},
		{reason: "UnknownToKubernetes", todo: "if HOST is gone for good, replace it in the group (docs/hosts/replace-a-host.md); if not, " +
			"start its kubelet"},
		{reason: "ClaimedByAnotherGroup", todo: "take HOST out of one of the two groups"},
	}
}

func oneCopy() []known {
	return []known{
		{reason: v1alpha1.ReasonNoOtherHost, todo: "bring up another host of the group, or give it room: the second copy goes there; " +
			"until then VOLUME writes through (docs/plan-a-migration.md)"},
		{reason: v1alpha1.ReasonPeerLost, todo: otherHost},
		{reason: v1alpha1.ReasonHostSilent, todo: otherHost},
		{reason: v1alpha1.ReasonHostDeleted, todo: otherHost},
		{reason: v1alpha1.ReasonPeerDiskLost, todo: "replace the other host's NVMe device (docs/hosts/disk-replaced.md); csi-controller " +
			"replaces the copy meanwhile (docs/redundancy.md)"},
		{reason: v1alpha1.ReasonCopyStaysAway, todo: "check the replication network between the hosts"},
		{reason: v1alpha1.ReasonHostLeft, todo: copied},
		{reason: v1alpha1.ReasonHostReinstalled, todo: copied},
		{reason: v1alpha1.ReasonReplicaMissing, todo: copied},
	}
}

func ofGroups() []known {
	return []known{
		{reason: v1alpha1.ReasonVolumesLeft, todo: hosts},
		{reason: v1alpha1.ReasonReplicasLeft, todo: hosts},
		{reason: v1alpha1.ReasonReplicasOutside, todo: hosts},
		{reason: "VolumesInRepair", todo: "nothing, unless the message names hosts to bring back (docs/redundancy.md)"},
		{reason: VersionsDiffer, todo: "finish the upgrade: docs/upgrade.md"},
	}
}

func requests() []known {
	return []known{
		{reason: "VolumesFailed", todo: "fix that, and flush again"},
		{reason: "NotTrimmed", todo: "fix that, and trim again (docs/trim.md)"},
		{reason: "NotFound", todo: "fix that, and flush again"},
		{v1alpha1.ConditionReleased, v1alpha1.ReasonReleaseRefused, release},
		{v1alpha1.ConditionReleased, v1alpha1.ReasonReleasePending, release},
		{v1alpha1.ConditionModified, v1alpha1.ReasonModificationRefused, "choose other values in the VolumeAttributesClass, or upgrade " +
			"escached on HOST: it does not take these (docs/parameters.md)"},
		{v1alpha1.ConditionCacheResized, v1alpha1.ReasonResizeNoRoom, "make room for the cache on two hosts of GROUP, or give the claim " +
			"a VolumeAttributesClass with a smaller cacheSize; " + resized},
		{v1alpha1.ConditionCacheResized, v1alpha1.ReasonResizeNoMemory, "start the pod on a host with more memory, or give the claim a " +
			"VolumeAttributesClass with a smaller cacheSize; " + resized},
		{v1alpha1.DiscardCondition, string(v1alpha1.DiscardRefused), "do what the message says; nothing was changed"},
		{v1alpha1.ConditionMoving, v1alpha1.ReasonMoveRefused, "do what the message says; " + unmove},
		{v1alpha1.ConditionMoving, v1alpha1.ReasonMoveWaiting, "do what the message says; " + unmove},
		{v1alpha1.ConditionMoving, v1alpha1.ReasonMoveAttached, "stop its pod until it has moved; " + unmove},
	}
}

func passing() []known {
	return []known{
		{v1alpha1.ConditionModified, v1alpha1.ReasonModificationPending, "nothing: it is tried again until HOST answers"},
		{v1alpha1.ConditionCacheResized, v1alpha1.ReasonResizeAttached, resized},
		{v1alpha1.ConditionCacheResized, v1alpha1.ReasonResizeDirty, resized},
		{v1alpha1.ConditionCacheResized, v1alpha1.ReasonResizeDetached, "nothing: the next attachment makes the change"},
		{v1alpha1.DiscardCondition, string(v1alpha1.DiscardPending), "nothing: csi-controller tries again"},
		{v1alpha1.ConditionMoving, v1alpha1.ReasonMoveUnderWay, "nothing: csi-controller goes on by itself"},
		{v1alpha1.ConditionUncached, v1alpha1.ReasonUncachedOutside, "bring a host of group GROUP back, then restart its pod, so that it " +
			"runs there (docs/redundancy.md)"},
		{v1alpha1.ConditionUncached, v1alpha1.ReasonUncachedDetached, "nothing: its next attachment in group GROUP has a cache"},
		{reason: StaleReplicas, todo: "nothing: the driver removes them when the host is back; if a host is gone for good, take it out " +
			"of the group and delete its Node"},
		{reason: InDeletion, todo: "if that lasts: kubectl describe pv VOLUME shows what it waits for"},
		{reason: "Waiting", todo: "nothing, unless the message names a host or a disk to bring back (docs/redundancy.md)"},
		{reason: "Beginning", todo: repairs},
		{reason: "Draining", todo: repairs},
		{reason: "Replacing", todo: repairs},
		{reason: "Copying", todo: repairs},
		{reason: "Finishing", todo: repairs},
		{reason: "Superseded", todo: repairs},
		{reason: "Flushing", todo: "nothing: csi-controller has it written back (docs/redundancy.md)"},
		{reason: v1alpha1.ReasonPeerOutdated, todo: "nothing if it is catching up, or if no node has the volume; if its host will not be " +
			"back: kubectl escache repair VOLUME"},
		{reason: "Resyncing", todo: "nothing: it is catching up"},
		{reason: "InProgress", todo: "nothing: it goes on by itself"},
		{reason: "Restoring", todo: "nothing, unless the message names a host to bring back; kubectl escache uncordon waits for it"},
		{reason: "Deleted", todo: "nothing: the group goes when nothing needs it any more (docs/hosts/group-removed.md)"},
		{reason: "Cordoned", todo: "when the work is done: kubectl escache uncordon GROUP"},
		{reason: "MemberCordoned", todo: "when the work is done: kubectl escache uncordon HOST"},
	}
}

// Of returns what to do about a condition of that type with that reason. It is never empty.
func Of(kind, reason string, at Place, how Escached) string {
	i := find(kind, reason)
	if i < 0 {
		return "see the message"
	}
	text := strings.ReplaceAll(table[i].todo, "ESCACHED", how.look())
	text = strings.ReplaceAll(text, "NAMESPACE", "kubectl -n "+how.namespace())
	for word, is := range map[string]string{"VOLUME": at.Volume, "HOST": at.Host, "GROUP": at.Group} {
		if is != "" {
			text = strings.ReplaceAll(text, word, is)
		}
	}
	return text
}

// Gravity orders reasons: the lower, the graver. One that is not known is grave.
func Gravity(kind, reason string) int { return find(kind, reason) }

func find(kind, reason string) int {
	return slices.IndexFunc(table, func(k known) bool { return k.reason == reason && (k.kind == "" || k.kind == kind) })
}
