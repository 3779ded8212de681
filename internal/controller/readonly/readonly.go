// Package readonly keeps volumes that many nodes read at the same time: those of claims with
// ReadOnlyMany, made from a snapshot. Their record is a ReadOnlyVolume.
//
// Each node that has such a volume gets an image of its own, a clone of the snapshot. The snapshot is
// what a disk has after a power loss: the filesystem on it has a journal to replay, and a mount that does
// not replay it lacks files that were synced. The replay writes. So the node maps its image for writing,
// with the exclusive lock, and mounts it read-only, upon which the kernel replays the journal. A block volume
// is handed out as it is: the node maps its image so that nobody can write to it. Nobody else uses that image.
// A node that is given up can only write to its own image, which no other node ever maps. So no node waits for
// another one. Such a node is fenced only so that its image can be deleted.
//
// Volumes does not lock: its caller holds the lock of the volume.
package readonly

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
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
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/finalizers"
)

// Volumes are the read-only volumes on record.
type Volumes struct {
	// Kube writes to the API server, and Live reads from it and not from a cache.
	Kube   client.Client
	Live   client.Reader
	Images volumes.Images
	Nodes  Nodes
	Log    *slog.Logger
}

// Nodes knows which nodes Kubernetes has given up.
type Nodes interface {
	// Death says whether, and why, Kubernetes has given the node up.
	Death(ctx context.Context, node string) (authority.Death, error)
}

// Get reads a record. If there is none, or no such kind of record, the error is ErrNotFound.
func (v *Volumes) Get(ctx context.Context, id string) (*v1alpha1.ReadOnlyVolume, error) {
	if !volumes.IsName(id) {
		return nil, fmt.Errorf("volume %q: %w", id, volumes.ErrNotFound)
	}
	r := &v1alpha1.ReadOnlyVolume{}
	err := v.Live.Get(ctx, client.ObjectKey{Name: id}, r)
	switch {
	case apierrors.IsNotFound(err), meta.IsNoMatchError(err):
		return nil, fmt.Errorf("volume %s: %w", id, volumes.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("read volume %s: %w", id, err)
	}
	return r, nil
}

// List returns all records. Without that kind of record, as before the chart's CRDs are applied, there
// are none.
func List(ctx context.Context, from client.Reader, options ...client.ListOption) (*v1alpha1.ReadOnlyVolumeList, error) {
	all := &v1alpha1.ReadOnlyVolumeList{}
	if err := from.List(ctx, all, options...); err != nil && !meta.IsNoMatchError(err) && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("list read-only volumes: %w", err)
	}
	return all, nil
}

// Create writes the record. There is nothing else to make before a node gets the volume. The caller keeps
// the snapshot from being deleted meanwhile.
func (v *Volumes) Create(ctx context.Context, r *v1alpha1.ReadOnlyVolume) error {
	r.Finalizers = []string{v1alpha1.ReadOnlyFinalizer}
	if err := v.Kube.Create(ctx, r); err != nil {
		if meta.IsNoMatchError(err) {
			err = fmt.Errorf("the API server has no ReadOnlyVolumes: apply the chart's CRDs: %w", volumes.ErrRefused)
		}
		return fmt.Errorf("write the record of volume %s: %w", r.Name, err)
	}
	crashpoint.Reach("create_read_only/object_written")
	return v.write(ctx, r, "is new")
}

