// Package device opens block devices and files past the page cache, so that what is read or timed is
// the device and not memory.
package device

import (
	"fmt"
	"os"
	"syscall"
)

// Mode says what an open device is for.
type Mode int

// Modes. Sync makes every write wait until it is stable, like a database's log.
const (
	Read Mode = iota
	Write
	WriteSync
)

// Open opens a device or file for direct I/O: offsets, lengths and buffers must be aligned, see
// Buffer.
func Open(path string, mode Mode) (*os.File, error) {
	flags := os.O_RDONLY
	switch mode {
	case Read:
	case Write:
		flags = os.O_RDWR
	case WriteSync:
		flags = os.O_RDWR | syscall.O_DSYNC
	}
	f, err := os.OpenFile(path, flags|syscall.O_DIRECT, 0)
	if err != nil {
		return nil, fmt.Errorf("open past the page cache: %w", err)
	}
	return f, nil
}

// Buffer returns memory that direct I/O takes. It is never given back: a program has a handful.
func Buffer(size int) ([]byte, error) {
	p, err := syscall.Mmap(-1, 0, size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		return nil, fmt.Errorf("%d bytes of aligned memory: %w", size, err)
	}
	return p, nil
}
