package writecache

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/devmapper"
)

// Devices implements Mapper.
func (h *host) Devices(_ context.Context, prefix string, use func(map[string]devmapper.Device) error) error {
	h.mu.Lock()
	out := map[string]devmapper.Device{}
	for name, d := range h.devices {
		if !strings.HasPrefix(name, prefix) {
			continue
		}
		shown := devmapper.Device{Target: d.target, Sectors: d.sectors, Table: d.table, Open: d.open, Suspended: d.suspended}
		if d.target == target {
			failed := 0
			if d.failed {
				failed = 1
			}
			shown.Status = fmt.Sprintf("%d %d %d 0 7 3 20 4 5 0 11 0 2 0", failed, cacheBlocks, cacheBlocks-h.dirtyBlocks())
		}
		out[name] = shown
	}
	h.mu.Unlock()
	return use(out)
}

// Version implements Mapper.
func (h *host) Version(_ context.Context, of string) (string, error) { return of + " 1.6.0", nil }

// Create implements Mapper. Where there is no superblock the kernel makes one.
func (h *host) Create(_ context.Context, _, name, table string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.devices[name] != nil {
		return fmt.Errorf("create ioctl on %s failed: Device or resource busy", name)
	}
	if err := h.step("create %s", name); err != nil {
		return err
	}
	d := &dmDevice{}
	d.take(table)
	if d.target == target && cache.Blank(h.disk[superblockAt:superblockAt+cache.BlockBytes]) {
		h.format()
	}
	h.devices[name] = d
	return nil
}

// take puts a table in effect, as the kernel prints it: with numbers for paths.
func (d *dmDevice) take(table string) {
	start := 0
	if _, err := fmt.Sscanf(table, "%d %d %s", &start, &d.sectors, &d.target); err != nil {
		panic(err)
	}
	arguments := append(strings.SplitN(table, " ", 4), "")[3] // the target error has none
	d.table = strings.NewReplacer(originPath, originNumber, diskPath, diskNumber).Replace(arguments)
}

// Remove implements Mapper.
func (h *host) Remove(_ context.Context, _, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	d := h.devices[name]
	if d == nil {
		return nil
	}
	if err := h.step("remove %s", name); err != nil {
		return err
	}
	if d.open > 0 {
		return devmapper.ErrOpen
	}
	delete(h.devices, name)
	return nil
}

// Suspend implements Mapper. A failing origin does not make it fail, but with the error set it
// aborts the journal of a file system.
func (h *host) Suspend(_ context.Context, _, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("suspend %s", name); err != nil {
		return err
	}
	d := h.devices[name]
	if d.failed {
		h.t.Errorf("%s is suspended with an error: that aborts a file system", name)
	}
	if d.flushOnSuspend {
		_ = h.writeBack(d)
	}
	d.suspended, d.flushOnSuspend = true, false
	return nil
}

// SuspendNoFlush implements Mapper.
func (h *host) SuspendNoFlush(_ context.Context, _, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("suspend --noflush %s", name); err != nil {
		return err
	}
	h.devices[name].suspended = true
	return nil
}

// Load implements Mapper.
func (h *host) Load(_ context.Context, _, name, table string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("load %s", name); err != nil {
		return err
	}
	h.devices[name].nextTable = table
	return nil
}

// Resume implements Mapper. With the error set and no table loaded, the cache looks empty
// afterwards: what was dirty is lost.
func (h *host) Resume(_ context.Context, _, name string) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("resume %s", name); err != nil {
		return err
	}
	d := h.devices[name]
	switch {
	case d.nextTable != "":
		d.take(d.nextTable)
		d.failed = false
	case d.failed:
		for i := range cacheBlocks {
			h.free(i)
		}
	}
	d.suspended, d.nextTable = false, ""
	h.resumed.Broadcast()
	return nil
}

// Message implements Mapper.
func (h *host) Message(_ context.Context, _, name, text string, _ time.Duration) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if err := h.step("message %s %s", name, text); err != nil {
		return err
	}
	d := h.devices[name]
	if d == nil {
		return fmt.Errorf("message ioctl on %s failed: No such device or address", name)
	}
	switch text {
	case "flush":
		return h.writeBack(d)
	case "cleaner":
		_ = h.writeBack(d) // nobody waits for it
		return nil
	case "flush_on_suspend":
		d.flushOnSuspend = true
		return nil
	}
	return fmt.Errorf("%q: Invalid argument", text)
}
