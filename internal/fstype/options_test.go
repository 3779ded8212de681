package fstype

import (
	"slices"
	"testing"
)

func TestMountOptions(t *testing.T) {
	rows := []struct {
		fsType   string
		options  []string
		readOnly bool
		want     []string
	}{
		{Ext4, nil, false, []string{"errors=remount-ro"}},
		{Ext4, []string{"errors=panic", "noatime"}, true, []string{"errors=panic", "noatime", "ro"}},
		{XFS, []string{"noatime"}, false, []string{"noatime", "nouuid"}},
		{XFS, []string{"nouuid", "ro"}, true, []string{"nouuid", "ro"}},
		{Ext4, []string{`context="system_u:object_r:container_file_t:s0:c1,c2"`}, false,
			[]string{`context="system_u:object_r:container_file_t:s0:c1,c2"`, "errors=remount-ro"}},
	}
	for _, row := range rows {
		if got := MountOptions(row.fsType, row.options, row.readOnly); !slices.Equal(got, row.want) {
			t.Errorf("%s %q ro=%v: got %q, want %q", row.fsType, row.options, row.readOnly, got, row.want)
		}
	}
}
