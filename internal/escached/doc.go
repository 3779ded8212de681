// Package escached is the open implementation of the escache HTTP API on stock Linux kernels: a stack of LVM, DRBD,
// krbd and dm-writecache that turns an RBD image into a device with local-NVMe write latency.
//
// Its state is on the disks: LVM tags, DRBD metadata, the header at the start of each cache, and the kernel's tables.
// Nothing is kept in memory that a restart could lose, and a restart never touches I/O.
package escached
