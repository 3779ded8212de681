package volumes

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/crashpoint"
)

// isMissing reports whether the host answered that it has no such replica.
func isMissing(err error) bool {
	problem, answered := errors.AsType[*escache.Problem](err)
	return answered && problem.Code == escache.CodeNotFound
}

// missing asks for the replicas of a volume whose truth is in Ceph, except for those that are created
// again in any case. It returns those that their hosts do not have: what was to replace both copies may
// have removed one and died, or a host may have other disks. A replica on another machine than the one on record
// counts as missing, and is put on record as outdated. It creates none. The other failures are by node.
func (s *Steps) missing(
	ctx context.Context, v *v1alpha1.CacheVolume, renewed []string,
) (missing []string, failures map[string]error, err error) {
	if v.Status.Epoch == 1 {
		return nil, nil, nil // no copy was ever used, so all are equal
	}
	request, err := s.replicaRequest(ctx, v)
	if err != nil {
		return nil, nil, err
	}
	request.MustExist = true
	asked := slices.DeleteFunc(slices.Clone(v.Spec.Replicas), func(node string) bool { return slices.Contains(renewed, node) })
	before := v.DeepCopy()
	failures = s.putReplicas(ctx, v, asked, request)
	var strangers []string
	for _, node := range asked {
		switch {
		case isMissing(failures[node]):
			missing = append(missing, node)
			delete(failures, node)
		case replaced(before, v, node):
			strangers = append(strangers, node)
		}
	}
	if len(strangers) > 0 {
		err = s.recordLost(ctx, v, strangers...)
	}
	return append(missing, strangers...), failures, err
}

// renew removes replicas that are to be created again on the same hosts. If another one is kept, which
// fills them, the record calls them outdated before. Afterwards nobody could tell an empty one from the
// kept one.
func (s *Steps) renew(ctx context.Context, v *v1alpha1.CacheVolume, nodes []string) error {
	if len(nodes) == 0 {
		return nil
	}
	counted := slices.DeleteFunc(slices.Clone(nodes), v.Status.IsOutdated)
	if len(counted) > 0 && len(nodes) < len(v.Spec.Replicas) {
		if err := s.recordLost(ctx, v, counted...); err != nil {
			return err
		}
	}
	if err := s.DropReplicas(ctx, v, nodes, v.Spec.Replicas); err != nil {
		return err
	}
	return s.moveReplicas(ctx, v, v.Spec.Replicas, v.Spec.CacheBytes)
}

// recordLost records that nodes have lost their copies. What is created there is not current until it
// is filled.
func (s *Steps) recordLost(ctx context.Context, v *v1alpha1.CacheVolume, nodes ...string) error {
	v.Status.Outdated = append(v.Status.Outdated, nodes...)
	if err := s.UpdateStatus(ctx, v, "node "+strings.Join(nodes, " and ")+" has lost its copy"); err != nil {
		return err
	}
	crashpoint.Reach("publish/loss_recorded")
	return nil
}
