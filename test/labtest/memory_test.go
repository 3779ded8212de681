package labtest

import "testing"

func TestOneModulesPagesAreAddedUp(t *testing.T) {
	const text = `0xffffb3a180000000-0xffffb3a180005000   20480 copy_process+0x1fe/0x1f50 pages=4 vmalloc N0=4
0xffffb3a1a0000000-0xffffb3a1a1202000 18882560 writecache_ctr+0x8c1/0x1440 [dm_writecache] pages=4609 vmalloc vpages N0=4609
0xffffb3a1a2000000-0xffffb3a1a2402000  4202496 writecache_ctr+0x5a4/0x1440 [dm_writecache] pages=1025 vmalloc vpages N0=1025
0xffffb3a1b0000000-0xffffb3a1b0002000    8192 dm_table_create+0x50/0x100 [dm_mod] pages=1 vmalloc N0=1
0xffffb3a1b1000000-0xffffb3a1b1002000    8192 unpurged vm_area
`
	if got, want := vmallocBytes(text, "dm_writecache"), int64(4609+1025)*4096; got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	if got := vmallocBytes(text, "drbd"); got != 0 {
		t.Errorf("drbd has %d bytes", got)
	}
}

func TestMeminfoIsReadInBytes(t *testing.T) {
	const text = "MemTotal:         372084 kB\nMemAvailable:     201544 kB\nHugePages_Total:       0\n"
	if got, err := meminfo(text, "MemAvailable"); err != nil || got != 201544<<10 {
		t.Errorf("%d, %v", got, err)
	}
	if got, err := meminfo(text, "Slab"); err == nil {
		t.Errorf("there is no Slab, and it reads as %d", got)
	}
}
