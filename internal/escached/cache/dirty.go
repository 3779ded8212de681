package cache

import (
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// damagedPrefix begins what a child prints instead of a number if the disk is damaged: the kind of an
// error does not leave the child.
const damagedPrefix = "damaged: "

// PrintDirty is for a child that counts the dirty bytes of a disk: ReadDirty reads what it prints.
func PrintDirty(out io.Writer, bytes int64, err error) error {
	if errors.Is(err, ErrCorrupt) {
		_, err = fmt.Fprintln(out, damagedPrefix+strings.TrimPrefix(err.Error(), ErrCorrupt.Error()+": "))
		return err
	}
	if err == nil {
		_, err = fmt.Fprintln(out, bytes)
	}
	return err
}

// ReadDirty returns what PrintDirty was given. The error is nil or wraps ErrCorrupt, or the text is not
// PrintDirty's.
func ReadDirty(printed []byte) (int64, error) {
	if why, damaged := strings.CutPrefix(string(printed), damagedPrefix); damaged {
		return 0, fmt.Errorf("%w: %s", ErrCorrupt, strings.TrimSpace(why))
	}
	return strconv.ParseInt(strings.TrimSpace(string(printed)), 10, 64)
}
