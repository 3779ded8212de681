// Package standby knows how much is dirty in replicas that are not connected. The kernel counts
// only for assembled caches, so the disks of standbys are scanned.
package standby

import (
	"context"
	"sync"
	"time"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// Sources has what a Scanner reads.
type Sources struct {
	// Volumes lists the volumes on this host.
	Volumes func() []volume.Volume
	// Replicas reads the state of all DRBD devices.
	Replicas func() (drbd.Table, error)
	// Scan counts the dirty bytes on the local disk of a volume's cache.
	Scan func(context.Context, volume.Volume) (int64, error)
	// ReadTime returns how long a scan of a volume may take.
	ReadTime func(name string) time.Duration
	// Busy reports whether a verb has locked the volume with this name.
	Busy func(name string) bool
	Now  func() time.Time
}

// Scanner scans standbys' disks. It remembers how many dirty bytes it has found, and DRBD's count
// of written blocks at that time. The result is valid as long as that count does not change.
type Scanner struct {
	Sources

	mu    sync.Mutex
	found map[string]reading
	// counted is DRBD's count of written blocks when it was last seen.
	counted map[string]int64
}

type reading struct {
	written int64
	at      time.Time
	bytes   *int64
}

// New returns a Scanner that has scanned nothing yet.
func New(sources Sources) *Scanner {
	return &Scanner{Sources: sources, found: map[string]reading{}, counted: map[string]int64{}}
}

// Drop forgets what was found on a standby's disk.
func (s *Scanner) Drop(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.found, name)
	delete(s.counted, name)
}

// note remembers DRBD's count. If DRBD has begun to count again, as it does when a replica comes up or gets its disk
// back, the same count means something else, and what was found on the disk is forgotten.
func (s *Scanner) note(name string, st drbd.Status) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if st.DiskWrittenKiB < s.counted[name] {
		delete(s.found, name)
	}
	s.counted[name] = st.DiskWrittenKiB
}

// get returns what was found on a disk, if that is still about it.
func (s *Scanner) get(name string, st drbd.Status) (reading, bool) {
	s.note(name, st)
	s.mu.Lock()
	defer s.mu.Unlock()
	r, ok := s.found[name]
	return r, ok
}

func (s *Scanner) put(name string, r reading) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.found[name] = r
}

// Known returns the dirty bytes of a current copy that was not written to since it was scanned, or
// nil.
func (s *Scanner) Known(name string, st drbd.Status) *int64 {
	if last, ok := s.get(name, st); ok && st.Current() && last.written == st.DiskWrittenKiB {
		return last.bytes
	}
	return nil
}

// SetClean remembers that the caller has found nothing dirty on the disk of a standby in this
// state.
func (s *Scanner) SetClean(name string, st drbd.Status) {
	s.put(name, reading{written: st.DiskWrittenKiB, bytes: new(int64)})
}

// nothingFound is stored instead of the count of written blocks after a scan that failed.
const nothingFound = -1

// RereadAfter is the shortest time between two scans of one disk. It spares disks that are written
// to all the time, or that cannot be read.
const RereadAfter = 5 * time.Second

// Dirty returns the dirty bytes of a replica that is not connected, and scans its disk if it has
// to. It returns nil if the number is not certain: the copy must be current, and must not change
// during the scan.
func (s *Scanner) Dirty(ctx context.Context, v volume.Volume, st drbd.Status) *int64 {
	if !st.Current() || v.Phase != volume.Ready {
		return nil
	}
	if last, ok := s.get(v.Name(), st); ok && (last.written == st.DiskWrittenKiB || s.Now().Sub(last.at) < RereadAfter) {
		return s.Known(v.Name(), st)
	}
	r := reading{written: nothingFound, at: s.Now()}
	bytes, err := s.Scan(ctx, v)
	table, tableErr := s.Replicas()
	after, up := table.Devices[v.Minor]
	if err == nil && tableErr == nil && up && after.Current() && after.DiskWrittenKiB == st.DiskWrittenKiB {
		r.written, r.bytes = st.DiskWrittenKiB, &bytes
	}
	if known := s.Known(v.Name(), after); known != nil && r.bytes == nil {
		return known // another scan has had more time
	}
	s.put(v.Name(), r)
	return r.bytes
}

// scanTimeout bounds the scan of one disk, beside the time that reading it may take.
const scanTimeout = time.Minute

// poll is how often Watch looks for standbys that were not scanned yet.
const poll = 5 * time.Second

// Watch scans standbys' disks, one after the other, until ctx ends, so that a status of all
// volumes has their dirty bytes. It leaves out standbys whose peer is Primary: they change all the
// time, and the peer's own status has the number.
func (s *Scanner) Watch(ctx context.Context) {
	for pause.For(ctx, poll) == nil {
		s.ScanAll(ctx)
	}
}

// ScanAll scans the standbys that have changed since they were scanned.
func (s *Scanner) ScanAll(ctx context.Context) {
	volumes := s.Volumes()
	if len(volumes) == 0 {
		return
	}
	table, err := s.Replicas()
	if err != nil {
		return
	}
	for _, v := range volumes {
		st := table.Devices[v.Minor]
		s.note(v.Name(), st) // also of one that is not scanned now
		if st.Role != drbd.Secondary || st.PeerRole == drbd.Primary || s.Busy(v.Name()) {
			continue
		}
		ctx, cancel := context.WithTimeout(ctx, scanTimeout+s.ReadTime(v.Name()))
		s.Dirty(ctx, v, st)
		cancel()
	}
}
