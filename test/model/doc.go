// Package model explores the take-over protocol. It holds a group of three hosts with two replicas,
// the controller, the Kubernetes API as a store with compare-and-swap, Ceph with its blocklist and
// exclusive lock, and a network that loses and delays messages. Hosts lose power and come back,
// links fail, the controller dies between any two of its steps, and Kubernetes gives up nodes that
// live. The explorer tries every order of all these steps up to a depth, and checks the design's
// promises after each step.
//
// # What is real
//
// The rules are not modelled: the model calls internal/authority, and nothing else of the product.
// So it is the code of the product that decides who may attach, stage and go on alone, whom to
// fence, and when the truth is in Ceph. The tests also drop one guard (see Guard) at a time and
// show which promise then breaks, by the shortest way there.
//
// # What is modelled
//
// The kernels (DRBD 8.4, dm-writecache, krbd) are modelled as they were measured:
//
//   - A copy that is alone promotes whatever it holds, unless its handler refuses.
//   - A Primary that loses its peer freezes.
//   - Generation identifiers pick the direction of a resync.
//   - If the holder of Ceph's exclusive lock is silent for 30 s, krbd breaks the lock with a blocklist
//     entry that expires. Once the entry is gone, the old map works again.
//
// A map that is not on record yet, because its host or the link to it was lost between dev_connect
// and the record, is fenced by what Ceph knows of it: the watch while its host lives, and the lock
// in any case.
//
// # What is left out
//
//   - A disk that fails under a running host. A host that comes back with an empty disk is modelled, as
//     are an escached that has not recovered yet, and another host at a host's address.
//   - A record that is set back, and replicas on machines of the same name.
//   - Entries of the blocklist that were there before a fence.
//   - Orders by operators (discarding).
//   - Draining an attached volume.
//   - What dm-writecache writes back between its assembly and the record of its client.
//   - Fencing a map that a former holder makes after the next attachment (authority.Late). It keeps out
//     one more host that may not write, so that the next holder does not wait for ever.
package model
