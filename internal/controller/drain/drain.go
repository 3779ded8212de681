// Package drain changes the mode and the options of attached volumes' caches. It has volumes
// write through on request, moves their truth to Ceph once they are clean, and turns them back. The
// requests are on record in the CacheVolume (status.writeThrough). So there can be several, and the
// volume's own mode returns when the last one ends.
//
// The order makes it safe:
//
//   - Turn: the claim is on record, then the mode changes.
//   - Settle: one answer of the holder says write-through and zero dirty, then authority Ceph is on
//     record.
//   - Restore: authority Cache is on record, then the mode changes, then the claim goes.
//   - Apply (apply.go): the volume's own mode and options are on record, then they change, then what
//     the node has is on record.
//
// Every step is repeated until it is done, also by the next leader. The steps of one volume run
// under its lock, so that no change of mode overtakes another. The lock is not taken while the
// holder does not answer, because a take-over from that holder needs the lock.
package drain

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/operation"
)

// Hosts reaches the escached of each node.
type Hosts interface {
	Status(ctx context.Context, node string, volume escache.VolumeRef) (escache.VolumeStatus, error)
	SetMode(ctx context.Context, at cachevolume.Attachment, mode escache.Mode) error
	SetOptions(ctx context.Context, at cachevolume.Attachment, options escache.CacheOptions) error
}

// Config holds what a Drainer needs.
type Config struct {
	Client client.Client // writes
	Live   client.Reader // what is decided by must not be stale
	Hosts  Hosts
	Locks  *operation.Locks
	Now    func() time.Time
}

// Drainer turns write-through on and off for volumes. It is safe for concurrent use.
type Drainer struct{ config Config }

// New returns a Drainer.
func New(config Config) *Drainer { return &Drainer{config} }

// ErrNotAttached means that no node has the volume, so that there is no cache to change.
var ErrNotAttached = errors.New("attached to no node")

// ErrAttaching means that an attachment has begun and is not complete: the volume cannot be turned
// yet.
var ErrAttaching = errors.New("being attached")

// errGone means that there is no such volume. A node that is not there is another error.
var errGone = errors.New("the volume is gone")

// changeTime bounds how long a change of mode or options is waited for. It is about as long as a lease outlives
// its leader, so that nobody waits for a call of the former leader when its successor makes one. The change
// itself may go on for minutes: a host completes what it has begun. Until then it says that the volume writes back.
const changeTime = 4 * time.Second

// Turn makes the volume write through for the owner. It returns the volume as it is on record
// afterwards. The error is authority.ErrRefused if the owner may not claim it.
func (d *Drainer) Turn(ctx context.Context, volume, owner string) (*v1alpha1.CacheVolume, error) {
	v, done, err := d.begin(ctx, volume, "turn on write-through", anybody)
	if err != nil {
		return nil, err
	}
	defer done()
	if v.Status.UncachedAttached() {
		return v, nil // there is no cache to turn
	}
	status, err := d.device(ctx, v)
	if err != nil {
		return v, err
	}
	if !slices.Contains(authority.Claims(v), owner) {
		if err := authority.MayBegin(v, owner); err != nil {
			return v, err
		}
		v.Status.WriteThrough = append(current(v), v1alpha1.WriteThroughClaim{
			Owner: owner, Epoch: v.Status.Epoch, Since: metav1.NewTime(d.config.Now()),
		})
		if err := d.write(ctx, v, "it writes through for "+owner); err != nil {
			return v, err
		}
		crashpoint.Reach("drain/claimed")
	}
	if status.Mode == escache.ModeWritethrough {
		return v, nil
	}
	if authority.InCeph(v) {
		// The mode was changed by somebody else. What was written since may be in the cache only.
		if err := d.toCache(ctx, v); err != nil {
			return v, err
		}
	}
	err = d.setMode(ctx, v, escache.ModeWritethrough)
	crashpoint.Reach("drain/turned")
	return v, err
}

