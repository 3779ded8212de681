package lvm

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/command"
)

const mib = 1 << 20

// disks is a real LVM without device-mapper, over loop devices. It changes metadata only, so nothing is activated.
type disks struct {
	t     *testing.T
	paths []string
}

// newDisks makes the volume group vg over so many disks.
func newDisks(t *testing.T, n int) *disks {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("needs root: it uses loop devices")
	}
	if _, err := exec.LookPath("lvm"); err != nil {
		t.Skip("needs lvm2")
	}
	d := &disks{t: t}
	for i := range n {
		file := filepath.Join(t.TempDir(), fmt.Sprint("disk", i))
		d.check(os.WriteFile(file, nil, 0o600))
		d.check(os.Truncate(file, 64*mib))
		loop := strings.TrimSpace(d.run("losetup", "--find", "--show", file))
		t.Cleanup(func() { d.run("losetup", "--detach", loop) })
		d.paths = append(d.paths, loop)
	}
	t.Setenv("LVM_SYSTEM_DIR", t.TempDir())
	d.see(d.paths...)
	d.run("lvm", append([]string{"vgcreate", "vg"}, d.paths...)...)
	return d
}

// see lets LVM find these disks only.
func (d *disks) see(paths ...string) {
	d.t.Helper()
	filter := ""
	for _, path := range paths {
		filter += fmt.Sprintf(`"a|^%s$|", `, path)
	}
	dir := os.Getenv("LVM_SYSTEM_DIR")
	d.check(os.WriteFile(filepath.Join(dir, "lvm.conf"), fmt.Appendf(nil, `global { activation=0 locking_dir=%q }
devices { use_devicesfile=0 scan_lvs=0 global_filter=[%s"r|.*|"] }
backup { backup=0 archive=0 }
`, dir, filter), 0o600))
}

func (d *disks) run(name string, args ...string) string {
	d.t.Helper()
	out, err := exec.Command(name, args...).Output()
	if err != nil {
		d.t.Fatalf("%s %q: %v", name, args, err)
	}
	return string(out)
}

func (d *disks) check(err error) {
	d.t.Helper()
	if err != nil {
		d.t.Fatal(err)
	}
}

// volumes returns the names of the volumes, and of those on a missing disk.
func (d *disks) volumes(g *Group) (all, partial string) {
	d.t.Helper()
	for _, readOnly := range []bool{true, false} {
		lvs, err := g.Volumes(d.t.Context(), readOnly)
		d.check(err)
		all, partial = "", ""
		for _, lv := range lvs {
			all += lv.Name
			if lv.Partial {
				partial += lv.Name
			}
		}
	}
	return all, partial
}

// TestOneOfSeveralDisksIsLost is what docs/sizing.md says about a volume group over several disks.
func TestOneOfSeveralDisksIsLost(t *testing.T) {
	d := newDisks(t, 2)
	g, tags := New("vg", command.NewExec()), map[string]string{"pool": "rbd"}
	for _, name := range []string{"a", "b", "c"} { // two on the first disk, one on the second
		d.check(g.Create(t.Context(), name, 24*mib, tags))
	}
	before, err := g.Space(t.Context())
	if err != nil || before.Missing != 0 || before.Free != 48*mib {
		t.Fatalf("%+v, %v", before, err)
	}
	if _, partial := d.volumes(g); partial != "" {
		t.Fatalf("%q are partial", partial)
	}

	d.see(d.paths[0])
	space, err := g.Space(t.Context())
	if err != nil || space.Missing != 1 || space.Free != 0 || space.Capacity != before.Capacity || space.GroupID != before.GroupID {
		t.Errorf("%+v, %v: LVM creates nothing beside a missing disk, and the host stays the same", space, err)
	}
	if all, partial := d.volumes(g); all != "abc" || partial != "c" {
		t.Errorf("of %q %q are partial", all, partial)
	}
	err = g.Create(t.Context(), "d", 4*mib, tags)
	if !errors.Is(err, ErrNoRoom) || !strings.Contains(err.Error(), "vgreduce --removemissing") {
		t.Errorf("%v does not say what to do", err)
	}
	for _, name := range []string{"a", "c"} { // the tags of all volumes can still be changed
		d.check(g.Retag(t.Context(), name, tags, map[string]string{"pool": "rbd", "epoch": "2"}))
	}
	if was, err := g.Remove(t.Context(), "c"); !was || err != nil {
		t.Errorf("a replica on the lost disk is not removed: %v, %v", was, err)
	}

	d.run("lvm", "vgreduce", "--removemissing", "--force", "vg")
	space, err = g.Space(t.Context())
	if err != nil || space.Missing != 0 || space.Free != 12*mib || space.GroupID != before.GroupID {
		t.Errorf("%+v, %v", space, err)
	}
	d.check(g.Create(t.Context(), "d", 4*mib, tags))
	if all, partial := d.volumes(g); all != "abd" || partial != "" {
		t.Errorf("of %q %q are partial", all, partial)
	}
}

// TestACacheMaySpanDisks: it is lost with either of them.
func TestACacheMaySpanDisks(t *testing.T) {
	d := newDisks(t, 2)
	g := New("vg", command.NewExec())
	d.check(g.Create(t.Context(), "a", 80*mib, map[string]string{"pool": "rbd"}))
	for _, kept := range d.paths {
		d.see(kept)
		if _, partial := d.volumes(g); partial != "a" {
			t.Errorf("with only %s, %q are partial", kept, partial)
		}
	}
}
