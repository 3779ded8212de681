package cache

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"testing"
)

// FuzzHeader reads any block as a header. A block that is neither blank nor a header is corrupt; a
// header that is read can be written and read again; and a disk is never to be formatted if its
// header says that it was, or if it was used here.
func FuzzHeader(f *testing.F) {
	block, err := Header{Identity: Identity{Pool: "rbd", Image: "escache-pvc-1", ImageID: "10ab"}, Formatted: true}.Block()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(block[:128], true)
	f.Add(block[:128], false)
	f.Add([]byte{}, true)
	f.Add([]byte(`{"pool":"rbd","image":"größe","imageID":"","formatted":false}`), true)
	f.Add([]byte("\x00\x00\x00\x00INITRAMFS"), false)
	f.Fuzz(func(t *testing.T, start []byte, sealed bool) {
		disk := make([]byte, BlockBytes)
		copy(disk, start)
		if sealed { // otherwise no input would get behind the checksum
			body := start[:min(len(start), BlockBytes-16)]
			copy(disk, headerMagic[:])
			binary.LittleEndian.PutUint32(disk[8:], uint32(len(body)))
			binary.LittleEndian.PutUint32(disk[12:], crc32.Checksum(body, castagnoli))
			copy(disk[16:], body)
		}
		header, err := parseHeader(disk)
		switch {
		case err != nil && !errors.Is(err, ErrCorrupt):
			t.Errorf("%v is not ErrCorrupt", err)
		case (header == nil && err == nil) != (bytes.Count(disk, []byte{0}) == len(disk)):
			t.Errorf("header %+v, %v of a block that is blank: %v", header, err, Blank(disk))
		}
		id := Identity{Pool: "rbd", Image: "escache-pvc-1", ImageID: "10ab"}
		if header != nil {
			checkHeader(t, *header)
			id = header.Identity
		}
		for _, used := range []bool{true, false} {
			format, err := id.Judge(disk, used)
			if format && (err != nil || header == nil && used || header != nil && header.Formatted) {
				t.Errorf("used here %v, header %+v: it may be formatted, %v", used, header, err)
			}
		}
	})
}

func checkHeader(t *testing.T, h Header) {
	t.Helper()
	block, err := h.Block()
	if err != nil {
		if len(h.Pool)+len(h.Image)+len(h.ImageID) < 600 { // each byte takes six at most
			t.Errorf("%+v: %v", h, err)
		}
		return
	}
	again, err := parseHeader(block)
	if err != nil || again == nil || *again != h {
		t.Errorf("%+v came back as %+v, %v", h, again, err)
	}
}