// Settle moves the truth to Ceph if the volume is clean and writes through. It reports whether the
// truth is there, and returns the holder's answer.
func (d *Drainer) Settle(ctx context.Context, volume string) (bool, escache.VolumeStatus, error) {
	none := escache.VolumeStatus{}
	v, done, err := d.begin(ctx, volume, "drain check", anybody)
	if err != nil {
		return false, none, err
	}
	defer done()
	if v.Status.AttachedNode == "" {
		return false, none, fmt.Errorf("volume %s is %w", volume, ErrNotAttached)
	}
	answer, err := d.config.Hosts.Status(ctx, v.Status.AttachedNode, cachevolume.Ref(v))
	holder := authority.Heard(v, v.Status.AttachedNode, answer, err)
	status, err := holder.Status()
	if err != nil {
		return false, status, err
	}
	if v.Status.UncachedAttached() {
		return true, status, nil
	}
	if !authority.Drained(v, holder) {
		if authority.InCeph(v) && len(authority.Claims(v)) > 0 && connected(status) {
			return false, status, d.toCache(ctx, v)
		}
		return false, status, nil
	}
	if authority.InCeph(v) {
		return true, status, nil
	}
	now := metav1.NewTime(d.config.Now())
	v.Status.Authority, v.Status.LastFlushTime = v1alpha1.AuthorityCeph, &now
	v.Status.SetDirtyBytes(0)
	if err := d.write(ctx, v, "everything is in Ceph and stays there"); err != nil {
		return false, status, err
	}
	crashpoint.Reach("drain/settled")
	return true, status, nil
}

// Restore ends the owner's claim. When the last claim ends, the volume's own mode returns. A volume
// that is gone, or has moved since, is success. The error is authority.ErrRefused if the claim may not end yet.
func (d *Drainer) Restore(ctx context.Context, volume, owner string) error {
	claims := func(v *v1alpha1.CacheVolume) bool { return slices.Contains(authority.Claims(v), owner) }
	v, done, err := d.begin(ctx, volume, "return to the volume's own mode", claims)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer done()
	mine := func(c v1alpha1.WriteThroughClaim) bool { return c.Owner == owner }
	if !slices.ContainsFunc(v.Status.WriteThrough, mine) {
		return nil
	}
	if err := authority.MayEnd(v, owner); err != nil {
		return err
	}
	last := slices.Equal(authority.Claims(v), []string{owner})
	if last {
		// The mode changes also if it should be the same: the claim may not have turned the volume, and
		// its own mode may be another one since.
		if authority.InCeph(v) && v.Spec.CacheMode != v1alpha1.CacheModeWritethrough {
			if err := d.toCache(ctx, v); err != nil {
				return err
			}
			crashpoint.Reach("drain/to_cache")
		}
		if err := d.setMode(ctx, v, escache.Mode(v.Spec.CacheMode)); err != nil && !gone(err) {
			return err
		}
		crashpoint.Reach("drain/restored")
	}
	v.Status.WriteThrough = slices.DeleteFunc(v.Status.WriteThrough, mine)
	if last {
		v.Status.Authority = v1alpha1.AuthorityCache // also of a volume that always writes through, as its attachment had it
	}
	return d.write(ctx, v, "it no longer writes through for "+owner)
}

func anybody(*v1alpha1.CacheVolume) bool { return true }

// begin reads a volume under its lock, which done ends. Before that, without the lock, the holder has
// to answer, if it needs to be asked. The error is errGone if there is no such volume.
func (d *Drainer) begin(
	ctx context.Context, volume, operation string, needed func(*v1alpha1.CacheVolume) bool,
) (v *v1alpha1.CacheVolume, done func(), err error) {
	if err := d.answers(ctx, volume, needed); err != nil {
		return nil, nil, err
	}
	if done, err = d.config.Locks.Begin(volume, operation); err != nil {
		return nil, nil, err
	}
	if v, err = d.read(ctx, volume); err != nil {
		done()
		return nil, nil, err
	}
	return v, done, nil
}

