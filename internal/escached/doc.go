// Package escached is the configuration of escached, the open implementation of the escache HTTP API on stock Linux kernels: a stack of
// LVM, DRBD, krbd and dm-writecache that turns an RBD image into a device with local-NVMe write latency.
//
// Package server serves the API, package engine does its verbs, and the other folders are the layers below it, one each.
package escached
