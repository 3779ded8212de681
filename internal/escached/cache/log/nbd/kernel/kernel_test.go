package kernel

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/genetlink/genltest"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

const family = 28

// call is one that the driver was sent.
type call struct {
	command uint8
	flags   netlink.HeaderFlags
	data    string
}

// driver plays the kernel's side.
type driver struct {
	*Driver

	calls  []call
	answer func(command uint8) ([]byte, error) // nil: only acknowledges
}

func newFake(t *testing.T) *driver {
	t.Helper()
	fake := &driver{}
	conn := genltest.Dial(genltest.ServeFamily(genetlink.Family{ID: family, Version: 1, Name: "nbd"},
		genltest.CheckRequest(family, 0, 0, func(m genetlink.Message, n netlink.Message) ([]genetlink.Message, error) {
			fake.calls = append(fake.calls, call{m.Header.Command, n.Header.Flags, hex.EncodeToString(m.Data)})
			if fake.answer == nil {
				return []genetlink.Message{{}}, nil
			}
			data, err := fake.answer(m.Header.Command)
			return []genetlink.Message{{Header: m.Header, Data: data}}, err
		})))
	d, err := newDriver(conn, files{sys: t.TempDir(), dev: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	fake.Driver = d
	return fake
}

// attribute is one as the kernel reads it: length, type, value, and zeros up to four bytes.
func attribute(kind uint16, value []byte) []byte {
	p := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	p = append(binary.NativeEndian.AppendUint16(p, kind), value...)
	return append(p, make([]byte, -len(p)&3)...)
}

func u64(v uint64) []byte { return binary.NativeEndian.AppendUint64(nil, v) }
func u32(v uint32) []byte { return binary.NativeEndian.AppendUint32(nil, v) }

func joined(parts ...[]byte) string {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return hex.EncodeToString(all)
}

const nested = 1 << 15

func socketList(fds ...uint32) []byte {
	var items []byte
	for _, fd := range fds {
		items = append(items, attribute(1|nested, attribute(1, u32(fd)))...)
	}
	return attribute(7|nested, items)
}

// The numbers are those of linux/nbd-netlink.h, and not this package's own constants.
func TestConnectSaysEverythingAndReturnsTheNumber(t *testing.T) {
	d := newFake(t)
	d.answer = func(uint8) ([]byte, error) { return attribute(1, u32(7)), nil }
	index, err := d.Connect(t.Context(), Device{Backend: "escache:v", Bytes: 1 << 40, Flags: 0x16d, Sockets: []int{8, 9}})
	if err != nil || index != 7 {
		t.Fatalf("nbd%d, %v", index, err)
	}
	want := call{1, netlink.Request, joined(
		attribute(2, u64(1<<40)), attribute(3, u64(4096)), attribute(4, u64(5)), attribute(8, u64(315360000)), attribute(5, u64(0x16d)),
		attribute(10, []byte("escache:v\x00")), socketList(8, 9))}
	if len(d.calls) != 1 || d.calls[0] != want {
		t.Errorf("the driver got %+v, not %+v", d.calls, want)
	}
	d.answer = func(uint8) ([]byte, error) { return nil, nil }
	if _, err := d.Connect(t.Context(), Device{}); !errors.Is(err, errAnswer) {
		t.Errorf("without a number: %v", err)
	}
	d.answer = func(uint8) ([]byte, error) { return nil, genltest.Error(int(unix.EBUSY)) }
	if _, err := d.Connect(t.Context(), Device{}); err == nil {
		t.Error("a refusal is taken for a device")
	}
}

func TestReconfiguringNamesTheBackendAndOnlyWhatChanges(t *testing.T) {
	d := newFake(t)
	for what, err := range map[string]error{
		"Reconnect":  d.Reconnect(t.Context(), 3, "b", []int{5}),
		"Resize":     d.Resize(t.Context(), 3, "b", 8192),
		"Disconnect": d.Disconnect(t.Context(), 3),
	} {
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	who := attribute(1, u32(3))
	want := map[call]bool{
		{3, netlink.Request | netlink.Acknowledge, joined(who, attribute(10, []byte("b\x00")), socketList(5))}:           true,
		{3, netlink.Request | netlink.Acknowledge, joined(who, attribute(10, []byte("b\x00")), attribute(2, u64(8192)))}: true,
		{2, netlink.Request | netlink.Acknowledge, joined(who)}:                                                          true,
	}
	for _, c := range d.calls {
		if !want[c] {
			t.Errorf("the driver got %+v", c)
		}
		delete(want, c)
	}
	if len(want) > 0 {
		t.Errorf("the driver did not get %+v", want)
	}
	d.answer = func(uint8) ([]byte, error) { return nil, unix.EINVAL }
	if err := d.Reconnect(t.Context(), 3, "b", []int{5}); !errors.Is(err, ErrNotConnected) {
		t.Errorf("a device that is not there: %v", err)
	}
	if err := d.Disconnect(t.Context(), 3); err != nil {
		t.Errorf("a device that is not there: %v", err)
	}
}

// status is the driver's answer for devices.
func status(connected map[uint32]bool) []byte {
	var items []byte
	for index, on := range connected {
		b := []byte{0}
		if on {
			b[0] = 1
		}
		items = append(items, attribute(1, append(attribute(1, u32(index)), attribute(2, b)...))...)
	}
	return attribute(9, items)
}

func TestConnectedIsWhatTheDriverSaysOfThatDevice(t *testing.T) {
	d := newFake(t)
	d.answer = func(uint8) ([]byte, error) { return status(map[uint32]bool{0: false, 1: true, 12: true}), nil }
	for index, want := range map[int]bool{0: false, 1: true, 2: false, 12: true} {
		if got, err := d.Connected(t.Context(), index); err != nil || got != want {
			t.Errorf("nbd%d: %v, %v", index, got, err)
		}
	}
	d.answer = func(uint8) ([]byte, error) { return []byte{1, 2, 3}, nil }
	if _, err := d.Connected(t.Context(), 1); err == nil {
		t.Error("an answer that is cut short is believed")
	}
}

func TestADeviceThatIsOpenIsNotDisconnected(t *testing.T) {
	for name, open := range map[string]bool{"open": true, "closed": false} {
		d := newFake(t)
		if err := os.WriteFile(filepath.Join(d.files.dev, "nbd4"), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		d.answer = func(command uint8) ([]byte, error) {
			if command == 5 {
				return status(map[uint32]bool{4: open}), nil
			}
			return nil, nil
		}
		err := d.DisconnectUnused(t.Context(), 4, "b")
		if open != errors.Is(err, ErrOpen) || !open && err != nil {
			t.Errorf("%s: %v", name, err)
		}
		who := joined(attribute(1, u32(4)), attribute(10, []byte("b\x00")))
		want := []call{
			{3, netlink.Request | netlink.Acknowledge, who + joined(attribute(6, u64(2)))},
			{5, netlink.Request, joined(attribute(1, u32(4)))},
		}
		if open {
			want = append(want, call{3, netlink.Request | netlink.Acknowledge, who + joined(attribute(6, u64(0)))})
		}
		if len(d.calls) != len(want) {
			t.Fatalf("%s: the driver got %+v", name, d.calls)
		}
		for i := range want {
			if d.calls[i] != want[i] {
				t.Errorf("%s: the driver got %+v, not %+v", name, d.calls[i], want[i])
			}
		}
	}
}

func TestFindGoesByTheNameThatTheKernelKeeps(t *testing.T) {
	d := newFake(t)
	for name, content := range map[string]string{
		"nbd0/size": "0\n", "nbd11/size": "2048\n", "nbd11/backend": "escache:v\n", "nbd2/size": "8\n", "nbd2/backend": "other\n",
		"sda/backend": "escache:w\n",
	} {
		path := filepath.Join(d.files.sys, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o700), os.WriteFile(path, []byte(content), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if got, there, err := d.Find("escache:v"); err != nil || !there || got != (Found{Index: 11, Bytes: 1 << 20}) {
		t.Errorf("%+v, %v, %v", got, there, err)
	}
	if got, there, err := d.Find("escache:w"); err != nil || there {
		t.Errorf("%+v, %v, %v", got, there, err)
	}
}

// TestDevicesThatCannotBeListedAreNotNone: a device that is taken for gone stays connected for ever.
func TestDevicesThatCannotBeListedAreNotNone(t *testing.T) {
	if all, err := (files{sys: "/proc/version"}).all(); err == nil {
		t.Errorf("got %v", all)
	}
}

func TestACallInWhichTheKernelHangsEnds(t *testing.T) {
	d := newFake(t)
	goOn := make(chan struct{})
	defer close(goOn)
	d.answer = func(uint8) ([]byte, error) { <-goOn; return nil, nil }
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := d.Disconnect(ctx, 1); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Disconnect: %v", err)
	}
}