// Using returns the names of the volumes that are made from one of the snapshots, sorted.
func (v *Volumes) Using(ctx context.Context, snapshots ...string) ([]string, error) {
	all, err := List(ctx, v.Live)
	if err != nil {
		return nil, err
	}
	var names []string
	for i := range all.Items {
		if slices.Contains(snapshots, all.Items[i].Spec.Snapshot) {
			names = append(names, all.Items[i].Name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// Publish makes a node's image. The node is on record before. What is on record may be deleted, so an image of
// somebody else must be found before that.
func (v *Volumes) Publish(ctx context.Context, id, node string) error {
	r, err := v.Get(ctx, id)
	if err != nil {
		return err
	}
	if !r.DeletionTimestamp.IsZero() {
		return fmt.Errorf("volume %s is being deleted: %w", id, volumes.ErrRefused)
	}
	if err := v.isNode(ctx, node); err != nil {
		return err
	}
	has := r.CopyOn(node)
	if has != nil && has.ImageID != "" {
		return nil
	}
	isNew := false
	if has == nil {
		if isNew, err = v.isFree(ctx, r, node); err != nil {
			return err
		}
		r.Status.Copies = append(r.Status.Copies, v1alpha1.ReadOnlyCopy{Node: node})
		if err := v.write(ctx, r, "node "+node+" gets it"); err != nil {
			return err
		}
		crashpoint.Reach("publish_read_only/node_written")
	}
	image, err := v.makeImage(ctx, r, node, isNew)
	if err != nil {
		return fmt.Errorf("make image %s for node %s: %w", imageOn(r, node), node, err)
	}
	crashpoint.Reach("publish_read_only/image_made")
	r.CopyOn(node).ImageID = image
	return v.write(ctx, r, "node "+node+" has it")
}

// isFree reports whether there is no image of a node's name. One whose note says that it is this volume's is
// what a record that was lost or set back has left. Any other one is ErrRefused.
func (v *Volumes) isFree(ctx context.Context, r *v1alpha1.ReadOnlyVolume, node string) (bool, error) {
	image := imageOn(r, node)
	note, err := v.Images.Noted(ctx, image)
	switch {
	case errors.Is(err, volumes.ErrNotFound):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read the metadata of image %s: %w", image, err)
	case !note.ReadOnly || note.Volume != r.Name:
		return false, fmt.Errorf("volume %s needs an image of the name %s for node %s. There is one already, perhaps with somebody's "+
			"data, and its metadata does not say that it is this volume's; rename or remove it: %w",
			r.Name, image, node, volumes.ErrRefused)
	}
	// A note has no Kubernetes cluster. The mark has one, and this refuses that of another cluster.
	if _, err := v.Images.Mark(ctx, image, r.Name); err != nil {
		return false, fmt.Errorf("mark image %s: %w", image, err)
	}
	return false, nil
}

// isNode returns ErrNotFound if Kubernetes has no such node.
func (v *Volumes) isNode(ctx context.Context, name string) error {
	err := fmt.Errorf("%q is no name: %w", name, volumes.ErrNotFound)
	if volumes.IsName(name) {
		err = v.Live.Get(ctx, client.ObjectKey{Name: name}, &corev1.Node{})
	}
	if err != nil {
		return fmt.Errorf("find node %s: %w", name, err)
	}
	return nil
}

// makeImage returns Ceph's id of the image.
func (v *Volumes) makeImage(ctx context.Context, r *v1alpha1.ReadOnlyVolume, node string, isNew bool) (id string, err error) {
	snapshot := &v1alpha1.CacheSnapshot{}
	if err := v.Live.Get(ctx, client.ObjectKey{Name: r.Spec.Snapshot}, snapshot); err != nil {
		if apierrors.IsNotFound(err) {
			err = fmt.Errorf("its snapshot %s is gone: restore another one: %w", r.Spec.Snapshot, volumes.ErrRefused)
		}
		return "", err
	}
	from := volumes.SnapshotOf(snapshot)
	spec := volumes.ImageSpec{
		ImageRef: imageOn(r, node), DataPool: r.Spec.DataPool, SizeBytes: r.Spec.SizeBytes, Layout: r.Spec.Layout, Volume: r.Name,
		From: &from,
		Note: volumes.Note{
			Version: volumes.NoteVersion, Volume: r.Name, Claim: r.Annotations[v1alpha1.AnnotationClaim], AttachedNode: node,
			ReadOnly: true, Written: metav1.Now(),
		},
	}
	if err := volumes.MakeImage(ctx, v.Images, spec, isNew); err != nil {
		return "", err
	}
	return v.Images.Mark(ctx, spec.ImageRef, r.Name)
}

// Unpublish deletes a node's image, or those of all nodes if node is "". Ceph refuses while the node has
// the image of a filesystem mapped. The node stays on record until then, and the call is repeated. Nobody waits
// for a node that Kubernetes has given up: it is fenced, so that pods that still run there get errors and read
// nothing wrong.
//
// The image of a block volume is mapped with `ro`. Such a map neither locks nor watches it. So Ceph does not
// refuse, and nobody knows which client to fence. Kubernetes calls this after the node has unmapped the image,
// unless it has given the node up. Pods that still run there go on reading what the snapshot has, until it is
// deleted.
func (v *Volumes) Unpublish(ctx context.Context, id, node string) error {
	r, err := v.Get(ctx, id)
	if err != nil {
		return err
	}
	for _, has := range slices.Clone(r.Status.Copies) {
		if node != "" && has.Node != node {
			continue
		}
		if err := v.fenceDead(ctx, r, has); err != nil {
			return err
		}
		if err := v.Images.Delete(ctx, imageOn(r, has.Node)); err != nil {
			return fmt.Errorf("delete image %s of node %s: %w", imageOn(r, has.Node), has.Node, err)
		}
		crashpoint.Reach("unpublish_read_only/image_removed")
		r.Status.Copies = slices.DeleteFunc(r.Status.Copies, func(c v1alpha1.ReadOnlyCopy) bool { return c.Node == has.Node })
		if err := v.write(ctx, r, "node "+has.Node+" has lost it"); err != nil {
			return err
		}
	}
	return nil
}

// fenceDead shuts the clients out that have a node's image open, if Kubernetes has given the node up. Nobody
// else uses that image. A node maps no image that is not on record as made: one that is open then is not ours.
//
// They stay shut out for years, as those of other volumes do. A client that comes back would read zeros where
// the deleted image had data. No record has them. Once the node has started again, the entry does no harm.
func (v *Volumes) fenceDead(ctx context.Context, r *v1alpha1.ReadOnlyVolume, has v1alpha1.ReadOnlyCopy) error {
	if has.ImageID == "" {
		return nil
	}
	death, err := v.Nodes.Death(ctx, has.Node)
	if err != nil {
		return fmt.Errorf("ask Kubernetes about node %s: %w", has.Node, err)
	}
	if death.Reason == "" {
		return nil
	}
	image := imageOn(r, has.Node)
	open, err := v.Images.Clients(ctx, image)
	if err != nil {
		return fmt.Errorf("find who has image %s open: %w", image, err)
	}
	for _, address := range open {
		v.Log.WarnContext(ctx, "fencing", "volume", r.Name, "node", has.Node, "client", address, "reason", death.Reason)
		if err := v.Images.Fence(ctx, r.Spec.ClusterID, address, authority.FenceSeconds*time.Second); err != nil {
			return fmt.Errorf("fence client %s of image %s: %w", address, image, err)
		}
		crashpoint.Reach("unpublish_read_only/fenced")
	}
	return nil
}

// Delete removes the record of a volume that no node has.
func (v *Volumes) Delete(ctx context.Context, id string) error {
	r, err := v.Get(ctx, id)
	if err != nil {
		return err
	}
	if on := NodesOf(r); len(on) > 0 {
		return fmt.Errorf("volume %s is attached to %s and has to be detached first: %w", id, strings.Join(on, ", "), volumes.ErrRefused)
	}
	// Nobody may have got it since it was read.
	unchanged := client.Preconditions{UID: &r.UID, ResourceVersion: &r.ResourceVersion}
	if r.DeletionTimestamp.IsZero() {
		if err := v.Kube.Delete(ctx, r, unchanged); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("mark volume %s as deleted: %w", id, err)
		}
		crashpoint.Reach("delete_read_only/object_marked")
	}
	if err := finalizers.Remove(ctx, v.Kube, r); err != nil {
		return fmt.Errorf("remove the record of volume %s: %w", id, err)
	}
	return nil
}

// write writes the status. It fails if somebody has written the object since it was read.
func (v *Volumes) write(ctx context.Context, r *v1alpha1.ReadOnlyVolume, what string) error {
	r.Status.Summary = v1alpha1.ReadOnlyVolumeSummary{Size: v1alpha1.HumanBytes(r.Spec.SizeBytes), Nodes: strings.Join(NodesOf(r), ",")}
	if err := v.Kube.Status().Update(ctx, r); err != nil {
		return fmt.Errorf("record of volume %s that %s: %w", r.Name, what, err)
	}
	return nil
}

// NodesOf returns the nodes that have the volume, in the order in which they got it.
func NodesOf(r *v1alpha1.ReadOnlyVolume) []string {
	var nodes []string
	for _, has := range r.Status.Copies {
		nodes = append(nodes, has.Node)
	}
	return nodes
}

func imageOn(r *v1alpha1.ReadOnlyVolume, node string) volumes.ImageRef {
	return volumes.ImageRef{ClusterID: r.Spec.ClusterID, Pool: r.Spec.Pool, Image: r.ImageOn(node)}
}
