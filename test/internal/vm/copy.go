package vm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

// Whence values of lseek(2) that find data and holes.
const (
	seekData = 3
	seekHole = 4
)

// CopyDisk copies a disk and keeps its holes.
func CopyDisk(from, to string) error {
	source, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy a disk: %w", err)
	}
	defer source.Close()
	info, err := source.Stat()
	if err != nil {
		return fmt.Errorf("copy a disk: %w", err)
	}
	target, err := os.OpenFile(to, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("copy a disk: %w", err)
	}
	err = copyData(source, target, info.Size())
	if err := errors.Join(err, target.Truncate(info.Size()), target.Close()); err != nil {
		return fmt.Errorf("copy %s to %s: %w", from, to, err)
	}
	return nil
}

func copyData(source, target *os.File, size int64) error {
	for at := int64(0); at < size; {
		begin, err := source.Seek(at, seekData)
		if errors.Is(err, syscall.ENXIO) {
			return nil // nothing but a hole follows
		}
		if err != nil {
			return err
		}
		end, err := source.Seek(begin, seekHole)
		if err != nil {
			return err
		}
		if _, err := target.Seek(begin, io.SeekStart); err != nil {
			return err
		}
		if _, err := io.Copy(target, io.NewSectionReader(source, begin, end-begin)); err != nil {
			return err
		}
		at = end
	}
	return nil
}
