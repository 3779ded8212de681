package filesystem

import (
	"errors"
	"testing"
)

func TestParseOptions(t *testing.T) {
	rows := []struct {
		fsType, options string
		ok              bool
	}{
		{Ext4, "", true},
		{Ext4, " -i 8192  -O ^has_journal ", true},
		{XFS, "-m reflink=1 -i size=512", true},
		{Ext4, "-S", false},
		{Ext4, "-U random", false},
		{Ext4, "/dev/sda", false},
		{Ext4, "-J device=/dev/sda", false},
		{XFS, "-m uuid=5f6a0c5e-8a43-4b4f-9d53-0c7c5b0d0001", false},
		{XFS, "-f", false},
	}
	for _, row := range rows {
		if _, err := ParseOptions(row.fsType, row.options); (err == nil) != row.ok || (err != nil && !errors.Is(err, ErrOptions)) {
			t.Errorf("%s %q: %v", row.fsType, row.options, err)
		}
	}
}
