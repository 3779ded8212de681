package writecache

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/command"
)

// host has device-mapper devices and loop devices on them.
type host struct {
	t       *testing.T
	devices map[string]*hostDevice
	loops   map[string]string // loop device by what it is on
	ran     []string
}

type hostDevice struct {
	table     string // without start and length
	sectors   uint64
	next      string // a loaded table
	open      int
	suspended bool
}

const cacheTable = "writecache s 252:0 147:100 4096 2 start_sector 2048"

func newHost(t *testing.T) (*host, *Mapper) {
	h := &host{t: t, devices: map[string]*hostDevice{"v": {table: cacheTable, sectors: 2048}}, loops: map[string]string{}}
	return h, &Mapper{run: h, loops: h, control: &control{path: os.DevNull, slot: make(chan struct{}, 1), ask: h.answer}}
}

func (h *host) answer(fd int, number uintptr, buf []byte) error {
	k := &kernel{targets: map[string][3]string{}}
	for name, d := range h.devices {
		k.names = append(k.names, name)
		kind, text, _ := strings.Cut(d.table, " ")
		k.targets[name] = [3]string{kind, text, "0 100 90 0 0 0 0 0 0"}
	}
	if number != tableStatus {
		return k.answer(fd, number, buf)
	}
	name, _, _ := strings.Cut(string(buf[offName:offName+nameBytes]), "\x00")
	d := h.devices[name]
	if d == nil {
		return errGone
	}
	if err := k.answer(fd, number, buf); err != nil {
		return err
	}
	endian.PutUint64(buf[headBytes+offSpecLen:], d.sectors)
	endian.PutUint32(buf[offOpen:], uint32(d.open))
	endian.PutUint32(buf[offFlags:], 0)
	if d.suspended {
		endian.PutUint32(buf[offFlags:], flagSuspended)
	}
	return nil
}

func (h *host) Run(_ context.Context, c command.Command) (command.Result, error) {
	h.ran = append(h.ran, strings.Join(c.Args, " "))
	name := c.Args[slices.IndexFunc(c.Args, func(a string) bool { return slices.Contains([]string{"v", "v-front", "w"}, a) })]
	d := h.devices[name]
	table := c.Args[len(c.Args)-1]
	switch verb := c.Args[0]; {
	case verb == "create":
		h.devices[name] = &hostDevice{}
		h.devices[name].take(table)
		if name == "v-front" {
			h.devices["v"].open++
		}
	case verb == "remove" && d == nil:
		return command.Result{}, errors.New("device-mapper: remove ioctl on w failed: No such device or address")
	case verb == "remove" && d.open > 0:
		return command.Result{}, errors.New("device-mapper: remove ioctl on v failed: Device or resource busy")
	case verb == "remove":
		delete(h.devices, name)
	case verb == "suspend":
		d.suspended = true
	case verb == "load":
		d.next = table
	case verb == "resume":
		if d.next != "" {
			d.take(d.next)
		}
		d.suspended, d.next = false, ""
	}
	return command.Result{}, nil
}

func (d *hostDevice) take(table string) {
	_, err := fmt.Sscanf(table, "0 %d", &d.sectors)
	if err != nil {
		panic(err)
	}
	d.table = strings.SplitN(table, " ", 3)[2]
}

func (h *host) Find(backing string) (string, error) { return h.loops[backing], nil }

func (h *host) Attach(_ context.Context, _, backing string, size int64) (string, error) {
	if uint64(size/sector) != h.devices[strings.TrimPrefix(backing, "/dev/mapper/")].sectors {
		h.t.Errorf("a loop device of %d bytes on one of another size", size)
	}
	h.loops[backing] = "/dev/loop7"
	return "/dev/loop7", nil
}

func (h *host) Detach(_ context.Context, _, backing string) error {
	if h.loops[backing] != "" {
		h.devices["v"].open--
	}
	delete(h.loops, backing)
	return nil
}

