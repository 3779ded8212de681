package rbd

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/ceph/go-ceph/rados"
)

// go-ceph lists no more than 10240 images in the trash. So it is read here by the calls of its
// object's own class that librbd uses itself.

const trashObject = "rbd_trash"

// trashEntry is what Ceph has noted of an image in the trash.
type trashEntry struct {
	id, name  string
	source    byte // who moved it there
	deleted   time.Time
	keptUntil time.Time // until then Ceph does not purge it
}

// sourceRemoving is of an image that is being removed without a stay in the trash.
const sourceRemoving = 3

// listTrash reads the whole trash of a pool, as librbd lists it.
func listTrash(io *rados.IOContext) ([]trashEntry, error) {
	const pageEntries = 1024
	var all []trashEntry
	for after := ""; ; {
		page, err := trashPage(io, after, pageEntries)
		if errors.Is(err, rados.ErrNotFound) { // nothing was ever moved there
			return all, nil
		}
		if err != nil {
			return nil, err
		}
		for _, e := range page {
			if after = e.id; e.source != sourceRemoving {
				all = append(all, e)
			}
		}
		if len(page) < pageEntries {
			return all, nil
		}
	}
}

// trashPage reads the entries that follow an ID in the order of the alphabet.
func trashPage(io *rados.IOContext, after string, entries uint64) ([]trashEntry, error) {
	answer, err := execRead(io, trashObject, "trash_list", binary.LittleEndian.AppendUint64(appendText(nil, after), entries))
	if err != nil {
		return nil, err
	}
	return parseTrash(answer)
}

// parseTrash decodes a map: the number of its entries, then IDs and what is noted of them.
func parseTrash(text []byte) ([]trashEntry, error) {
	in := decoder{left: text}
	var out []trashEntry
	for n := in.uint32(); n > 0 && !in.cutOff; n-- {
		e, err := parseTrashEntry(in.text(), &in)
		if err != nil {
			return nil, err
		}
		out = append(out, e)
	}
	return out, in.err()
}

func parseTrashEntry(id string, from *decoder) (trashEntry, error) {
	in := from.structure()
	e := trashEntry{id: id, source: in.byte(), name: in.text(), deleted: in.time(), keptUntil: in.time()}
	return e, in.err()
}

// trashEntryOf reads what is noted of one image; an error with ENOENT if it is not in the trash.
func trashEntryOf(io *rados.IOContext, id string) (trashEntry, error) {
	answer, err := execRead(io, trashObject, "trash_get", appendText(nil, id))
	if err != nil {
		return trashEntry{}, err
	}
	return parseTrashEntry(id, &decoder{left: answer})
}

// States of an image in the trash. Ceph takes one that is being removed no longer out of it.
const (
	trashNormal   = 0
	trashRemoving = 2
)

// setTrashState changes the state of an image in the trash. One that has the state already is
// success, and one that has another than expected an error with ESTALE.
func setTrashState(io *rados.IOContext, id string, state, expected byte) error {
	return execHeader(io, trashObject, "trash_state_set", append(appendText(nil, id), state, expected))
}
