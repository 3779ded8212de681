package authority

import (
	"errors"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// Report is what is known about a volume on one host. Make it with [Heard] or [HeardOf], which do
// not believe every answer. The zero Report is that of a host that nobody has asked.
type Report struct {
	known  bool
	status escache.VolumeStatus
	// doubt says why nothing is known.
	doubt error
	// stranger means that another machine has the node's name, and has a replica of the volume.
	stranger bool
	// keeps says why the host did not give up its device when it was asked to; nil if it was not asked, or did so.
	keeps error
}

// Reasons not to believe an answer.
var (
	errNotAsked = errors.New("nobody has asked it")
	// errOtherHost means that another machine answers in the host's place.
	errOtherHost = errors.New("another machine answers in its place")
	// errLost means that the host itself answers that the replica, which it has on record, is gone.
	// The kernel may still have the device, and the replica may be somewhere else.
	errLost = errors.New("it has no replica any more")
	// ErrRecordBehind means that the host has seen a later attachment than the record speaks of: the
	// record was read too early, or it was set back, for example by restoring an old etcd.
	ErrRecordBehind = fmt.Errorf("the record is older than the host's disks: %w", ErrRefused)
)

// Heard judges a host's answer about a volume, or the error that came instead. The answer counts only if
// all of this is true. It comes from the machine on which the record says the replica was created. It is
// of no later attachment than the record. It does not deny a replica that may hold the truth.
func Heard(v *v1alpha1.CacheVolume, node string, status escache.VolumeStatus, err error) Report {
	return heard(v, node, v.Status.HostID(node), status, err)
}

// HeardOf is Heard for the host of a fenced client: only the machine that was fenced can say what
// became of its map.
func HeardOf(v *v1alpha1.CacheVolume, client v1alpha1.FencedClient, status escache.VolumeStatus, err error) Report {
	return heard(v, client.Node, client.HostID, status, err)
}

func heard(v *v1alpha1.CacheVolume, node, hostID string, status escache.VolumeStatus, err error) Report {
	doubt := func(format string, args ...any) Report { return Report{doubt: fmt.Errorf(format, args...)} }
	switch {
	case err != nil:
		return Report{doubt: err}
	case status.State == "":
		return doubt("its answer has no state")
	case status.Node != "" && status.Node != node:
		return doubt("%w: it calls itself %s", errOtherHost, status.Node)
	case hostID != "" && status.HostID != hostID:
		r := doubt("%w: its host id is %q, on record is %q", errOtherHost, status.HostID, hostID)
		r.stranger = status.State != escache.StateAbsent
		return r
	case status.Epoch > v.Status.Epoch:
		return doubt("%w: the host has seen epoch %d, the record says %d", ErrRecordBehind, status.Epoch, v.Status.Epoch)
	case status.State == escache.StateAbsent && v.Spec.HasReplica(node) && !InCeph(v):
		return Report{doubt: errLost}
	}
	return Report{known: true, status: status}
}

// Status returns what the host says, or why nothing is known.
func (r Report) Status() (escache.VolumeStatus, error) {
	if r.known {
		return r.status, nil
	}
	if r.doubt == nil {
		return escache.VolumeStatus{}, errNotAsked
	}
	return escache.VolumeStatus{}, r.doubt
}

// doubted returns why nothing is known, nil if the answer counts.
func (r Report) doubted() error {
	_, err := r.Status()
	return err
}

// elsewhere returns an error if what was asked for is not on the host that answers: the machine is
// another one, or the replica is gone.
func (r Report) elsewhere() error {
	switch {
	case errors.Is(r.doubt, errLost), errors.Is(r.doubt, errOtherHost):
		return r.doubt
	case r.known && r.status.State == escache.StateAbsent:
		return errLost
	}
	return nil
}

// absent reports whether the machine on record answers that it has nothing of the volume. No dev_connect
// with a cache succeeds there then.
func (r Report) absent() bool {
	return errors.Is(r.doubt, errLost) || r.known && r.status.State == escache.StateAbsent
}

// connected reports whether the host may still write to the image: it has the device, or it is not
// certain that it has none.
func (r Report) connected() bool { return !r.known || HasDevice(r.status) }

// HasDevice reports whether a host that answers so has a volume's device, or its image mapped, or may
// have. It may have if a dev_connect has not ended there.
func HasDevice(s escache.VolumeStatus) bool {
	if s.Connecting {
		return true
	}
	switch s.State { //nolint:exhaustive // every other state, also one of a later API, may write
	case escache.StateAbsent, escache.StateStandby:
		return s.Role == escache.RolePrimary || s.ClientAddress != ""
	case escache.StateError:
		return s.Role == escache.RolePrimary || s.ClientAddress != "" || s.Device != ""
	default:
		return true
	}
}

// device says what the host has of the volume's device, and why it keeps it if it was asked to give it up.
func (r Report) device() string {
	state := string(r.status.State)
	if r.status.Connecting {
		state = "being connected"
	}
	if r.keeps != nil {
		return state + "; asked to give it up, it answered: " + r.keeps.Error()
	}
	return state
}

// clean reports whether the host's own replica is current and has nothing dirty, and stays so.
func (r Report) clean() bool {
	return r.current() && r.status.DirtyBytes != nil && *r.status.DirtyBytes == 0 && !r.written()
}

// unused reports whether nothing was ever written to the host's replica, and no peer fills it. No device was ever
// connected on it then.
func (r Report) unused() bool {
	return r.known && r.status.State == escache.StateStandby && r.status.DiskState == escache.DiskInconsistent &&
		r.status.DirtyBytes != nil && *r.status.DirtyBytes == 0 && !r.written()
}

// written reports whether the host's replica has a linked peer that is Primary, and so may write to
// it at any moment.
func (r Report) written() bool {
	return slices.ContainsFunc(r.status.Peers, func(p escache.Peer) bool { return p.Role == escache.RolePrimary && p.Linked() })
}

// current reports whether the host's replica is a standby that has all acknowledged writes.
func (r Report) current() bool {
	return r.known && r.status.State == escache.StateStandby && r.status.DiskState == escache.DiskUpToDate
}