// device returns the holder's status of the volume, if its device is there and used by a pod.
func (d *Drainer) device(ctx context.Context, v *v1alpha1.CacheVolume) (escache.VolumeStatus, error) {
	none, node := escache.VolumeStatus{}, v.Status.AttachedNode
	switch {
	case node == "":
		return none, fmt.Errorf("volume %s is %w", v.Name, ErrNotAttached)
	case v.Status.FlushAttached():
		return none, fmt.Errorf("volume %s is %w to node %s by the driver itself, which writes it back", v.Name, ErrAttaching, node)
	case authority.InCeph(v) && len(authority.Claims(v)) == 0:
		return none, fmt.Errorf("volume %s is %w to node %s", v.Name, ErrAttaching, node)
	}
	status, err := d.config.Hosts.Status(ctx, node, cachevolume.Ref(v))
	if err == nil && !connected(status) {
		err = fmt.Errorf("volume %s is %w to node %s: its device is not there", v.Name, ErrAttaching, node)
	}
	return status, err
}

// answers asks the volume's holder, without the volume's lock. It returns nil if there is no
// holder, or if none needs to be asked.
func (d *Drainer) answers(ctx context.Context, volume string, needed func(*v1alpha1.CacheVolume) bool) error {
	v, err := d.read(ctx, volume)
	if errors.Is(err, errGone) {
		return nil // what follows says so, or takes it for success
	}
	if err != nil || v.Status.AttachedNode == "" || !needed(v) {
		return err
	}
	_, err = d.config.Hosts.Status(ctx, v.Status.AttachedNode, cachevolume.Ref(v))
	return err
}

// toCache records that data may be dirty from now on. Which copies are current stays as it is.
func (d *Drainer) toCache(ctx context.Context, v *v1alpha1.CacheVolume) error {
	v.Status.Authority = v1alpha1.AuthorityCache
	return d.write(ctx, v, "its cache may be dirty")
}

func (d *Drainer) setMode(ctx context.Context, v *v1alpha1.CacheVolume, mode escache.Mode) error {
	ctx, cancel := context.WithTimeout(ctx, changeTime)
	defer cancel()
	if err := d.config.Hosts.SetMode(ctx, cachevolume.On(v, v.Status.AttachedNode), mode); err != nil {
		return fmt.Errorf("turn volume %s to %s on node %s: %w", v.Name, mode, v.Status.AttachedNode, err)
	}
	return nil
}

// gone reports whether the device is gone. It comes back in the mode that is on record.
func gone(err error) bool {
	problem, answered := errors.AsType[*escache.Problem](err)
	return answered && (problem.Code == escache.CodeNotConnected || problem.Code == escache.CodeNotFound)
}

func connected(s escache.VolumeStatus) bool {
	return s.State != escache.StateAbsent && s.State != escache.StateStandby && s.Device != ""
}

// current returns the claims that count. The others have ended with their attachment.
func current(v *v1alpha1.CacheVolume) []v1alpha1.WriteThroughClaim {
	ended := func(c v1alpha1.WriteThroughClaim) bool { return c.Epoch != v.Status.Epoch }
	return slices.DeleteFunc(slices.Clone(v.Status.WriteThrough), ended)
}

func (d *Drainer) read(ctx context.Context, volume string) (*v1alpha1.CacheVolume, error) {
	v := &v1alpha1.CacheVolume{}
	err := d.config.Live.Get(ctx, client.ObjectKey{Name: volume}, v)
	if apierrors.IsNotFound(err) {
		err = fmt.Errorf("%w: %w", errGone, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read volume %s: %w", volume, err)
	}
	return v, nil
}

func (d *Drainer) write(ctx context.Context, v *v1alpha1.CacheVolume, what string) error {
	v.Status.Summarize()
	if err := d.config.Client.Status().Update(ctx, v); err != nil {
		return fmt.Errorf("record of volume %s that %s: %w", v.Name, what, err)
	}
	return nil
}
