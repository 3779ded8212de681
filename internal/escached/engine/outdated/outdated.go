// Package outdated marks a replica of this host outdated if it runs without a link and the volume's record lists it,
// also after the arbiter could not be asked at the start, or if its disk has failed. It does not mark a copy that
// was booted: see [host.Host.Join].
package outdated

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/faileddisk"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// Marker asks the arbiter for records. It remembers the unasked replicas: those that were found without a link
// while the arbiter could not say whether they are outdated. It asks again about them. Until the arbiter
// answers, only its answer at the promotion keeps an outdated copy from being used.
type Marker struct {
	*host.Host

	log *slog.Logger

	mu      sync.Mutex
	unasked map[string]bool
	// silent is set when the arbiter has not answered during a recovery. The other volumes then do
	// not wait for it.
	silent bool
}

// New returns a Marker for the replicas of a host.
func New(h *host.Host, log *slog.Logger) *Marker {
	return &Marker{Host: h, log: log, unasked: map[string]bool{}}
}

// Unasked reports whether the arbiter has still to be asked about the replica with this name.
func (m *Marker) Unasked(name string) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.unasked[name]
}

func (m *Marker) setUnasked(name string, unasked bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if unasked {
		m.unasked[name] = true
	} else {
		delete(m.unasked, name)
	}
}

func (m *Marker) isSilent() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.silent
}

func (m *Marker) setSilent(silent bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.silent = silent
}

// BeginStart begins a recovery: AtStart waits for the arbiter again.
func (m *Marker) BeginStart() { m.setSilent(false) }

// AtStart marks a replica that DRBD runs at a start of the service. It does not wait for an arbiter that
// has not answered since BeginStart. An error means that the replica is outdated and could not be
// marked. Watch tries again.
func (m *Marker) AtStart(ctx context.Context, v volume.Volume) error {
	if m.isSilent() {
		m.setUnasked(v.Name(), true)
		return nil
	}
	return m.mark(ctx, v, askAtStart)
}

const (
	// askAtStart bounds the question about one replica during the recovery. At boot the arbiter
	// usually starts later than escached.
	askAtStart = 2 * time.Second
	// askEvery is how often the arbiter is asked again about unasked replicas.
	askEvery = 5 * time.Second
	// recordFresh is how old a record may be at most when a replica is marked because of it.
	recordFresh = 10 * time.Second
)

// mayBeMarked reports whether this replica may be outdated without DRBD knowing it, and may be marked. While it is
// linked, DRBD knows. A copy that was booted is not marked, unless it was on a disk that has failed.
func mayBeMarked(st drbd.Status, up, failed bool) bool {
	return up && st.Role == drbd.Secondary && !st.Linked() && (st.Disk == drbd.UpToDate || failed && st.Disk == drbd.Consistent)
}

// mark marks the replica outdated if the record lists it, or if its disk has failed and the record
// knows another current copy. It does so only then: if two hosts marked themselves on their own
// judgement, neither could be promoted without force. The caller has locked
// the volume.
func (m *Marker) mark(ctx context.Context, v volume.Volume, patience time.Duration) error {
	st, up, err := m.Replica(v.Minor)
	if err != nil {
		return err
	}
	failed := m.FailedDisks.Get(v.Name()) != faileddisk.Sound
	if v.Phase != volume.Ready || !mayBeMarked(st, up, failed) {
		m.setUnasked(v.Name(), false)
		return nil
	}
	asked := m.Now()
	record, known := m.recordOf(ctx, v, patience)
	m.setUnasked(v.Name(), !known)
	if !known {
		return nil
	}
	sameImage := record.ImageID == "" || v.ImageID == "" || record.ImageID == v.ImageID
	if !sameImage {
		return nil
	}
	switch onlyCurrent := slices.Contains(record.Outdated, v.Peer.Name); {
	case slices.Contains(record.Outdated, m.Config.Node):
	case failed && onlyCurrent:
		return m.FailedDisks.Drop(v.Name()) // there is no other copy
	case !failed:
		return nil
	}
	if m.Now().Sub(asked) > recordFresh {
		m.setUnasked(v.Name(), true)
		return nil
	}
	crashpoint.Reach("start/named_outdated")
	if err := m.Replicator.Outdate(ctx, v.Name()); err != nil {
		m.setUnasked(v.Name(), true)
		return err
	}
	if failed {
		if err := m.handOver(v); err != nil {
			return err
		}
	}
	m.log.Warn("marked the replica outdated", "pool", v.Pool, "image", v.Image)
	return nil
}

// recordOf asks the arbiter. A record that was set back, as by a restore of etcd, says nothing of the copy that
// is here. If there is no record, nothing is outdated.
func (m *Marker) recordOf(ctx context.Context, v volume.Volume, patience time.Duration) (record escache.VolumeRecord, known bool) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	record, err := m.Records.Record(ctx, v.VolumeRef)
	if err != nil && problem.Of(err).Code == escache.CodeNotFound {
		return escache.VolumeRecord{}, true
	}
	if err != nil {
		m.setSilent(true)
		return record, false
	}
	return record, record.Epoch >= v.Epoch
}

// Watch asks the arbiter again about unasked replicas, and looks after failed disks, until ctx ends.
func (m *Marker) Watch(ctx context.Context) {
	for pause.For(ctx, askEvery) == nil {
		for _, v := range m.Volumes.List() {
			if m.Unasked(v.Name()) {
				m.Ask(ctx, v.VolumeRef)
			}
			m.CheckDisk(ctx, v.VolumeRef)
		}
	}
}

// Ask asks the arbiter about one unasked replica, and marks it if it is outdated.
func (m *Marker) Ask(ctx context.Context, ref escache.VolumeRef) {
	ctx, done, err := m.TryBegin(ctx, ref, host.WorkAskRecord, host.ChangeTimeout)
	if err != nil {
		return // a verb is running; the next round asks
	}
	defer done()
	v, err := m.Known(ref)
	if err != nil {
		m.setUnasked(volume.NameOf(ref), false)
		return
	}
	if err := m.mark(ctx, v, m.Config.ArbiterTimeout); err != nil {
		m.log.Warn("the replica is outdated according to the record, but could not be marked",
			"pool", v.Pool, "image", v.Image, "error", err)
	}
}
