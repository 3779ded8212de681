package snapshots

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/timestamppb"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/csi/requests"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// undoTime bounds the removal of what was begun, also if the call's time is up.
const undoTime = 20 * time.Second

// CreateGroup writes the records of all snapshots, then takes the snapshots while all volumes are
// held, then records that they exist: in the first record for all at once, so that the group is
// either taken or not, and then in each. An interrupted call is finished if the first record says
// so; otherwise all snapshots are taken again. The caller holds the locks of all volumes.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#createvolumegroupsnapshot
func (s *Snapshots) CreateGroup(ctx context.Context, r requests.Group) ([]*v1alpha1.CacheSnapshot, error) {
	group, err := s.groupRecords(ctx, r)
	if err != nil {
		return nil, err
	}
	if len(group) < len(r.Volumes) || isUntaken(group[0]) {
		var taken []volumes.Snapshot
		group, taken, err = s.takeGroup(ctx, r, group)
		if err != nil {
			return nil, s.undoTaking(ctx, group, err)
		}
		if err := s.recordGroup(ctx, group, taken); err != nil {
			return nil, err
		}
	}
	return group, s.finishGroup(ctx, group)
}

// Complete reports whether all snapshots of a group are there and taken. The group has one record at least.
func Complete(group []*v1alpha1.CacheSnapshot) bool {
	return len(group) >= len(group[0].Spec.Group.Volumes) && !slices.ContainsFunc(group, isUntaken)
}

// memberID is the id of a volume's snapshot in a group.
func memberID(group, volume string) string { return requests.VolumeID(group + "/" + volume) }

// groupRecords returns the records that an earlier call has written, in the order of the volumes.
func (s *Snapshots) groupRecords(ctx context.Context, r requests.Group) ([]*v1alpha1.CacheSnapshot, error) {
	group, err := s.groupNamed(ctx, r.ID)
	if err != nil {
		return nil, err
	}
	for _, snapshot := range group {
		if !slices.Equal(snapshot.Spec.Group.Volumes, r.Volumes) {
			return nil, fmt.Errorf("group snapshot %s is of the volumes %s, not of %s: %w",
				r.ID, strings.Join(snapshot.Spec.Group.Volumes, ", "), strings.Join(r.Volumes, ", "), volumes.ErrDifferent)
		}
	}
	if slices.ContainsFunc(group, isMarked) {
		return nil, s.goOnDeleting(ctx, "group snapshot "+r.ID, group...)
	}
	if len(group) > 0 && len(group) < len(r.Volumes) && slices.ContainsFunc(group, isTaken) {
		return nil, fmt.Errorf("group snapshot %s has lost %d of its snapshots; delete it: %w",
			r.ID, len(r.Volumes)-len(group), volumes.ErrRefused)
	}
	if len(group) > 0 && isUntaken(group[0]) {
		return group, s.newAttempt(ctx, group[0])
	}
	return group, nil
}

func isTaken(snapshot *v1alpha1.CacheSnapshot) bool { return snapshot.Status.Taken != nil }

func isUntaken(snapshot *v1alpha1.CacheSnapshot) bool { return !isTaken(snapshot) }

func isMarked(snapshot *v1alpha1.CacheSnapshot) bool { return !snapshot.DeletionTimestamp.IsZero() }

func byVolume(a, b *v1alpha1.CacheSnapshot) int { return strings.Compare(a.Spec.Volume, b.Spec.Volume) }

// groupNamed reads the records of a group snapshot from the API server itself, in the order of their
// volumes.
func (s *Snapshots) groupNamed(ctx context.Context, id string) ([]*v1alpha1.CacheSnapshot, error) {
	if len(validation.IsValidLabelValue(id)) > 0 {
		return nil, fmt.Errorf("group snapshot %q: %w", id, volumes.ErrNotFound)
	}
	all := &v1alpha1.CacheSnapshotList{}
	if err := s.Live.List(ctx, all, client.MatchingLabels{v1alpha1.LabelSnapshotGroup: id}); err != nil {
		return nil, fmt.Errorf("look for the snapshots of group snapshot %s: %w", id, err)
	}
	var group []*v1alpha1.CacheSnapshot
	for i := range all.Items {
		if member := all.Items[i].Spec.Group; member != nil && member.Name == id {
			group = append(group, &all.Items[i])
		}
	}
	slices.SortFunc(group, byVolume)
	return group, nil
}

