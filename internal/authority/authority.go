// Package authority is the one rule of who may write to a volume. Its functions are pure: they look at a CacheVolume and at
// what was reported, and say what may be done. Whoever acts on the answer writes it with the object's resourceVersion, so of
// two rivals one loses.
//
//   - Authority Ceph: the cache is clean and stays so. Any node of the group may have the volume, and replicas can be laid or
//     dropped at will. An attached volume is in this state while it writes through for somebody, see Drained.
//   - Authority Cache: there may be dirty data. Only a node whose replica is current may have the volume.
//
// Ceph → Cache is written before write-back begins; Cache → Ceph only after escached has reported zero dirty and that
// nothing can become dirty any more.
package authority

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// Reasons why something may not be done.
var (
	// ErrRefused: the state of the volume forbids it; the text says what has to happen first.
	ErrRefused = errors.New("refused")
	// ErrUnreachable: it cannot be decided while a host does not answer.
	ErrUnreachable = errors.New("unreachable")
	// ErrForeignNode: the node is not in the volume's group.
	ErrForeignNode = fmt.Errorf("not in the volume's group: %w", ErrRefused)
)

// InCeph reports whether the truth is in Ceph. A volume that was never attached has no authority on record.
func InCeph(v *v1alpha1.CacheVolume) bool { return v.Status.Authority != v1alpha1.AuthorityCache }

// Attachment is what has to be done so that a node may have a volume.
type Attachment struct {
	// Held: the node has it already; what follows is repeated.
	Held bool
	// Epoch of the attachment.
	Epoch int64
	// Relay: the node has no replica; both are laid anew around it. Nothing is lost, for the truth is in Ceph.
	Relay bool
	// Renew are replicas that are not current: they are dropped and laid anew, for the truth is in Ceph.
	Renew []string
	// Drained: the node has it and writes through; nothing is to be done, and its truth stays in Ceph.
	Drained bool
	// TakeOver: data may be dirty, so a partner that does not answer is gone without.
	TakeOver bool
	// FlushFirst are the nodes with a current copy: one of them has to write back before the node may have the volume. Nothing
	// else of the plan counts then.
	FlushFirst []string
}

// Attach decides whether a node of the group may have the volume now.
func Attach(v *v1alpha1.CacheVolume, group []string, node string) (Attachment, error) {
	s := &v.Status
	if !slices.Contains(group, node) {
		return Attachment{}, fmt.Errorf("volume %s lives in group %s (%s), node %s is %w",
			v.Name, v.Spec.Group, strings.Join(group, ", "), node, ErrForeignNode)
	}
	flushing := s.FlushAttached()
	if s.AttachedNode != "" && s.AttachedNode != node && !flushing {
		return Attachment{}, fmt.Errorf("volume %s is attached to node %s since epoch %d and has to be detached there first: %w",
			v.Name, s.AttachedNode, s.Epoch, ErrRefused)
	}
	// Where csi-controller has the volume written back, only the node that does it may have it as it is: it has the device.
	if flushing && (s.AttachedNode != node || s.IsOutdated(node)) {
		return Attachment{FlushFirst: []string{s.AttachedNode}}, nil
	}
	a := Attachment{Held: s.AttachedNode == node && !flushing, Epoch: s.Epoch}
	if !a.Held {
		a.Epoch++
	}
	if a.Held && InCeph(v) && len(Claims(v)) > 0 {
		a.Drained = true
		return a, nil
	}
	if InCeph(v) {
		a.Relay = !v.Spec.HasReplica(node)
		for _, replica := range v.Spec.Replicas {
			if s.IsOutdated(replica) {
				a.Renew = append(a.Renew, replica)
			}
		}
		return a, nil
	}
	a.TakeOver = true
	current := Current(v)
	switch {
	case slices.Contains(current, node):
		return a, nil
	case len(current) == 0:
		return Attachment{}, fmt.Errorf("volume %s has no current replica left, only %s, which lack acknowledged writes; "+
			"discarding what is lost is a decision of its own: %w", v.Name, strings.Join(v.Spec.Replicas, " and "), ErrRefused)
	case a.Held:
		return Attachment{}, fmt.Errorf("volume %s is attached to node %s, which has no current copy of its dirty data (%d bytes); "+
			"detach it there, and attach it again: %w", v.Name, node, s.DirtyBytes, ErrRefused)
	default:
		return Attachment{FlushFirst: current}, nil
	}
}

// Report is what a host's escached says of a volume.
type Report struct {
	// Err is why there is no answer. The other fields mean nothing then.
	Err    error
	Status escache.VolumeStatus
}

