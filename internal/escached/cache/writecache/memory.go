package writecache

import "github.com/escache/escache-csi/internal/escached/cache"

// What the kernel keeps in memory for each block of a cache (drivers/md/dm-writecache.c, Linux 6.1,
// x86-64). All of it is from vmalloc, so none can be swapped out. Together with the block's 16 bytes
// on the disk that is 88 of 4112 bytes: 2.14 % of the disk, 22 MiB for each GiB.
const (
	// entryMemory is struct wc_entry (writecache_alloc_entries): rb_node 24 bytes, lru 16, flags and
	// index 8, age 8, and 16 more where the kernel can handle errors of persistent memory
	// (DM_WRITECACHE_HANDLE_HARDWARE_ERRORS). Without those it is 56.
	entryMemory = 72
	// metadataMemory is the block's struct wc_memory_entry: in SSD mode the kernel keeps a copy of all
	// metadata in memory (writecache_ctr: wc->memory_map).
	metadataMemory = entryBytes
	// bitmapGranularity is how many bytes of metadata one bit of wc->dirty_bitmap stands for.
	bitmapGranularity = 64 << 10
	// pageMemory is what vmalloc itself needs for each page: a pointer in vm_struct.pages and an entry
	// in the page table.
	pageMemory = 16
	pageBytes  = 4096
)

// Memory implements cache.Engine by the size of the kernel's structures.
func (*Engine) Memory(diskBytes int64) int64 {
	blocks := max(0, diskBytes) / (cache.BlockBytes + entryBytes) // calculate_memory_size; there it is a block less at most
	if blocks == 0 {
		return 0
	}
	metadata := roundUp(entriesOffset+blocks*metadataMemory, cache.BlockBytes)
	bitmap := roundUp(metadata, bitmapGranularity) / bitmapGranularity / 8
	pages := (roundUp(blocks*entryMemory, pageBytes) + metadata + roundUp(bitmap, pageBytes)) / pageBytes
	return pages * (pageBytes + pageMemory)
}
