package drbd

import (
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

// FuzzProc parses any text as /proc/drbd. What it says of a device must stand in the text, numbers
// are never negative, and a device that is parsed again from what was understood is the same.
func FuzzProc(f *testing.F) {
	f.Add(proc)
	f.Add("101: cs:StandAlone ro:Primary/Unknown ds:Diskless/DUnknown   s-----\n")
	f.Add(" 3: cs:SyncSource ro:Primary/Secondary ds:UpToDate/Inconsistent C r---d-\n" +
		"    ns:1 nr:0 dw:1 dr:9 al:0 bm:0 lo:0 pe:2 ua:0 ap:2 ep:1 wo:d oos:99999999999999999999\n\tsync'ed: 1.2.3% (1/2)K\n")
	f.Add(" 3: cs:SyncTarget ro:Secondary/Primary ds:Inconsistent/UpToDate C r-----\n" +
		"\t[>...] sync'ed: 0.1% (1/2)M\tfinish: 999999:59:59 speed: 99,999,999,999,999,999,999 (0 -- 7) want: 0 K/sec\n")
	f.Fuzz(func(t *testing.T, text string) {
		table, err := parse(strings.NewReader(text))
		if err != nil {
			return
		}
		for minor, s := range table.Devices {
			if minor < 0 || s.OutOfSyncKiB < 0 || s.DiskWrittenKiB < 0 || !(s.SyncedPercent >= 0) {
				t.Errorf("minor %d: %+v", minor, s)
			}
			if s.ResyncKiBPerSecond < 0 || s.ResyncLeft < 0 || !s.Resyncing() && (s.ResyncKiBPerSecond > 0 || s.ResyncLeft > 0) {
				t.Errorf("minor %d is not copied like this: %+v", minor, s)
			}
			if !strings.Contains(text, "cs:"+string(s.Connection)) || s.Connection == escache.LinkUnconfigured {
				t.Errorf("minor %d: nothing says that its connection is %q", minor, s.Connection)
			}
			if s.Current() && s.Disk != UpToDate {
				t.Errorf("minor %d counts as current: %+v", minor, s)
			}
			again, err := parse(strings.NewReader(lineOf(minor, s)))
			if err != nil || !reflect.DeepEqual(again.Devices, map[int]Status{minor: s}) {
				t.Errorf("%+v came back as %+v, %v", s, again.Devices, err)
			}
		}
	})
}

// lineOf writes a device as the kernel does.
func lineOf(minor int, s Status) string {
	if s.Role == "" {
		return fmt.Sprintf("%d: cs:%s\n%s", minor, s.Connection, countersOf(s))
	}
	flag := "r"
	if s.Suspended {
		flag = "s"
	}
	return fmt.Sprintf("%2d: cs:%s ro:%s/%s ds:%s/%s C %s-----\n%s", minor, s.Connection, s.Role, s.PeerRole, s.Disk, s.PeerDisk, flag,
		countersOf(s))
}

func countersOf(s Status) string {
	text := fmt.Sprintf("    dw:%d oos:%d\n\tsync'ed: %f%%\n", s.DiskWrittenKiB, s.OutOfSyncKiB, s.SyncedPercent)
	if s.Resyncing() {
		seconds := int(s.ResyncLeft.Seconds())
		text += fmt.Sprintf("\tfinish: %d:%02d:%02d speed: %d (1) K/sec\n", seconds/3600, seconds/60%60, seconds%60, s.ResyncKiBPerSecond)
	}
	return text
}
