package rbd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

// trashSpec encodes an image in the trash as librbd does.
func trashSpec(source byte, name string, deleted, keptUntil time.Time) []byte {
	in := appendText([]byte{source}, name)
	for _, at := range []time.Time{deleted, keptUntil} {
		in = binary.LittleEndian.AppendUint32(in, uint32(at.Unix()))
		in = binary.LittleEndian.AppendUint32(in, uint32(at.Nanosecond()))
	}
	return appendText([]byte{2, 1}, string(append(in, trashNormal)))
}

// fillTrash writes entries without images.
func fillTrash(io *rados.IOContext, count int, entry func(n int) (id string, spec []byte)) error {
	const atOnce = 256
	for from := 0; from < count; from += atOnce {
		op := rados.CreateWriteOp()
		for n := from; n < min(count, from+atOnce); n++ {
			id, spec := entry(n)
			op.Exec("rbd", "trash_add", append(appendText(nil, id), spec...))
		}
		err := op.Operate(io, "rbd_trash", rados.OperationNoFlag)
		op.Release()
		if err != nil {
			return err
		}
	}
	return nil
}

// librbd lists no more than 10240 through go-ceph.
func TestATrashWithManyImagesIsListed(t *testing.T) {
	const count = 10300
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	deleted := time.Unix(1700000000, 0)
	inPool(t, c, pool, func(io *rados.IOContext) error {
		return fillTrash(io, count, func(n int) (string, []byte) {
			return fmt.Sprintf("%x", n), trashSpec(0, fmt.Sprint("v", n), deleted, deleted)
		})
	})
	all, err := c.TrashedImages(ctx, pool)
	must(t, err)
	if len(all) != count {
		t.Fatalf("%d of %d", len(all), count)
	}
	seen := map[string]bool{}
	for _, e := range all {
		var n int
		if _, err := fmt.Sscanf(e.ID, "%x", &n); err != nil || e.Name != fmt.Sprint("v", n) || e.Pool != pool || !e.Deleted.Equal(deleted) {
			t.Fatalf("%+v", e)
		}
		seen[e.ID] = true
	}
	if len(seen) != count {
		t.Errorf("%d of %d differ", len(seen), count)
	}
}

// What librbd does not list is on its way out of the trash, or not for others.
func TestTheTrashIsListedAsByLibrbd(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	list := func() (own, librbds []string) {
		all, err := c.TrashedImages(ctx, pool)
		must(t, err)
		for _, e := range all {
			own = append(own, fmt.Sprint(e.ID, " ", e.Name, " ", e.Deleted.Unix()))
		}
		inPool(t, c, pool, func(io *rados.IOContext) error {
			all, err := librbd.GetTrashList(io)
			for _, e := range all {
				librbds = append(librbds, fmt.Sprint(e.Id, " ", e.Name, " ", e.DeletionTime.Unix()))
			}
			return err
		})
		return own, librbds
	}
	if own, librbds := list(); len(own)+len(librbds) != 0 {
		t.Fatalf("without an object for it: %q, librbd %q", own, librbds)
	}
	must(t, c.CreateImage(ctx, spec(pool, "a")))
	must(t, c.DeleteImage(ctx, ImageRef{pool, "a"}))
	inPool(t, c, pool, func(io *rados.IOContext) error {
		return fillTrash(io, 5, func(n int) (string, []byte) { // of each source
			at := time.Unix(1700000000+int64(n), 999999999)
			return fmt.Sprint("id", n), trashSpec(byte(n), strings.Repeat("n", n), at, at.Add(time.Hour))
		})
	})
	own, librbds := list()
	if slices.Sort(librbds); len(own) != 5 || !slices.Equal(slices.Sorted(slices.Values(own)), librbds) {
		t.Errorf("%q, librbd %q", own, librbds)
	}
}

func TestAnAnswerThatIsCutOffIsNoTrash(t *testing.T) {
	at := time.Unix(1700000000, 5)
	kept := at.Add(time.Hour)
	entry := trashSpec(0, "name", at, kept)
	later := appendText([]byte{9, 1}, string(entry[6:])+"more") // of a Ceph to come
	whole := append(append(appendText(append(appendText([]byte{2, 0, 0, 0}, "a"), later...), "b"), entry...), "after it"...)
	want := []trashEntry{{id: "a", name: "name", deleted: at, keptUntil: kept}, {id: "b", name: "name", deleted: at, keptUntil: kept}}
	if got, err := parseTrash(whole); err != nil || !slices.Equal(got, want) {
		t.Fatalf("got %+v, %v", got, err)
	}
	for n := range len(whole) - len("after it") {
		if got, err := parseTrash(whole[:n]); !errors.Is(err, ErrCeph) {
			t.Errorf("%d bytes of %d: got %+v, %v", n, len(whole), got, err)
		}
	}
	short := appendText([]byte{1, 0, 0, 0}, "a")
	short = appendText(append(short, 2, 1), string(entry[6:12])) // its length says less than it must have
	if got, err := parseTrash(short); !errors.Is(err, ErrCeph) {
		t.Errorf("got %+v, %v", got, err)
	}
}
