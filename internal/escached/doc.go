// Package escached holds the configuration of escached, the service that implements the escache
// HTTP API on stock Linux kernels. escached puts LVM, DRBD, krbd and a write-back cache together
// and so turns an RBD image into a device with the write latency of local NVMe.
//
// Package server serves the API over HTTP. Package engine implements its verbs, on the steps of
// package host and the replicas of package volume. Package fencepeer is DRBD's handler. Below them
// is one package a layer: cache, devmapper, drbd, krbd, lvm, kernel and child.
package escached
