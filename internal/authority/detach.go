package authority

import (
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// Death says why Kubernetes has given a node up. An empty Reason means that the node lives.
type Death struct{ Reason string }

// Detachment is the plan for taking a volume from a node.
type Detachment struct {
	// Gone means that the node does not have the volume: do nothing.
	Gone bool
	// GiveBack means that the node keeps the volume, in an attachment of its own, only to write its cache back: the
	// pod got it where that was under way, and has not used it. The other fields mean nothing then.
	GiveBack bool
	// Fence means that the node's Ceph client goes onto the blocklist first, because nobody can
	// wait for the node.
	Fence bool
	// MayCome means that the node may still map the image, with a Ceph client that nobody knows yet: a
	// dev_connect may be under way there. So it stays on record without a client, if none is known.
	MayCome bool
	// Clean means that the truth is in Ceph from now on.
	Clean bool
	// Reason says why the node is fenced.
	Reason string
}

// Detach decides how to take the volume from a node. The holder is the node's own report. A node
// that has unstaged has no device any more and loses the volume at once. A node that Kubernetes has
// given up is fenced, whether it is dead or only cut off; nobody waits for it. A node that has
// lost its replica is fenced, too. csi-controller itself attaches a volume to write its cache back.
// That attachment belongs to no pod: only EndFlush ends it. A pod that got the volume there and has not
// used it gives it back. Errors wrap ErrRefused or ErrUnreachable; ErrStaged if a node that lives has the device.
func Detach(v *v1alpha1.CacheVolume, node string, holder Report, death Death) (Detachment, error) {
	if v.Status.AttachedNode == "" || v.Status.AttachedNode != node || v.Status.FlushAttached() {
		return Detachment{Gone: true}, nil
	}
	if death.Reason == "" && neverStaged(v, holder) {
		return Detachment{GiveBack: true}, nil
	}
	d, err := takeFrom(v, node, holder, death)
	d.Clean = d.Clean && (InCeph(v) || !mayBeElsewhere(v, node))
	return d, err
}

func takeFrom(v *v1alpha1.CacheVolume, node string, holder Report, death Death) (Detachment, error) {
	if why := holder.elsewhere(); why != nil && !unmapped(v, holder) {
		// If replicas were never created, there is no client to fence.
		return Detachment{
			Fence: true, MayCome: !holder.absent(), Reason: fmt.Sprintf("nothing proves that the device is gone: %v", why),
		}, nil
	}
	if doubt := holder.doubted(); doubt != nil {
		if death.Reason != "" {
			return Detachment{
				Fence: true, MayCome: true, Reason: fmt.Sprintf("%s, and its escached does not answer: %v", death.Reason, doubt),
			}, nil
		}
		return Detachment{}, fmt.Errorf("volume %s: escached on node %s does not answer (%w), so nobody knows whether it still writes; "+
			"Kubernetes says that the node lives: start escached there, or taint the node node.kubernetes.io/out-of-service: %w",
			v.Name, node, doubt, ErrUnreachable)
	}
	if holder.connected() {
		if death.Reason != "" {
			return Detachment{Fence: true, MayCome: true, Reason: death.Reason + ", and its escached still has the device"}, nil
		}
		return Detachment{}, fmt.Errorf("volume %s is still %s on node %s (%s): it has to be unstaged there first: %w",
			v.Name, holder.device(), node, dirty(holder.status), ErrStaged)
	}
	// The kubelet of a node that lives has unstaged, which waits for a dev_connect. Nobody knows whether that of
	// another one has.
	// A replica that was never used was created for this attachment, from Ceph, and nothing was written in that.
	clean := (holder.clean() || holder.unused() && death.Reason == "") && !v.Status.IsOutdated(node)
	return Detachment{Clean: InCeph(v) || clean, MayCome: death.Reason != ""}, nil
}

// unmapped reports whether the machine that has the volume without a cache answers that it has nothing
// of it. A host with a replica still has that when its device is gone; this one has nothing then.
func unmapped(v *v1alpha1.CacheVolume, holder Report) bool {
	return v.Status.UncachedAttached() && v.Status.Uncached.HostID != "" && holder.known && !HasDevice(holder.status)
}

// MustUnstage reports whether a node is to unstage the volume also without its kubelet.
func MustUnstage(v *v1alpha1.CacheVolume, node string) bool {
	return v.Status.AttachedNode == node && !v.Status.FlushAttached() && v.Status.UnstageEpoch == v.Status.Epoch && v.Status.Epoch > 0
}

// mayBeElsewhere reports whether an earlier holder that was fenced may still have its device. Until
// its peer is promoted such a holder acknowledges writes, on both disks, and so makes a standby
// dirty that was clean when it was asked. Settled asks that host too.
func mayBeElsewhere(v *v1alpha1.CacheVolume, node string) bool {
	return slices.ContainsFunc(v.Status.Fenced, func(f v1alpha1.FencedClient) bool {
		return f.Node != node && slices.ContainsFunc(v.Spec.Replicas, func(other string) bool {
			return other != node && (f.Node == other || f.Node == "") && !v.Status.IsOutdated(other)
		})
	})
}

// Settled decides whether the truth of a detached volume is in Ceph by now. For that, every replica
// must have answered that it has no device, or be on record as outdated, so that no host can have
// newer writes; and a current one must be clean. A current replica that is gone from its host may
// be somewhere else, with newer writes. And no replica may have a linked peer that is Primary: a host
// whose own disk has failed, and is outdated for that, still writes to the other copy. The reports
// are by node.
func Settled(v *v1alpha1.CacheVolume, reports map[string]Report) bool {
	if v.Status.AttachedNode != "" {
		return false
	}
	if InCeph(v) {
		return true
	}
	clean := false
	for _, node := range v.Spec.Replicas {
		r := reports[node]
		if v.Status.IsOutdated(node) && (!r.known || !r.connected()) && !r.written() {
			continue
		}
		if r.connected() || r.written() { // or nothing is known
			return false
		}
		clean = clean || r.clean()
	}
	return clean
}

// dirty is for the text of a refusal. It does not say how much: that is another number at each try, and
// Kubernetes makes an Event of each different text.
func dirty(s escache.VolumeStatus) string {
	switch {
	case s.DirtyBytes == nil:
		return "whether it is dirty is not known"
	case *s.DirtyBytes > 0:
		return "dirty"
	}
	return "clean"
}
