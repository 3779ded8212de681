// Package model explores the take-over protocol: two replicas and the third host of a group, the controller, the Kubernetes API as a
// store with compare-and-swap, Ceph with its blocklist and exclusive lock, and a network that loses and delays. Hosts lose power and
// return, links fail, the controller dies between any two of its steps, and Kubernetes gives up nodes that live. Every order of all that
// is tried, up to a depth, and the promises of the design are checked after each step.
//
// Who may attach, when a node is fenced, when the truth is in Ceph and who may go on without its peer is not modelled: the model calls
// the very functions of internal/authority. What the kernels do (DRBD 8.4, dm-writecache, krbd) is
// modelled as it was measured: a copy that is alone promotes whatever it holds unless its handler refuses, a Primary that loses its peer
// freezes, generation identifiers pick the direction of a resync, a lock whose holder is silent is broken after 30 s with a blocklist
// entry that ends by itself, and an entry that is gone revives the old map.
//
// A map that is on no record yet (its host, or the link to it, is lost between dev_connect and the record) is fenced by what Ceph knows of
// it: the watch while its host lives, the lock in any case.
//
// What the model leaves out: loss of disks, orders by operators (discarding), the draining of an attached volume, what dm-writecache
// writes back in the moment between its assembly and the record of its client, and the fencing of a map that a former holder makes after
// the next one was attached: that only shuts out one more who may not write, so that the next one is not kept out for ever.
package model