// connected reports whether the host may still write to the image: it has the device, or is not known not to.
func (r Report) connected() bool {
	switch r.Status.State { //nolint:exhaustive // every other state, also one of a later API, may write
	case escache.StateAbsent, escache.StateStandby:
		return r.Status.Role == escache.RolePrimary || r.Status.ClientAddress != ""
	case escache.StateError:
		return r.Status.Role == escache.RolePrimary || r.Status.ClientAddress != "" || r.Status.Device != ""
	default:
		return true
	}
}

// clean reports whether the host's own replica is current and holds nothing that Ceph has not.
func (r Report) clean() bool {
	return r.current() && r.Status.DirtyBytes != nil && *r.Status.DirtyBytes == 0
}

// current reports whether the host's replica is a standby whose disk has all that was acknowledged.
func (r Report) current() bool {
	return r.Status.State == escache.StateStandby && r.Status.DiskState == "UpToDate"
}

// Death is what Kubernetes says of a node. An empty Reason means that it lives.
type Death struct{ Reason string }

// Detachment is what has to be done so that a node no longer has a volume.
type Detachment struct {
	// Gone: the node does not have it; nothing is to be done.
	Gone bool
	// Fence: the node's Ceph client goes onto the blocklist first, because nobody can wait for the node.
	Fence bool
	// Clean: the truth is in Ceph from now on.
	Clean bool
	// Reason is why a node is fenced.
	Reason string
}

// Detach decides how the volume is taken from a node. An orderly one has unstaged: its device is gone. A node that Kubernetes
// has given up is fenced, whether it is dead or only cut off, and never waited for. What csi-controller itself has attached to be
// written back no pod has, and nobody but EndFlush takes it away.
func Detach(v *v1alpha1.CacheVolume, node string, holder Report, death Death) (Detachment, error) {
	if v.Status.AttachedNode == "" || v.Status.AttachedNode != node || v.Status.FlushAttached() {
		return Detachment{Gone: true}, nil
	}
	d, err := takeFrom(v, node, holder, death)
	d.Clean = d.Clean && (InCeph(v) || !mayBeElsewhere(v, node))
	return d, err
}

func takeFrom(v *v1alpha1.CacheVolume, node string, holder Report, death Death) (Detachment, error) {
	if holder.Err != nil {
		if death.Reason != "" {
			return Detachment{Fence: true, Reason: fmt.Sprintf("%s, and its escached does not answer: %v", death.Reason, holder.Err)}, nil
		}
		return Detachment{}, fmt.Errorf("volume %s: escached on node %s does not answer (%w), so nobody knows whether it still writes; "+
			"Kubernetes says that the node lives: start escached there, or taint the node node.kubernetes.io/out-of-service: %w",
			v.Name, node, holder.Err, ErrUnreachable)
	}
	if holder.connected() {
		if death.Reason != "" {
			return Detachment{Fence: true, Reason: death.Reason + ", and its escached still has the device"}, nil
		}
		return Detachment{}, fmt.Errorf("volume %s is still %s on node %s (%s): it has to be unstaged there first: %w",
			v.Name, holder.Status.State, node, dirty(holder.Status), ErrRefused)
	}
	return Detachment{Clean: InCeph(v) || (holder.clean() && !v.Status.IsOutdated(node))}, nil
}

// mayBeElsewhere reports whether an earlier holder that was fenced may still have its device: until its peer is promoted it goes
// on acknowledging writes, on both disks, which makes a standby dirty that was clean when it was asked. Settled asks that host.
func mayBeElsewhere(v *v1alpha1.CacheVolume, node string) bool {
	return slices.ContainsFunc(v.Status.Fenced, func(f v1alpha1.FencedClient) bool {
		return f.Node != node && slices.ContainsFunc(v.Spec.Replicas, func(other string) bool {
			return other != node && (f.Node == other || f.Node == "") && !v.Status.IsOutdated(other)
		})
	})
}

// Settled decides whether a detached volume's truth is in Ceph by now. Every replica has either answered that it has no
// device, or is on record as outdated, so that nobody else can have newer writes; and one that is current is clean.
func Settled(v *v1alpha1.CacheVolume, reports map[string]Report) bool {
	if v.Status.AttachedNode != "" {
		return false
	}
	if InCeph(v) {
		return true
	}
	clean := false
	for _, node := range v.Spec.Replicas {
		r, asked := reports[node]
		answered := asked && r.Err == nil
		if v.Status.IsOutdated(node) && (!answered || !r.connected()) {
			continue
		}
		if !answered || r.connected() {
			return false
		}
		clean = clean || r.clean()
	}
	return clean
}

func dirty(s escache.VolumeStatus) string {
	if s.DirtyBytes == nil {
		return "how much is dirty is not known"
	}
	return fmt.Sprintf("%d bytes dirty", *s.DirtyBytes)
}
