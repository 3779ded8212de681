package rebuild

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// witnesses are the evidence, sorted.
type witnesses struct {
	Evidence

	note volumes.Note
	// last is the newest attachment that the image knows of and a host may have seen, and seen that of
	// image and hosts. newest is above both after an earlier rebuild, which takes an epoch of its own.
	last, seen, newest int64
	// copies are the hosts that have one, by node; silent says why nothing is known of a host.
	copies map[string]escache.VolumeStatus
	silent map[string]error
	// expected are the nodes that have to answer, sorted.
	expected []string
}

func survey(e Evidence) *witnesses {
	w := &witnesses{
		Evidence: e, note: e.Remains.Note, last: e.Remains.Note.LastAttachment(), newest: e.Remains.Note.Epoch,
		seen:   e.Remains.Note.LastAttachment(),
		copies: map[string]escache.VolumeStatus{}, silent: map[string]error{},
	}
	for node, a := range e.Hosts {
		switch s := a.Status; {
		case a.Err != nil:
			w.silent[node] = a.Err
		case s.Node != "" && s.Node != node:
			w.silent[node] = fmt.Errorf("another machine answers in its place, which calls itself %s", s.Node)
		case s.State == "":
			w.silent[node] = errors.New("its answer has no state")
		case s.State != escache.StateAbsent || authority.HasDevice(s):
			w.copies[node], w.seen, w.newest = s, max(w.seen, s.Epoch), max(w.newest, s.Epoch)
		}
	}
	expected := map[string]bool{}
	if !w.note.InCeph() {
		for _, node := range w.note.Spec.Replicas {
			expected[node] = true
		}
	}
	for node, s := range w.copies {
		if expected[node] = expected[node] || s.Epoch >= w.last; s.Epoch < w.last {
			continue // it was left behind by an attachment that did without it
		}
		for _, p := range s.Peers {
			expected[p.Name] = true
		}
	}
	w.expected = slices.DeleteFunc(slices.Sorted(maps.Keys(expected)), func(node string) bool { return !expected[node] || node == "" })
	return w
}

// dirty returns the most that a host says to be dirty, nil if none knows.
func (w *witnesses) dirty() (most *int64) {
	for _, s := range w.copies {
		if s.DirtyBytes != nil && (most == nil || *s.DirtyBytes > *most) {
			most = s.DirtyBytes
		}
	}
	return most
}

// unfit returns why no record can be made of what is known, whatever the hosts do.
func (w *witnesses) unfit() string {
	image, r := w.Image.Pool+"/"+w.Image.Image, w.Remains
	switch {
	case r.ID == "" && r.Unreadable != nil:
		return fmt.Sprintf("%v; and hosts have caches of it (%s)", r.Unreadable, w.says())
	case r.ID == "":
		return fmt.Sprintf("Ceph has no such image, and hosts have caches of it (%s). Look in the trash (`rbd trash ls %s`)",
			w.says(), w.Image.Pool)
	case r.Kubernetes == "":
		return fmt.Sprintf("the image has no mark, and hosts have caches of it (%s); docs/disaster-recovery.md", w.says())
	case r.Deleted != "":
		return fmt.Sprintf("its volume was deleted at %s, and the image stays for its snapshots", r.Deleted)
	case r.Unreadable != nil:
		return r.Unreadable.Error()
	case w.note.ReadOnly:
		return fmt.Sprintf("it is the image that one node had of the read-only volume %s, whose data are in a snapshot. No record is "+
			"made: remove it", w.note.Volume)
	case w.note.Version == 0, len(w.note.Spec.Replicas) != 2:
		return "its metadata has no record that this version can read (escache.io/record); docs/disaster-recovery.md says what " +
			"to do by hand"
	case w.note.Volume != r.Volume, w.note.Spec.Pool != w.Image.Pool, w.note.Spec.Image != w.Image.Image, !volumes.IsName(r.Volume):
		return fmt.Sprintf("its metadata is that of volume %s, whose image is %s/%s: it is a copy, or has another name since. If it is a "+
			"copy: `rbd image-meta remove %s escache.io/kubernetes-cluster`", r.Volume, w.note.Spec.Pool, w.note.Spec.Image, image)
	case r.Kubernetes != w.Own && r.Kubernetes != w.From:
		return fmt.Sprintf("it is marked as that of Kubernetes cluster %s, and this one is %s. If that one is gone for good, and only "+
			"then: --from-kubernetes-cluster %s", r.Kubernetes, w.Own, r.Kubernetes)
	case r.SizeBytes < w.note.Spec.SizeBytes:
		return fmt.Sprintf("the image has %d bytes, and the volume had %d: it was shrunk", r.SizeBytes, w.note.Spec.SizeBytes)
	case w.SlotTaken != "":
		return fmt.Sprintf("volume %s of group %s has its port %d or minor %d, which cannot be changed: release or delete that one first",
			w.SlotTaken, w.note.Spec.Group, w.note.Spec.Port, w.note.Spec.Minor)
	}
	return w.misfits()
}

