package drbd

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Words of /proc/drbd.
const (
	Connected  = escache.LinkConnected
	StandAlone = escache.LinkStandAlone

	UpToDate     = escache.DiskUpToDate
	Consistent   = escache.DiskConsistent
	Outdated     = escache.DiskOutdated
	Inconsistent = escache.DiskInconsistent
	Diskless     = escache.DiskDiskless

	Primary   = "Primary"
	Secondary = "Secondary"
)

// Status is one device as the kernel sees it.
type Status struct {
	Connection escache.LinkState
	Role       string
	PeerRole   string
	Disk       escache.DiskState
	PeerDisk   escache.DiskState
	// Suspended is true while the kernel keeps I/O frozen. That includes a Primary that runs its
	// handler for a failed disk: it sends nothing to its peer before the handler ends.
	Suspended bool
	// SyncedPercent is 100 unless a resync runs.
	SyncedPercent float64
	// ResyncKiBPerSecond is how fast a resync is, the average of about 18 seconds. ResyncLeft is the time
	// left at that rate, to the second; without a rate it means nothing. Both are 0 if no resync runs.
	ResyncKiBPerSecond int64
	ResyncLeft         time.Duration
	// OutOfSyncKiB is the amount of data in which the two copies differ.
	OutOfSyncKiB int64
	// DiskWrittenKiB counts writes to the local disk. Two equal readings mean that nothing changed.
	DiskWrittenKiB int64
}

// Linked reports whether the replicas exchange data. See escache.LinkState.Linked.
func (s Status) Linked() bool { return s.Connection.Linked() }

// Resyncing reports whether one replica is being copied to the other now.
func (s Status) Resyncing() bool {
	return s.Connection == escache.LinkSyncSource || s.Connection == escache.LinkSyncTarget
}

// Negotiating reports whether DRBD is still finding out whether the local copy is current: it
// attaches the disk, or the two ends compare what they have missed. That takes moments and ends in
// Connected, a resync or a lost link. Negotiating is not the opposite of Linked: its last steps run
// over a link that is up.
func (s Status) Negotiating() bool {
	switch s.Connection { //nolint:exhaustive // in all other states DRBD knows it, or is not finding it out
	case escache.LinkWFReportParams, escache.LinkWFBitMapT, escache.LinkWFSyncUUID, escache.LinkStartingSyncT:
		return true
	}
	return s.Disk == escache.DiskAttaching || s.Disk == escache.DiskNegotiating
}

// Current reports whether the local disk certainly has every acknowledged write: it is UpToDate,
// and the peer is either linked or known to be outdated.
func (s Status) Current() bool { return s.Disk == UpToDate && (s.Linked() || s.PeerDisk == Outdated) }

// Table is all of /proc/drbd, by minor.
type Table struct {
	Version string
	Devices map[int]Status
	// Unconfigured are minors that the kernel has without a disk and a link, and that are not Primary. /proc/drbd has no
	// more of them.
	Unconfigured []int
}

// Proc reads /proc/drbd. One read has the state of all devices. It starts no child and cannot
// block, even if a device is stuck.
type Proc struct{ Path string }

// Read parses the file. A kernel without DRBD gives an empty Version.
func (p Proc) Read() (Table, error) {
	f, err := os.Open(p.Path)
	if os.IsNotExist(err) {
		return Table{}, nil
	}
	if err != nil {
		return Table{}, fmt.Errorf("DRBD status: %w", err)
	}
	defer func() { _ = f.Close() }()
	return parse(f)
}

var (
	// The character between disk states and flags is the protocol, or a blank without a link.
	deviceLine = regexp.MustCompile(`^\s*(\d+): cs:(\w+)(?: ro:(\w+)/(\w+) ds:(\w+)/(\w+) . (\S+))?`)
	counters   = regexp.MustCompile(`\b(dw|oos):(\d+)`)
	synced     = regexp.MustCompile(`sync'ed:\s*([0-9.]+)%`)
	// An online verify has this line too.
	speed = regexp.MustCompile(`finish: (\d{1,6}):(\d\d):(\d\d) speed: ([0-9,]+) `)
)

func parse(r io.Reader) (Table, error) {
	t := Table{Devices: map[int]Status{}}
	minor := -1
	scan := bufio.NewScanner(r)
	for scan.Scan() {
		line := scan.Text()
		if v, ok := strings.CutPrefix(line, "version: "); ok {
			t.Version, _, _ = strings.Cut(v, " ")
			continue
		}
		if m := deviceLine.FindStringSubmatch(line); m != nil {
			minor, _ = strconv.Atoi(m[1])
			if escache.LinkState(m[2]) == escache.LinkUnconfigured {
				t.Unconfigured = append(t.Unconfigured, minor)
				minor = -1
				continue
			}
			t.Devices[minor] = Status{
				Connection: escache.LinkState(m[2]), Role: m[3], PeerRole: m[4],
				Disk: escache.DiskState(m[5]), PeerDisk: escache.DiskState(m[6]),
				Suspended:     strings.HasPrefix(m[7], "s") || m[3] == Primary && escache.DiskState(m[5]) == escache.DiskFailed,
				SyncedPercent: 100,
			}
			continue
		}
		if s, ok := t.Devices[minor]; ok {
			t.Devices[minor] = s.with(line)
		}
	}
	if err := scan.Err(); err != nil {
		return Table{}, fmt.Errorf("DRBD status: %w", err)
	}
	return t, nil
}

func (s Status) with(line string) Status {
	for _, m := range counters.FindAllStringSubmatch(line, -1) {
		n, _ := strconv.ParseInt(m[2], 10, 64)
		if m[1] == "dw" {
			s.DiskWrittenKiB = n
		} else {
			s.OutOfSyncKiB = n
		}
	}
	if m := synced.FindStringSubmatch(line); m != nil {
		s.SyncedPercent, _ = strconv.ParseFloat(m[1], 64)
	}
	if m := speed.FindStringSubmatch(line); m != nil && s.Resyncing() {
		s.ResyncKiBPerSecond, _ = strconv.ParseInt(strings.ReplaceAll(m[4], ",", ""), 10, 64)
		s.ResyncLeft, _ = time.ParseDuration(m[1] + "h" + m[2] + "m" + m[3] + "s")
	}
	return s
}
