package engine

import (
	"context"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/krbd"
)

type worldImages world

func (i *worldImages) Map(_ context.Context, _, pool, image string) (krbd.Device, error) {
	if err := (*world)(i).step("map"); err != nil {
		return krbd.Device{}, err
	}
	if i.mapErr != nil {
		return krbd.Device{}, i.mapErr
	}
	if len(i.maps) > 0 {
		i.t.Errorf("mapped twice")
	}
	i.maps = append(i.maps, i.image)
	return i.image, nil
}

func (i *worldImages) Unmap(context.Context, string, int) error {
	if err := (*world)(i).step("unmap"); err != nil {
		return err
	}
	if len(i.dm) > 0 {
		return krbd.ErrBusy
	}
	i.maps = nil
	return nil
}

func (i *worldImages) Find(string, string) ([]krbd.Device, error) { return i.maps, nil }
func (i *worldImages) Available() bool                            { return true }

type worldCaches world

func (c *worldCaches) Path(name string) string { return "/dev/mapper/" + name }

func (c *worldCaches) Devices(_ context.Context, prefix string) (map[string]writecache.Device, error) {
	out := map[string]writecache.Device{}
	for name, dev := range c.dm {
		if strings.HasPrefix(name, prefix) {
			dev.Blocks, dev.Free = 1000, 1000-c.dirty/writecache.BlockBytes
			out[name] = dev
		}
	}
	return out, nil
}

func (c *worldCaches) Create(_ context.Context, name string, t writecache.Table) error {
	if err := (*world)(c).step("dm create %s", name); err != nil {
		return err
	}
	(*world)(c).formatLikeTheKernel(t.Cache)
	if t.Origin == c.image.Path() {
		t.Origin = c.image.Number
	}
	c.dm[name] = writecache.Device{Table: t}
	return nil
}

func (c *worldCaches) Expose(_ context.Context, name string, size int64) error {
	if _, ok := c.dm[name]; !ok {
		c.t.Errorf("nothing to expose of %s", name)
	}
	if c.exposed[name] == size {
		return nil
	}
	if err := (*world)(c).step("expose %d bytes", size); err != nil {
		return err
	}
	c.exposed[name] = size
	return nil
}

// formatLikeTheKernel writes a superblock where there are zeros.
func (w *world) formatLikeTheKernel(cache string) {
	block := w.blocks(cache)[writecache.HeaderBytes:]
	if strings.Trim(string(block[:writecache.BlockBytes]), "\x00") == "" {
		copy(block, superblock)
	}
}

var superblock = []byte{0x21, 0x93, 0x48, 0x23, 1, 0, 0, 0, 0, 16, 0, 0, 0, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0, 1}

func (c *worldCaches) Remove(_ context.Context, name string) error {
	if _, ok := c.dm[name]; !ok {
		return nil
	}
	if err := (*world)(c).step("dm remove %s", name); err != nil {
		return err
	}
	if c.dm[name].Open > 0 {
		return writecache.ErrOpen
	}
	if st := c.minors[(*world)(c).minorOf(name)]; st.Suspended {
		c.t.Errorf("removed over frozen I/O: that would never end")
	}
	delete(c.dm, name)
	delete(c.exposed, name)
	return nil
}

func (c *worldCaches) Reload(ctx context.Context, name string, t writecache.Table) error {
	if err := (*world)(c).step("dm suspend"); err != nil {
		return err
	}
	dev := c.dm[name]
	dev.Suspended = true
	c.dm[name] = dev
	return c.LoadAndResume(ctx, name, t)
}

func (c *worldCaches) LoadAndResume(_ context.Context, name string, t writecache.Table) error {
	if err := (*world)(c).step("dm load and resume"); err != nil {
		return err
	}
	dev := c.dm[name]
	dev.Table, dev.Suspended, dev.Error = t, false, false
	c.dm[name] = dev
	return nil
}

func (c *worldCaches) FlushOnce(_ context.Context, name string, _ time.Duration) error {
	if err := (*world)(c).step("flush"); err != nil {
		return err
	}
	dev := c.dm[name]
	if dev.Error = dev.Error || c.cephRefuses; dev.Error {
		c.dm[name] = dev
		return &command.ExitError{Command: "dmsetup message flush", Code: 1, Stderr: "Input/output error"}
	}
	c.dirty = 0
	return nil
}

func (c *worldCaches) Quiesce(_ context.Context, name string) error {
	if err := (*world)(c).step("quiesce"); err != nil {
		return err
	}
	dev := c.dm[name]
	dev.Suspended = true
	c.dm[name] = dev
	return nil
}

type worldDisks world

// blocks are those of a DRBD device or of the LV below it.
func (w *world) blocks(path string) []byte {
	for _, r := range w.files {
		if path == drbd.Device(r.Minor) {
			path = r.Disk
		}
	}
	if len(w.disk[path]) < 2<<20 {
		w.disk[path] = append(w.disk[path], make([]byte, 2<<20)...)
	}
	return w.disk[path]
}

func (d *worldDisks) Read(_ context.Context, _, path string, offset, n int64) ([]byte, error) {
	return append([]byte(nil), (*world)(d).blocks(path)[offset:offset+n]...), nil
}

func (d *worldDisks) Write(_ context.Context, _, path string, offset int64, data []byte) error {
	if err := (*world)(d).step("write %d bytes at %d", len(data), offset); err != nil {
		return err
	}
	copy((*world)(d).blocks(path)[offset:], data)
	return nil
}

func (d *worldDisks) CountDirty(context.Context, string, string, int64) (int64, error) {
	d.looks++
	return d.dirty, d.lookErr
}

type worldKernel struct{}

func (worldKernel) Load(context.Context) error { return nil }
func (worldKernel) Describe(context.Context) escache.Kernel {
	return escache.Kernel{Release: "6.1", DRBD: "8.4.11", Writecache: "1.6.0", RBD: true}
}
