//go:build e2e

package host

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/labtest"
)

// removedIsErased: with wipe full, nothing that a replica held can be read from the disk below the
// volume group once the replica is removed. The other host, with the default, keeps the data between
// the headers: that shows that the test looks at the right place.
func removedIsErased(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	const config = "/etc/escache/escached.yaml"
	const restore = "cp /tmp/config " + config
	n1.Shell(t, "cp "+config+" /tmp/config; echo 'wipe: full' >> "+config)
	t.Cleanup(func() { // in case this fails on the way
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
		defer cancel()
		if _, err := n1.Try(ctx, nil, "sh", "-c", restore); err != nil {
			t.Errorf("%s keeps erasing: %v", n1.Name, err)
		}
	})
	n1.KillService(t)

	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)
	n1.Fill(t, v.Connect(t, n1).Device, 0, mib)
	const written = mib / 2 // some of its bytes are zero
	v.Flush(t, n1)
	v.Stop(t, n1)
	on1, on2 := placeOf(t, n1, v), placeOf(t, n2, v)
	for _, where := range []place{on1, on2} {
		if where.used(t) < written {
			t.Fatalf("%s: the written data is not at %+v", where.host.Name, where)
		}
	}
	v.Drop(t)
	if used := on1.used(t); used > 0 {
		t.Errorf("%s: %d bytes of the removed replica are still on the disk", n1.Name, used)
	}
	if on2.used(t) < written {
		t.Errorf("%s: the data is gone although only the headers were to be zeroed", n2.Name)
	}
	v.RemoveImage(t)
	n1.Shell(t, restore)
	n1.KillService(t)
}

// place is where a logical volume lies, or lay, on the disk of its volume group.
type place struct {
	host          *labtest.Host
	disk          string
	start, length int // in sectors of 512 bytes
}

func placeOf(t *testing.T, h *labtest.Host, v *labtest.Volume) place {
	t.Helper()
	table := h.Run(t, "dmsetup", "table", v.LogicalVolume())
	p := place{host: h}
	var from int
	if _, err := fmt.Sscanf(table, "%d %d linear %s %d", &from, &p.length, &p.disk, &p.start); err != nil || strings.Contains(table, "\n") {
		t.Fatalf("%s: %s lies at %q: %v", h.Name, v.LogicalVolume(), table, err)
	}
	p.disk = "/dev/" + h.Run(t, "sed", "-n", "s/^DEVNAME=//p", "/sys/dev/block/"+p.disk+"/uevent")
	return p
}

// used is how many bytes of the place are not zero.
func (p place) used(t *testing.T) (n int) {
	t.Helper()
	const block = 128 // sectors; LVM's extents are multiples of it
	out := p.host.Shell(t, fmt.Sprintf("dd if=%s iflag=direct bs=%d skip=%d count=%d 2>/dev/null | tr -d '\\0' | wc -c",
		p.disk, block*512, p.start/block, p.length/block))
	if _, err := fmt.Sscan(out, &n); err != nil || p.start%block != 0 || p.length%block != 0 {
		t.Fatalf("%+v: %q: %v", p, out, err)
	}
	return n
}