// groupSources finds the volumes of a group snapshot, and refuses those that no snapshots of one
// moment can be taken of.
func (s *Snapshots) groupSources(ctx context.Context, r requests.Group) ([]volumes.SnapshotSource, error) {
	var sources []volumes.SnapshotSource
	for _, id := range r.Volumes {
		v, err := s.Volume(ctx, id)
		if err == nil {
			err = volumes.Cloneable(v)
		}
		if err != nil {
			return nil, err
		}
		sources = append(sources, volumes.SnapshotSource{Volume: v})
	}
	first := sources[0].Volume
	for _, source := range sources {
		v := source.Volume
		if v.Spec.ClusterID != first.Spec.ClusterID {
			return nil, fmt.Errorf("volume %s is in Ceph cluster %s, and volume %s in %s; a group snapshot is of one Ceph cluster: %w",
				v.Name, v.Spec.ClusterID, first.Name, first.Spec.ClusterID, volumes.ErrRefused)
		}
	}
	return sources, nil
}

// writeGroup writes the records that are not there yet. It returns those that are, also with an error.
func (s *Snapshots) writeGroup(
	ctx context.Context, r requests.Group, there []*v1alpha1.CacheSnapshot, sources []volumes.SnapshotSource,
) ([]*v1alpha1.CacheSnapshot, error) {
	group := there
	for _, source := range sources {
		v := source.Volume
		if slices.ContainsFunc(there, func(snapshot *v1alpha1.CacheSnapshot) bool { return snapshot.Spec.Volume == v.Name }) {
			continue
		}
		snapshot := s.newSnapshot(memberID(r.ID, v.Name), v)
		snapshot.Labels = map[string]string{v1alpha1.LabelSnapshotGroup: r.ID}
		snapshot.Spec.Group = &v1alpha1.SnapshotGroup{Name: r.ID, Volumes: r.Volumes}
		if err := s.Cached.Create(ctx, snapshot); err != nil {
			return group, fmt.Errorf("write the record of snapshot %s of volume %s: %w", snapshot.Name, v.Name, err)
		}
		crashpoint.Reach("create_group_snapshot/object_written")
		if snapshot.Spec.Group == nil {
			return append(group, snapshot), fmt.Errorf("the API server has dropped spec.group: its CRD of CacheSnapshots is older than "+
				"csi-controller; apply the chart's CRDs: %w", volumes.ErrRefused)
		}
		group = append(group, snapshot)
	}
	slices.SortFunc(group, byVolume)
	return group, nil
}

// takeGroup writes the records that are not there yet, and takes all snapshots. It returns the records
// that are there, also with an error.
func (s *Snapshots) takeGroup(
	ctx context.Context, r requests.Group, group []*v1alpha1.CacheSnapshot,
) ([]*v1alpha1.CacheSnapshot, []volumes.Snapshot, error) {
	sources, err := s.groupSources(ctx, r)
	for i := 0; err == nil && i < len(sources); i++ {
		v := sources[i].Volume
		err = s.notComplete(ctx, s.newSnapshot(memberID(r.ID, v.Name), v))
	}
	if err == nil {
		group, err = s.writeGroup(ctx, r, group, sources)
	}
	if err != nil {
		return group, nil, err
	}
	for i, snapshot := range group {
		sources[i].Ref = volumes.SnapshotOf(snapshot)
	}
	taken, err := s.TakeSnapshots(ctx, sources, r.Longest)
	if err != nil {
		return group, nil, fmt.Errorf("take group snapshot %s: %w", r.ID, err)
	}
	crashpoint.Reach("create_group_snapshot/taken")
	return group, taken, nil
}

// recordGroup records in the first snapshot that all of them exist. If that fails, it may be on record
// all the same, so the snapshots stay: the repeated call sees which.
func (s *Snapshots) recordGroup(ctx context.Context, group []*v1alpha1.CacheSnapshot, taken []volumes.Snapshot) error {
	first := group[0]
	first.Status = takenStatus(metav1.NewTime(taken[0].Taken), taken[0].SizeBytes)
	for _, one := range taken {
		first.Status.GroupSizesBytes = append(first.Status.GroupSizesBytes, one.SizeBytes)
	}
	if err := s.Cached.Status().Update(ctx, first); err != nil {
		return fmt.Errorf("record that group snapshot %s is taken: %w: %w", first.Spec.Group.Name, volumes.ErrUnavailable, err)
	}
	crashpoint.Reach("create_group_snapshot/taken_written")
	return nil
}

