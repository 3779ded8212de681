//go:build e2e

package chaos

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/test/labtest"
)

const (
	// takeOverRuns is how often each way is measured.
	takeOverRuns = 3
	// allowed is how much longer than by hand it may take.
	allowed = 1.3
)

// TestTakeOverTimes takes a mounted volume over from a host that has lost its power, by the
// driver's engine and by hand, and prints what each step took and the ratio of the two. Kubernetes'
// own waiting is not in it. The times of the kernel's steps are those of its log.
func TestTakeOverTimes(t *testing.T) {
	if labtest.CoreOnly() {
		t.Skip("not in the core")
	}
	lab := labtest.Open(t)
	var byHand, byEngine []float64
	for range takeOverRuns {
		t.Run("by hand", func(t *testing.T) { byHand = append(byHand, takeOverTimes(t, lab, (*scene).takeByHand)) })
		t.Run("by the engine", func(t *testing.T) { byEngine = append(byEngine, takeOverTimes(t, lab, (*scene).takeByEngine)) })
	}
	if t.Failed() {
		return
	}
	slices.Sort(byHand)
	slices.Sort(byEngine)
	fmt.Printf("power loss to mounted elsewhere: %.2f to %.2f s, by hand %.2f to %.2f s; the middle ones' ratio is %.2f, and the aim %.1f\n",
		byEngine[0], byEngine[takeOverRuns-1], byHand[0], byHand[takeOverRuns-1], byEngine[takeOverRuns/2]/byHand[takeOverRuns/2], allowed)
}

// takeOverTimes returns the seconds from the loss of power until the file system is mounted on the
// other host.
func takeOverTimes(t *testing.T, lab *labtest.Lab, take func(*scene) (device string, giveUp func())) float64 {
	s := &scene{T: t, lab: lab, n1: lab.Hosts[0], n2: lab.Hosts[1], n3: lab.Hosts[2]}
	s.open()
	s.n1.Shell(t, "mkfs.ext4 -q -E nodiscard "+s.device+" && mkdir -p /mnt/chaos && mount "+s.device+" /mnt/chaos && "+
		"dd if=/dev/urandom of=/mnt/chaos/data bs=1M count=16 conv=fsync 2>/dev/null")
	sum := s.n1.Shell(t, "sha256sum </mnt/chaos/data")
	s.n2.Shell(t, "mkdir -p /mnt/chaos; dmesg -c >/dev/null")
	clock := newClock(t, s.n2)

	begin := time.Now()
	s.powerOff(s.n1)
	off := time.Since(begin).Seconds()
	s.lab.Blocklist(t, s.client)
	fenced := time.Since(begin).Seconds()
	device, giveUp := take(s)
	taken := time.Since(begin).Seconds()
	s.n2.Shell(t, "mount "+device+" /mnt/chaos")
	mounted := time.Since(begin).Seconds()

	if now := s.n2.Shell(t, "sha256sum </mnt/chaos/data"); now != sum {
		s.check.Lost++
		t.Errorf("the file is %s on n2, and was %s on n1", now, sum)
	}
	kernel := clock.events(t, s.n2, begin)
	fmt.Printf("power is off %.2f s; client fenced %.2f s; loss noticed %s; image mapped %s; promoted %s; assembled %.2f s; mounted %.2f s\n",
		off, fenced, kernel["noticed"], kernel["mapped"], kernel["promoted"], taken, mounted)
	s.n2.Shell(t, "umount /mnt/chaos")
	giveUp()
	s.whole()
	s.finish()
	return mounted
}

func (s *scene) takeByEngine() (device string, giveUp func()) {
	s.connect(s.n2)
	return s.device, func() {}
}

// takeByHand does what somebody who knows the volume's parts would type, with all they need at
// hand: nobody is asked whether the copy is current, nothing is checked and nothing recorded. To
// give up is to leave it as the engine would have found it.
func (s *scene) takeByHand() (device string, giveUp func()) {
	s.n2.Shell(s, fmt.Sprintf(`set -e
minor=$(cd /sys/block; echo drbd*); minor=${minor#drbd}
drbdsetup disk-options $minor --fencing=dont-care
until drbdsetup primary $minor 2>/dev/null; do sleep 0.05; done
monitor=$(sed -n 's/^mon host = v1://p' /etc/ceph/ceph.conf)
user=$(sed -n 's/^\[client\.\(.*\)\]$/\1/p' /etc/ceph/*.keyring)
key=$(sed -n 's/^[[:space:]]*key = //p' /etc/ceph/*.keyring)
echo "$monitor name=$user,secret=$key,noshare,exclusive %s %s -" >/sys/bus/rbd/add_single_major
image=$(cd /sys/block; echo rbd*)
dmsetup create by-hand --table "0 $(cat /sys/block/$image/size) writecache s /dev/$image /dev/drbd$minor 4096 2 start_sector %d"`,
		s.v.Pool, s.v.Image, cache.HeaderBytes/512))
	return "/dev/mapper/by-hand", func() {
		s.n2.Shell(s, `set -e
dmsetup remove by-hand
image=$(cd /sys/block; echo rbd*)
echo ${image#rbd} >/sys/bus/rbd/remove_single_major
minor=$(cd /sys/block; echo drbd*); minor=${minor#drbd}
drbdsetup secondary $minor
drbdsetup disk-options $minor --fencing=resource-and-stonith`)
		s.connect(s.n2)
	}
}

// clock relates a host's kernel log to time here.
type clock struct {
	here  time.Time
	there float64 // seconds since the host's boot
}

func newClock(t *testing.T, h *labtest.Host) clock {
	t.Helper()
	before := time.Now()
	up := h.Shell(t, "cut -d' ' -f1 /proc/uptime")
	there, err := strconv.ParseFloat(up, 64)
	if err != nil {
		t.Fatal(err)
	}
	return clock{here: before.Add(time.Since(before) / 2), there: there}
}

// events are the steps that the kernel did, in seconds after begin.
func (c clock) events(t *testing.T, h *labtest.Host, begin time.Time) map[string]string {
	t.Helper()
	signs := map[string]string{"noticed": "peer( Primary -> Unknown", "mapped": "rbd: rbd", "promoted": "role( Secondary -> Primary"}
	found := map[string]string{"noticed": "?", "mapped": "?", "promoted": "?"}
	for line := range strings.Lines(h.Shell(t, "dmesg")) {
		stamp, text, _ := strings.Cut(strings.TrimPrefix(line, "["), "]")
		at, err := strconv.ParseFloat(strings.TrimSpace(stamp), 64)
		if err != nil {
			continue
		}
		for event, sign := range signs {
			if found[event] == "?" && strings.Contains(text, sign) {
				found[event] = fmt.Sprintf("%.2f s", c.here.Add(time.Duration((at-c.there)*float64(time.Second))).Sub(begin).Seconds())
			}
		}
	}
	return found
}
