package labtest

import (
	"bufio"
	"fmt"
	"strconv"
	"strings"
)

// Memory is what a host's kernel says of its memory, in bytes.
type Memory struct {
	// Available, Slab, Vmalloc and PageTables are MemAvailable, Slab, VmallocUsed and PageTables of
	// /proc/meminfo.
	Available, Slab, Vmalloc, PageTables int64
	// Writecache is what dm-writecache has from vmalloc, by /proc/vmallocinfo.
	Writecache int64
}

// Memory reads a host's memory, after the kernel has given back what it keeps of files.
func (h *Host) Memory(t T) Memory {
	t.Helper()
	info := h.Shell(t, "sync; echo 3 >/proc/sys/vm/drop_caches; cat /proc/meminfo")
	m := Memory{Writecache: vmallocBytes(h.Run(t, "cat", "/proc/vmallocinfo"), "dm_writecache")}
	for name, into := range map[string]*int64{
		"MemAvailable": &m.Available, "Slab": &m.Slab, "VmallocUsed": &m.Vmalloc, "PageTables": &m.PageTables,
	} {
		var err error
		if *into, err = meminfo(info, name); err != nil {
			t.Fatalf("%s: %v", h.Name, err)
		}
	}
	return m
}

// meminfo returns one field of /proc/meminfo, in bytes.
func meminfo(text, name string) (int64, error) {
	for line := range strings.Lines(text) {
		var kib int64
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			_, err := fmt.Sscanf(rest, "%d kB", &kib)
			return kib << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/meminfo has no %s", name)
}

// vmallocBytes adds up the pages that a module has from vmalloc. Each line of /proc/vmallocinfo is one
// allocation, with who made it.
func vmallocBytes(text, module string) int64 {
	const page = 4096
	var pages int64
	for lines := bufio.NewScanner(strings.NewReader(text)); lines.Scan(); {
		if !strings.Contains(lines.Text(), "["+module+"]") {
			continue
		}
		for word := range strings.FieldsSeq(lines.Text()) {
			if n, ok := strings.CutPrefix(word, "pages="); ok {
				count, _ := strconv.ParseInt(n, 10, 64) // the kernel prints a number
				pages += count
			}
		}
	}
	return pages * page
}
