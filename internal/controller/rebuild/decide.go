// Package rebuild makes CacheVolumes again that Kubernetes has lost, and brings those up to date that were set
// back by a restore of etcd: from what the images' metadata says and from what the hosts answer.
//
// [Decide] is pure. Its rules:
//
//   - The image says which volume it is, and which hosts had the cache at its last attachment. Nothing
//     is concluded from the silence of a host that should have a copy.
//   - Which copy is current only the hosts prove: two copies that are linked and up to date are equal; a
//     copy that is up to date, and that knows its peer as outdated, is the only current one. A copy that
//     has seen fewer attachments than another one proves nothing.
//   - The truth is in Ceph only if every copy is known to be clean, or if the image says so and no host
//     knows better.
//   - A volume that somebody uses gets no record. No VolumeAttachment would speak of that use, so
//     nobody would ever detach it.
//   - A client that only holds the image's lock is what a host has left that lost its power. Whoever asks
//     for the rebuild has said that its cluster is gone. It is fenced: it may be cut off and not dead.
//   - What is not proven is left to a person, and stopped until then.
package rebuild

import (
	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Answer is what a host says of an image's cache, or the error that came instead. A host that has none
// answers so (escache.StateAbsent).
type Answer struct {
	Status escache.VolumeStatus
	Err    error
}

// Evidence is all that is known of an image whose volume has no record, or one that was set back.
type Evidence struct {
	Image   volumes.ImageRef
	Remains volumes.Remains
	// Hosts are the answers by node. A node that is missing was not asked.
	Hosts map[string]Answer
	// Group has the nodes of the volume's NodeGroup; nil if there is no such group.
	Group []string
	// SlotTaken is a volume that has the port or the minor of this one, or "".
	SlotTaken string
	// Own is this Kubernetes cluster, and From another one whose images are to be taken over, or "".
	Own, From string
	// UseCopy is the node whose copy a person has chosen, or "".
	UseCopy string
}

// Decision is what to do about an image.
type Decision struct {
	// Outcome is Proposed or Conflict with a record, else Waits or Refused.
	Outcome v1alpha1.RebuildOutcome
	Message string
	// Record is what to write. Its status has the phase Ready or Conflict.
	Record *v1alpha1.CacheVolume
	// Seen is the newest attachment that image and hosts know.
	Seen int64
	// DirtyBytes is the most that a host says to be dirty, nil if none knows.
	DirtyBytes *int64
}

// Decide returns what the evidence proves.
func Decide(e Evidence) Decision {
	w := survey(e)
	d := Decision{Outcome: v1alpha1.RebuildRefused, DirtyBytes: w.dirty(), Seen: w.seen}
	if d.Message = w.unfit(); d.Message != "" {
		return d
	}
	d.Outcome = v1alpha1.RebuildWaits
	if d.Message = w.waits(); d.Message != "" {
		return d
	}
	pair := w.proven()
	if e.UseCopy != "" {
		if pair == nil {
			pair = w.chosen()
		}
		if d.Message = w.wrongChoice(pair); d.Message != "" {
			d.Outcome = v1alpha1.RebuildRefused
			return d
		}
	}
	return w.conclude(pair, d)
}

// conclude makes the record. Without a pair nothing proves which copy is current.
func (w *witnesses) conclude(pair *pair, d Decision) Decision {
	if pair == nil {
		d.Outcome, d.Message = v1alpha1.RebuildConflict, w.conflict()
		d.Record = w.record(w.note.Spec.Replicas, v1alpha1.VolumeConflict)
		return d
	}
	if d.Message = w.outside(pair); d.Message != "" {
		return d
	}
	d.Outcome, d.Message = v1alpha1.RebuildProposed, w.remarks(pair)
	d.Record = w.record(pair.nodes, v1alpha1.VolumeReady)
	d.Record.Status.Authority, d.Record.Status.Outdated = pair.authority, pair.outdated
	if pair.authority == v1alpha1.AuthorityCache && d.DirtyBytes != nil {
		d.Record.Status.DirtyBytes = *d.DirtyBytes
	}
	return d
}

// record returns a record that names these nodes. Its epoch is above all that anybody has seen: whoever
// still has the lost record finds that it is too old.
func (w *witnesses) record(nodes []string, phase v1alpha1.VolumePhase) *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{Spec: *w.note.Spec.DeepCopy()}
	v.Name = w.note.Volume
	if w.note.Claim != "" {
		v.Annotations = map[string]string{v1alpha1.AnnotationClaim: w.note.Claim}
	}
	v.Spec.ClusterID, v.Spec.SizeBytes, v.Spec.Replicas, v.Spec.Release = w.Image.ClusterID, w.Remains.SizeBytes, nodes, false
	// A volume that was in use has a filesystem, or lost it with a cache. So none is made on it.
	before := w.note.Spec.Adoption
	v.Spec.Adoption = &v1alpha1.Adoption{Rebuilt: true, FormatIfBlank: w.seen == 0 && (before == nil || before.FormatIfBlank)}
	v.Status.Phase, v.Status.Authority, v.Status.Epoch, v.Status.ImageID = phase, v1alpha1.AuthorityCache, w.newest+1, w.Remains.ID
	for _, node := range nodes {
		if s, there := w.copies[node]; there && s.HostID != "" {
			v.Status.SetHostID(node, s.HostID)
		}
	}
	return v
}
