package devmapper

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
)

// kernel answers as device-mapper does: a list of names, and per device one target with its table
// and status.
type kernel struct {
	names   []string
	targets map[string][3]string // kind, table, status
	gone    string
	bare    string // a device without a table
	// between runs between the two questions about a device: its table, then its status.
	between func(*kernel)
	asked   int
}

func (k *kernel) answer(_ int, number uintptr, buf []byte) error {
	k.asked++
	name, _, _ := strings.Cut(string(buf[offName:offName+nameBytes]), "\x00")
	asTable := endian.Uint32(buf[offFlags:])&flagTable != 0
	var data []byte
	flags := uint32(0)
	switch number {
	case listDevices:
		for i, n := range k.names {
			entry := make([]byte, (nameOffset+len(n)+1+8+7)/8*8)
			endian.PutUint64(entry, uint64(0xfd00+i))
			copy(entry[nameOffset:], n)
			if i < len(k.names)-1 {
				endian.PutUint32(entry[8:], uint32(len(entry)))
			}
			data = append(data, entry...)
		}
	case listVersions:
		for i, n := range []string{"linear", "writecache"} {
			entry := make([]byte, versionNameOffset+16)
			endian.PutUint32(entry[4:], 1)
			endian.PutUint32(entry[8:], uint32(5+i))
			copy(entry[versionNameOffset:], n)
			if i == 0 {
				endian.PutUint32(entry, uint32(len(entry)))
			}
			data = append(data, entry...)
		}
	case tableStatus:
		if !asTable && k.between != nil {
			k.between(k)
		}
		if name == k.gone {
			return errGone
		}
		if name == k.bare {
			endian.PutUint32(buf[offDataSize:], emptyBytes)
			endian.PutUint32(buf[offFlags:], 0)
			return nil
		}
		target := k.targets[name]
		text := target[2]
		if asTable {
			text = target[1]
		}
		data = make([]byte, specBytes+len(text)+1)
		endian.PutUint64(data[offSpecLen:], 131072)
		copy(data[offType:], target[0])
		copy(data[specBytes:], text)
		endian.PutUint32(buf[offTargets:], 1)
		endian.PutUint32(buf[offOpen:], 1)
		flags = flagSuspended
	}
	if headBytes+len(data) > len(buf) {
		endian.PutUint32(buf[offFlags:], flagFull)
		return nil
	}
	copy(buf[headBytes:], data)
	endian.PutUint32(buf[offDataSize:], uint32(headBytes+len(data)))
	endian.PutUint32(buf[offFlags:], flags)
	return nil
}

func TestTheKernelsAnswersAreRead(t *testing.T) {
	k := &kernel{
		names: []string{"escache-a", "vg-escache--a", "escache-gone", "escache-b", "escache-bare"},
		gone:  "escache-gone", bare: "escache-bare",
		targets: map[string][3]string{
			"escache-a": {"writecache", "s 252:0 147:100 4096 2 start_sector 2048", "1 16000 15990 2 7 3 20 4 5 0 11 0 2 0"},
			"escache-b": {"linear", "252:0 0", ""},
		},
	}
	c := &control{ask: k.answer}
	names, err := c.names(0, "escache-")
	if err != nil || !reflect.DeepEqual(names, []string{"escache-a", "escache-gone", "escache-b", "escache-bare"}) {
		t.Fatalf("names: %q, %v", names, err)
	}
	d, there, err := c.device(0, "escache-a")
	want := Device{
		Target: "writecache", Sectors: 131072, Table: "s 252:0 147:100 4096 2 start_sector 2048",
		Status: "1 16000 15990 2 7 3 20 4 5 0 11 0 2 0", Open: 1, Suspended: true,
	}
	if err != nil || !there || d != want {
		t.Fatalf("device: %+v, %v, %v", d, there, err)
	}
	if d, there, err := c.device(0, "escache-bare"); !there || d.Target != "" || err != nil {
		t.Errorf("a device without a table: %+v, %v, %v", d, there, err)
	}
	if _, there, err := c.device(0, "escache-gone"); there || err != nil {
		t.Errorf("a device that is gone: %v, %v", there, err)
	}
	if version, err := c.version(0, "writecache"); err != nil || version != "1.6.0" {
		t.Errorf("version %q, %v", version, err)
	}
	if version, err := c.version(0, "cache"); err != nil || version != "" {
		t.Errorf("a target that is not loaded has version %q, %v", version, err)
	}
}

// Another volume's device may be made, removed or reloaded at any time.
func TestADeviceThatChangesBetweenTwoQuestionsIsReadAsOne(t *testing.T) {
	cache := [3]string{"writecache", "s 252:0 147:100 4096 0", "0 16000 16000 0"}
	for name, change := range map[string]struct {
		before  kernel
		between func(*kernel)
		want    string
	}{
		"it got its table": {
			before:  kernel{bare: "escache-a"},
			between: func(k *kernel) { k.bare = "" },
		},
		"it was replaced by one without a table": {
			between: func(k *kernel) { k.bare = "escache-a" },
		},
		"it was replaced by one of another target": {
			between: func(k *kernel) { k.targets["escache-a"] = [3]string{"linear", "252:0 0", ""} },
		},
		"nothing": {want: "writecache"},
	} {
		t.Run(name, func(t *testing.T) {
			k := change.before
			k.targets, k.between = map[string][3]string{"escache-a": cache}, change.between
			d, there, err := (&control{ask: k.answer}).device(0, "escache-a")
			if err != nil || !there || d.Target != change.want {
				t.Fatalf("got %+v, %v, %v, want the target %q", d, there, err, change.want)
			}
			if (d.Target == "") != (d.Table == "") {
				t.Errorf("the target is %q and its table %q", d.Target, d.Table)
			}
		})
	}
}

func TestALongListIsAskedForWithMoreRoom(t *testing.T) {
	k := &kernel{}
	for i := range 2000 {
		k.names = append(k.names, fmt.Sprintf("escache-%016d", i))
	}
	names, err := (&control{ask: k.answer}).names(0, "escache-")
	if err != nil || len(names) != 2000 || k.asked < 2 {
		t.Fatalf("%d names after %d questions, %v", len(names), k.asked, err)
	}
}

func TestAKernelThatKeepsOneQuestionDoesNotKeepTheNext(t *testing.T) {
	c := newControl()
	c.slot <- struct{}{} // somebody's question is out and never comes back
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := c.with(ctx, func(int) error { return nil }); !errors.Is(err, errNoControl) || !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("got %v", err)
	}
}