func (h *host) seen(m *Mapper) Device {
	h.t.Helper()
	all, err := m.Devices(h.t.Context(), "v")
	if err != nil || len(all) != 1 {
		h.t.Fatalf("devices %v, %v", all, err)
	}
	return all["v"]
}

func TestUsersGetADeviceBehindALoop(t *testing.T) {
	h, m := newHost(t)
	for range 2 { // the second time nothing is done
		if err := m.Expose(t.Context(), "v", 1<<20); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"create v-front --table 0 2048 linear /dev/loop7 0"}; !slices.Equal(h.ran, want) {
		t.Errorf("ran %q, not %q", h.ran, want)
	}
	if m.Path("v") != "/dev/mapper/v-front" {
		t.Errorf("users get %s", m.Path("v"))
	}
	h.devices["v-front"].open = 2
	if d := h.seen(m); d.Open != 2 || d.Suspended || d.DirtyBytes() != 10*BlockBytes {
		t.Errorf("seen as %+v", d)
	}
	h.devices["v-front"].suspended = true
	if d := h.seen(m); !d.Suspended {
		t.Error("the suspension of what users get is not seen")
	}
}

func TestWhatUsersGetGrows(t *testing.T) {
	h, m := newHost(t)
	if err := m.Expose(t.Context(), "v", 1<<20); err != nil {
		t.Fatal(err)
	}
	h.devices["v"].sectors, h.devices["v-front"].open, h.ran = 4096, 1, nil
	if err := m.Expose(t.Context(), "v", 2<<20); err != nil {
		t.Fatal(err)
	}
	if f := h.devices["v-front"]; f.sectors != 4096 || f.suspended || f.open != 1 {
		t.Errorf("it is %+v after %q", f, h.ran)
	}
}

func TestWhatIsInFrontIsNoUser(t *testing.T) {
	h, m := newHost(t)
	if err := m.Expose(t.Context(), "v", 1<<20); err != nil {
		t.Fatal(err)
	}
	delete(h.devices, "v-front") // killed while it was removed, or made
	if d := h.seen(m); d.Open != 0 {
		t.Errorf("open %d times, and nobody has it", d.Open)
	}
	h.devices["v"].open++
	if d := h.seen(m); d.Open != 1 {
		t.Errorf("open %d times, and one has it", d.Open)
	}
}

func TestAllOfItIsRemovedButNotWhileItIsOpen(t *testing.T) {
	h, m := newHost(t)
	if err := m.Expose(t.Context(), "v", 1<<20); err != nil {
		t.Fatal(err)
	}
	h.devices["v-front"].open = 1
	if err := m.Remove(t.Context(), "v"); !errors.Is(err, ErrOpen) || len(h.devices) != 2 || len(h.loops) != 1 {
		t.Errorf("open: %v, left %v %v", err, h.devices, h.loops)
	}
	h.devices["v-front"].open = 0
	if err := m.Remove(t.Context(), "v"); err != nil || len(h.devices)+len(h.loops) != 0 {
		t.Errorf("%v, left %v %v", err, h.devices, h.loops)
	}
	h.ran = nil
	if err := m.Remove(t.Context(), "w"); err != nil || len(h.ran) > 0 {
		t.Errorf("there is none: %v, ran %q", err, h.ran)
	}
}

func TestAHoldSuspendsWhatUsersGetFirstAndResumesItLast(t *testing.T) {
	h, m := newHost(t)
	if err := m.Expose(t.Context(), "v", 1<<20); err != nil {
		t.Fatal(err)
	}
	h.ran = nil
	if err := m.Quiesce(t.Context(), "v"); err != nil {
		t.Fatal(err)
	}
	table := h.seen(m).Table
	if err := m.LoadAndResume(t.Context(), "v", table); err != nil {
		t.Fatal(err)
	}
	want := []string{"suspend v-front", "message v 0 flush_on_suspend", "suspend v", "load v --table " + table.String(), "resume v", "resume v-front"}
	if !slices.Equal(h.ran, want) {
		t.Errorf("ran %q, not %q", h.ran, want)
	}
}
