package filesystem

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"
)

// How much of a device must read as zeros for it to count as blank.
const (
	edgeBytes   = 4 << 20
	samples     = 16
	sampleBytes = 64 << 10
)

// Surface is what reading a device directly shows.
type Surface struct {
	SizeBytes int64 `json:"sizeBytes"`
	// Scanned is true if Blank and FirstData are valid.
	Scanned bool `json:"scanned"`
	// Blank: both ends and all samples between them are zeros.
	Blank bool `json:"blank"`
	// FirstData is the offset of the first sector that is not zero, in bytes; valid only if Blank
	// is false.
	FirstData int64 `json:"firstData"`
	// Superblock is nil if there is neither one of ext4 nor one of xfs.
	Superblock *Superblock `json:"superblock,omitempty"`
}

// Superblock has the fields of a filesystem's superblock that the driver needs.
type Superblock struct {
	Type            string `json:"type"`
	UUID            string `json:"uuid"`
	FilesystemBytes int64  `json:"filesystemBytes"`
	// NeverMounted is true if the superblock proves it. xfs counts no mounts: there it means that
	// mkfs did not finish.
	NeverMounted bool `json:"neverMounted"`
	// Errors is true if the kernel has noted an inconsistency (ext4 only).
	Errors bool `json:"errors"`
}

// Inspect reads a device. With scan it also checks whether the device is blank. It fails with
// ErrInUse if a mount or a running mkfs holds the device exclusively. Reading can hang with the
// device, so run this in a child process.
func Inspect(device string, scan bool) (Surface, error) {
	fd, err := unix.Open(device, unix.O_RDONLY|unix.O_EXCL|unix.O_CLOEXEC, 0)
	if errors.Is(err, unix.EBUSY) {
		return Surface{}, fmt.Errorf("open %s: %w", device, ErrInUse)
	}
	if err != nil {
		return Surface{}, fmt.Errorf("open %s: %w", device, err)
	}
	f := os.NewFile(uintptr(fd), device)
	defer f.Close() //nolint:errcheck // read-only
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return Surface{}, fmt.Errorf("size of %s: %w", device, err)
	}
	s := Surface{SizeBytes: size, Scanned: scan}
	if s.Superblock, err = readSuperblock(f); err != nil {
		return Surface{}, fmt.Errorf("read %s: %w", device, err)
	}
	if !scan {
		return s, nil
	}
	s.FirstData, err = firstData(f, size)
	if err != nil {
		return Surface{}, fmt.Errorf("read %s: %w", device, err)
	}
	s.Blank = s.FirstData < 0
	return s, nil
}

// firstData reads both ends and samples between them, and returns the offset of the first sector
// that is not zero, or -1.
func firstData(r io.ReaderAt, size int64) (int64, error) {
	type span struct{ offset, length int64 }
	spans := []span{{0, min(edgeBytes, size)}}
	if size > edgeBytes {
		for i := range int64(samples) {
			offset := (size / (samples + 1) * (i + 1)) &^ 4095
			spans = append(spans, span{offset, min(sampleBytes, size-offset)})
		}
		tail := min(edgeBytes, size-edgeBytes)
		spans = append(spans, span{size - tail, tail})
	}
	const sector = 512
	zero := make([]byte, sector)
	buffer := make([]byte, sampleBytes)
	for _, s := range spans {
		for offset := s.offset; offset < s.offset+s.length; offset += sampleBytes {
			piece := buffer[:min(sampleBytes, s.offset+s.length-offset)]
			if _, err := r.ReadAt(piece, offset); err != nil {
				return 0, err
			}
			for at := 0; at < len(piece); at += sector {
				end := min(at+sector, len(piece))
				if !bytes.Equal(piece[at:end], zero[:end-at]) {
					return offset + int64(at), nil
				}
			}
		}
	}
	return -1, nil
}

// readSuperblock reads ext4's superblock at 1024 (kernel: Documentation/filesystems/ext4/super.rst)
// or xfs's at 0 (XFS Filesystem Structure, chapter "Superblocks").
func readSuperblock(r io.ReaderAt) (*Superblock, error) {
	block := make([]byte, 4096)
	n, err := r.ReadAt(block, 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	block = block[:n]
	if n < len(block) || n < 2048 {
		return nil, nil //nolint:nilnil // too small for either
	}
	if ext := block[1024:]; binary.LittleEndian.Uint16(ext[0x38:]) == 0xEF53 {
		little := binary.LittleEndian
		blocks := uint64(little.Uint32(ext[0x4:]))
		if little.Uint32(ext[0x60:])&0x80 != 0 { // 64bit
			blocks |= uint64(little.Uint32(ext[0x150:])) << 32
		}
		return &Superblock{
			Type: Ext4, UUID: formatUUID(ext[0x68:0x78]),
			FilesystemBytes: int64(blocks << (10 + little.Uint32(ext[0x18:])&7)),
			NeverMounted:    little.Uint32(ext[0x2C:]) == 0 && little.Uint16(ext[0x34:]) == 0,
			Errors:          little.Uint16(ext[0x3A:])&2 != 0 || little.Uint32(ext[0x194:]) != 0,
		}, nil
	}
	if string(block[:4]) == "XFSB" {
		return &Superblock{
			Type: XFS, UUID: formatUUID(block[32:48]),
			FilesystemBytes: int64(binary.BigEndian.Uint64(block[8:]) * uint64(binary.BigEndian.Uint32(block[4:]))),
			NeverMounted:    block[126] != 0, // sb_inprogress: mkfs clears it last
		}, nil
	}
	return nil, nil //nolint:nilnil // no superblock is an answer
}

func formatUUID(b []byte) string {
	s := hex.EncodeToString(b)
	return s[:8] + "-" + s[8:12] + "-" + s[12:16] + "-" + s[16:20] + "-" + s[20:]
}
