package mounts

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	mount "k8s.io/mount-utils"

	"github.com/escache/escache-csi/internal/node/blockdev"
)

// FuzzTable reads a mount table as the kernel writes it, for a mount point of any name: it is found
// under its own name, with its own device, beside the lines that any text adds.
func FuzzTable(f *testing.F) {
	f.Add("/var/lib/kubelet/pods/p1/volumes/kubernetes.io~csi/pv 1/mount", "rw,relatime", "rw,errors=remount-ro", uint16(252), uint16(3), mountinfo)
	f.Add("/a\\040b\n\t#", "ro", "rw", uint16(0), uint16(6), "")
	f.Add("/\\134", "ro,noatime", "ro,emergency_ro", uint16(1), uint16(1), "22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1")
	file := filepath.Join(f.TempDir(), "mountinfo")
	f.Fuzz(func(t *testing.T, path, options, super string, major, minor uint16, others string) {
		if strings.ContainsAny(path, "\x00") || strings.ContainsAny(options+super, " \t\n\x00") || options == "" || super == "" {
			return // the kernel writes no such line
		}
		// fs/proc_namespace.c, mangle: these four bytes are written in octal.
		var b strings.Builder
		for _, c := range []byte("/" + path) {
			if strings.IndexByte(" \t\n\\", c) >= 0 {
				fmt.Fprintf(&b, `\%03o`, c)
			} else {
				b.WriteByte(c)
			}
		}
		line := fmt.Sprintf("41 22 %d:%d / %s %s shared:9 - ext4 /dev/dm-3 %s\n", major, minor, b.String(), options, super)
		for text, mustParse := range map[string]bool{line: true, strings.TrimPrefix(others, "\n") + "\n" + line: false} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			infos, err := mount.ParseMountInfo(file)
			if err != nil {
				if mustParse {
					t.Errorf("%q: %v", text, err)
				}
				continue
			}
			all := entries(infos, func(string) (blockdev.Number, error) { return blockdev.Number{Major: 1, Minor: 2}, nil })
			e := At(all, "/"+path)
			if e == nil || e.Device != (blockdev.Number{Major: uint32(major), Minor: uint32(minor)}) {
				t.Fatalf("%q: %+v", text, all)
			}
			if len(Of(all, e.Device)) == 0 || e.TurnedReadOnly && !e.FilesystemReadOnly || e.FilesystemReadOnly && !e.ReadOnly {
				t.Errorf("%q: %+v", text, *e)
			}
		}
	})
}
