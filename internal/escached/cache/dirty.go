package cache

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// damagedPrefix begins what a child prints instead of a number if the disk is damaged: the kind of an
// error does not leave the child.
const damagedPrefix = "damaged: "

// DirtyQuery returns the query for child.Main that counts the dirty bytes of a disk: CountDirty runs it.
func DirtyQuery(count func(device io.ReaderAt) (int64, error)) func(io.ReaderAt, io.Writer) error {
	return func(device io.ReaderAt, out io.Writer) error {
		n, err := count(device)
		return printDirty(out, n, err)
	}
}

// CountDirty counts the dirty bytes of a disk in a child, by the query that has the name there. The error
// wraps ErrCorrupt if the disk is damaged.
func CountDirty(ctx context.Context, disks Disks, disk Disk, query string, timeout time.Duration) (int64, error) {
	out, err := disks.Query(ctx, disk.Name, query, disk.Path, timeout)
	if err != nil {
		return 0, err
	}
	n, err := readDirty(out)
	if err != nil {
		return 0, fmt.Errorf("dirty bytes of %s: %w", disk.Path, err)
	}
	return n, nil
}

// printDirty is for a child that counts the dirty bytes of a disk: readDirty reads what it prints.
func printDirty(out io.Writer, bytes int64, err error) error {
	if errors.Is(err, ErrCorrupt) {
		_, err = fmt.Fprintln(out, damagedPrefix+strings.TrimPrefix(err.Error(), ErrCorrupt.Error()+": "))
		return err
	}
	if err == nil {
		_, err = fmt.Fprintln(out, bytes)
	}
	return err
}

// readDirty returns what printDirty was given. The error is nil or wraps ErrCorrupt, or the text is not
// printDirty's.
func readDirty(printed []byte) (int64, error) {
	if why, damaged := strings.CutPrefix(string(printed), damagedPrefix); damaged {
		return 0, fmt.Errorf("%w: %s", ErrCorrupt, strings.TrimSpace(why))
	}
	return strconv.ParseInt(strings.TrimSpace(string(printed)), 10, 64)
}