// finishGroup records in each snapshot what the first one has for all.
func (s *Snapshots) finishGroup(ctx context.Context, group []*v1alpha1.CacheSnapshot) error {
	first := group[0]
	for i, snapshot := range group {
		if isTaken(snapshot) {
			continue
		}
		if i >= len(first.Status.GroupSizesBytes) {
			return fmt.Errorf("the record of snapshot %s has no sizes of its group; delete group snapshot %s: %w",
				first.Name, first.Spec.Group.Name, volumes.ErrRefused)
		}
		snapshot.Status = takenStatus(*first.Status.Taken, first.Status.GroupSizesBytes[i])
		if err := s.Cached.Status().Update(ctx, snapshot); err != nil {
			return fmt.Errorf("record that snapshot %s is taken: %w", snapshot.Name, err)
		}
		crashpoint.Reach("create_group_snapshot/member_written")
	}
	return nil
}

// undoTaking removes a snapshot that could not be taken, or all of a group that could not be taken as a whole. The records stay if
// csi-snapshotter repeats the call, so that nothing that Ceph may still do is forgotten. Ceph's snapshots go also then: they
// may be torn, and if no later call succeeds for leftFor, they would pass for complete.
func (s *Snapshots) undoTaking(ctx context.Context, group []*v1alpha1.CacheSnapshot, cause error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTime)
	defer cancel()
	repeated := isRepeated(cause)
	var failures []error
	for _, snapshot := range group {
		switch {
		case isTaken(snapshot): // Somebody knows of it.
		case repeated:
			failures = append(failures, s.dropBegun(ctx, snapshot))
		default:
			failures = append(failures, s.takeBack(ctx, snapshot))
		}
	}
	left := errors.Join(failures...)
	switch {
	case left == nil:
		return cause
	case repeated:
		s.Log.WarnContext(ctx, "snapshots that could not be taken are left; the repeated call replaces them", "error", left)
		return cause
	}
	return fmt.Errorf("%w: %s; and what was begun could not be taken back: %s", volumes.ErrUnavailable, cause.Error(), left.Error())
}

// dropBegun removes what Ceph has of a snapshot, unless that is complete.
func (s *Snapshots) dropBegun(ctx context.Context, snapshot *v1alpha1.CacheSnapshot) error {
	if since, err := s.completeSince(ctx, snapshot); err != nil || !since.IsZero() {
		return err
	}
	return s.Images.DeleteSnapshot(ctx, volumes.SnapshotOf(snapshot))
}

// DeleteGroup marks all records of a group snapshot as deleted, so that none is used any more, and
// then removes one after the other.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#deletevolumegroupsnapshot
func (s *Snapshots) DeleteGroup(ctx context.Context, group []*v1alpha1.CacheSnapshot) error {
	for _, snapshot := range group {
		if err := s.markSnapshot(ctx, snapshot); err != nil {
			return err
		}
		crashpoint.Reach("delete_group_snapshot/object_marked")
	}
	for _, snapshot := range group {
		if err := s.Delete(ctx, snapshot); err != nil {
			return err
		}
		crashpoint.Reach("delete_group_snapshot/member_removed")
	}
	return nil
}

// GroupOf returns the records of a group snapshot that exist; one at least. ids are those that the
// caller knows; none if it knows none.
func (s *Snapshots) GroupOf(ctx context.Context, id string, ids []string) ([]*v1alpha1.CacheSnapshot, error) {
	if err := requests.Required("group snapshot id", id); err != nil {
		return nil, err
	}
	group, err := s.groupNamed(ctx, id)
	if err != nil {
		return nil, err
	}
	if len(group) == 0 {
		return nil, fmt.Errorf("group snapshot %s: %w", id, volumes.ErrNotFound)
	}
	var all []string
	for _, volume := range group[0].Spec.Group.Volumes {
		all = append(all, memberID(id, volume))
	}
	slices.Sort(all)
	if len(ids) > 0 && !slices.Equal(slices.Sorted(slices.Values(ids)), all) {
		return nil, fmt.Errorf("group snapshot %s has the snapshots %s, not %s: %w",
			id, strings.Join(all, ", "), strings.Join(ids, ", "), volumes.ErrInvalid)
	}
	return group, nil
}

// GroupToCSI returns a group snapshot as CSI has it.
func GroupToCSI(group []*v1alpha1.CacheSnapshot) *csi.VolumeGroupSnapshot {
	out := &csi.VolumeGroupSnapshot{
		GroupSnapshotId: group[0].Spec.Group.Name, CreationTime: timestamppb.New(group[0].Status.Taken.Time), ReadyToUse: true,
	}
	for _, snapshot := range group {
		out.Snapshots = append(out.Snapshots, ToCSI(snapshot))
	}
	return out
}
