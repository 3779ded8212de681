package engine

import (
	"context"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

type worldImages world

func (i *worldImages) Map(_ context.Context, _, pool, image string) (krbd.Device, error) {
	if err := (*world)(i).step("map"); err != nil {
		return krbd.Device{}, err
	}
	i.mapping()
	if i.mapErr != nil {
		return krbd.Device{}, i.mapErr
	}
	if len(i.maps) > 0 {
		i.t.Errorf("mapped twice")
	}
	i.maps = append(i.maps, i.image)
	return i.image, nil
}

func (i *worldImages) MapForFilesystem(ctx context.Context, volume, pool, image string) (krbd.Device, error) {
	device, err := i.Map(ctx, volume, pool, image)
	i.forFilesystem = err == nil
	return device, err
}

func (i *worldImages) MapReadOnly(ctx context.Context, volume, pool, image string) (krbd.Device, error) {
	device, err := i.Map(ctx, volume, pool, image)
	if err == nil {
		device.ReadOnly, i.maps[0].ReadOnly = true, true
	}
	return device, err
}

func (i *worldImages) Unmap(context.Context, string, int) error {
	if err := (*world)(i).step("unmap"); err != nil {
		return err
	}
	if i.mapOpen || (*world)(i).connected() > 0 {
		return krbd.ErrBusy
	}
	i.maps = nil
	return nil
}

func (i *worldImages) Find(string, string) ([]krbd.Device, error) { return i.maps, i.findErr }
func (i *worldImages) Available() bool                            { return true }

// cacheStep is a change that the cache's engine makes.
func (w *world) cacheStep(what string) error {
	err := w.step("%s", what)
	if name, removes := strings.CutPrefix(what, "remove "); err == nil && removes && w.minors[w.minorOf(name)].Suspended {
		w.t.Errorf("removed over frozen I/O: that would never end")
	}
	return err
}

// diskOf is the LV of a DRBD device.
func (w *world) diskOf(path string) string {
	for _, r := range w.files {
		if path == drbd.Device(r.Minor) {
			return r.Disk
		}
	}
	return path
}

// numberOf is a map's number from its path.
func (w *world) numberOf(path string) string {
	if path == w.image.Path() {
		return w.image.Number
	}
	return path
}

// connected is how many devices there are.
func (w *world) connected() int {
	devices := 0
	for _, engine := range w.fakes() {
		devices += len(engine.Assembled())
	}
	return devices
}

// plug makes an engine use the disks and origins of this host.
func (w *world) plug(engine *cachetest.Fake) {
	engine.Step, engine.Alias, engine.Number = w.cacheStep, w.diskOf, w.numberOf
}

// fakes are the engines of the host.
func (w *world) fakes() map[escache.Engine]*cachetest.Fake {
	all := map[escache.Engine]*cachetest.Fake{escache.EngineWritecache: w.caches}
	if w.log != nil {
		all[escache.EngineLog] = w.log
	}
	return all
}

// engines are the engines as escached gets them.
func (w *world) engines() cache.Engines {
	all := cache.Engines{}
	for name, engine := range w.fakes() {
		all[name] = engine
	}
	return all
}

// state is that of the device.
func (w *world) state() cache.State {
	all, _ := w.caches.States(context.Background(), volume.NameOf(ref))
	return all[volume.NameOf(ref)]
}

// setDirty leaves this much dirty on the disk of the volume.
func (w *world) setDirty(bytes int64) {
	w.caches.SetDirty((*worldStore)(w).Path(volume.NameOf(ref)), bytes)
}

// blocks are those of a DRBD device or of the LV below it.
func (w *world) blocks(path string) []byte { return w.caches.Raw(path) }

// looked counts what a poll must not do: reports of LVM and looks at disks.
func (w *world) looked() int { return w.reports + w.caches.Scans }

type worldKernel struct{}

func (worldKernel) Load(context.Context) error { return nil }
func (worldKernel) Describe(context.Context) (escache.Kernel, []string) {
	return escache.Kernel{Release: "6.1", DRBD: "8.4.11", Writecache: "1.6.0", RBD: true}, nil
}
