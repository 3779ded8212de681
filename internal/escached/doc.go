// Package escached holds the configuration of escached, the service that implements the escache
// HTTP API on stock Linux kernels. escached puts LVM, DRBD, krbd and a write-back cache together
// and so turns an RBD image into a device with the write latency of local NVMe.
//
// Package server serves the API, package engine implements its verbs, and each other folder is one
// layer below the engine.
package escached