// misfits returns which hosts have a cache that cannot be this volume's.
func (w *witnesses) misfits() string {
	for _, node := range slices.Sorted(maps.Keys(w.copies)) {
		s, spec := w.copies[node], w.note.Spec
		switch {
		case s.ImageID != "" && s.ImageID != w.Remains.ID:
			return fmt.Sprintf("node %s has a cache of image id %s, and this is %s: the image was replaced by another one of the same name",
				node, s.ImageID, w.Remains.ID)
		case s.Epoch < w.last && !slices.Contains(spec.Replicas, node):
			continue // an attachment went on without it, perhaps with another size of the cache
		case s.CacheBytes != 0 && (s.CacheBytes != spec.CacheBytes || s.Port != int(spec.Port) || s.Minor != int(spec.Minor)):
			return fmt.Sprintf("node %s has a cache of %d bytes with port %d and minor %d, and the image's metadata says %d, %d and %d",
				node, s.CacheBytes, s.Port, s.Minor, spec.CacheBytes, spec.Port, spec.Minor)
		}
	}
	return ""
}

// waits returns what has to happen before anything can be decided. The record could not tell that the
// volume is in use: Kubernetes would have no attachment to end.
func (w *witnesses) waits() string {
	for _, node := range slices.Sorted(maps.Keys(w.copies)) {
		if s := w.copies[node]; authority.HasDevice(s) {
			return fmt.Sprintf("node %s still has the device (%s): stop what uses it there, unmount it, flush and stop it "+
				"(docs/disaster-recovery.md), or reboot the host", node, words(s))
		}
		for _, p := range w.copies[node].Peers {
			if p.Role == escache.RolePrimary && p.Linked() {
				return fmt.Sprintf("node %s sees that node %s has the device: stop what uses it there, or reboot that host", node, p.Name)
			}
		}
	}
	if clients := w.Remains.Clients; len(clients) > 0 {
		return fmt.Sprintf("the image is in use: %s. Find that client and end it", strings.Join(clients, ", "))
	}
	if w.Group == nil {
		return fmt.Sprintf("there is no NodeGroup %s; create it with its hosts (%s were the volume's)",
			w.note.Spec.Group, strings.Join(w.note.Spec.Replicas, " and "))
	}
	if w.UseCopy != "" {
		return ""
	}
	var missing []string
	for _, node := range w.expected {
		if why, silent := w.silent[node]; silent {
			missing = append(missing, fmt.Sprintf("node %s does not answer (%v)", node, why))
		} else if _, asked := w.Hosts[node]; !asked {
			missing = append(missing, fmt.Sprintf("nobody has asked node %s, which is in no NodeGroup", node))
		}
	}
	if len(missing) == 0 {
		return ""
	}
	return fmt.Sprintf("%s, and may have the only current copy. Bring it back; or, if it is lost for good, decide whose copy counts: "+
		"--image %s --use-copy NODE (%s)", strings.Join(missing, ", "), w.Image.Image, w.says())
}

// says is what image and hosts say, in a few words.
func (w *witnesses) says() string {
	var out []string
	if n := w.note; n.Version > 0 {
		held := "to nobody"
		if n.AttachedNode != "" {
			held = "to " + n.AttachedNode
		}
		out = append(out, fmt.Sprintf("the image: epoch %d, attached %s at %s", n.LastAttachment(), held,
			n.Written.UTC().Format(time.RFC3339)))
	}
	nodes := slices.Concat(w.expected, slices.Collect(maps.Keys(w.copies)))
	slices.Sort(nodes)
	for _, node := range slices.Compact(nodes) {
		if s, there := w.copies[node]; there {
			out = append(out, node+": "+words(s))
		} else if w.silent[node] != nil {
			out = append(out, node+": no answer")
		} else {
			out = append(out, node+": no copy")
		}
	}
	return strings.Join(out, "; ")
}

func words(s escache.VolumeStatus) string {
	var out strings.Builder
	fmt.Fprintf(&out, "epoch %d, %s", s.Epoch, s.State)
	if s.DiskState != "" {
		out.WriteString(" " + string(s.DiskState))
	}
	if s.DirtyBytes == nil {
		out.WriteString(", how much is dirty is not known")
	} else {
		out.WriteString(", " + v1alpha1.HumanBytes(*s.DirtyBytes) + " dirty")
	}
	for _, p := range s.Peers {
		fmt.Fprintf(&out, ", sees %s as %s %s", p.Name, p.ConnectionState, p.DiskState)
	}
	if s.Error != nil {
		out.WriteString(", " + s.Error.Detail)
	}
	return out.String()
}

// conflict says why nothing is proven, and what a person can do.
func (w *witnesses) conflict() string {
	return fmt.Sprintf("nothing proves which copy is current (%s). If the hosts have lost only their link, mend it, and ask again; "+
		"else decide: --image %s --use-copy NODE", w.says(), w.Image.Image)
}
