// Package model explores the take-over protocol. It holds a group of four hosts with two replicas,
// the controller, the Kubernetes API as a store with compare-and-swap, Ceph with its blocklist and
// exclusive lock, and a network that loses and delays messages. Hosts lose power and come back,
// links fail, the controller dies between any two of its steps, and Kubernetes gives up nodes that
// live. The explorer tries every order of all these steps up to a depth, and checks the design's
// promises after each step.
//
// Four hosts have what larger groups have and three have not: a choice of the host that gets a replica,
// and a second pair that shares no host with the first. A host that has had nothing to do with the
// volume is like any other such host, so only the first of them is tried.
//
// Each kind of trouble multiplies the states. So there are several explorations, each with some
// families of troubles (see Family) and bounds of its own. What takes two families that no exploration
// has together is not tried.
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
//   - If the link comes back, a frozen Primary sends again what was under way. If the peer was booted meanwhile, it
//     drops the link instead, completes what was under way, and begins a new generation. It stays frozen, and the
//     peer takes itself for current. At the next connection it fills the peer and goes on.
//   - Generation identifiers pick the direction of a resync.
//   - If the holder of Ceph's exclusive lock is silent for 30 s, krbd breaks the lock with a blocklist
//     entry that expires. Once the entry is gone, the old map works again.
//
// A map that is not on record yet, because its host or the link to it was lost between dev_connect
// and the record, is fenced by what Ceph knows of it: the watch while its host lives, and the lock
// in any case.
//
// A permit to go on without a peer that has no disk is modelled step by step: the question to the
// arbiter, the file, what the kernel is told, and the two halves of a status, which are not read at one
// moment. escached may be killed between any two of these steps, and its question then still be
// answered. The file survives a power loss here, which a real one need not. That is a world of its own,
// which begins when the disk of one host has failed already (see roots).
//
// A map that comes after its node was given up is a world of its own. It begins when NodeStage has read the
// record and dev_connect has not mapped the image. There a device writes back from its assembly on, before
// csi-node has put its client on record.
//
// The image's metadata is one number: the newest attachment that was noted there. Which replicas were created
// again within an attachment is not modelled. Only explorations in which etcd is restored have it.
//
// What escached and csi-node decide by themselves is modelled by hand, with a guard where a promise
// hangs on it: when a fenced holder gives its device up, how a failed disk is marked and reported, in
// which mode a device is connected, and when a copy that was booted is connected.
//
// A copy was booted if it does not know whether it is current, and has no link. What escached reads of the record before
// it connects such a copy, and the connection, are one step here. In between, a peer that is not frozen can
// become a Primary without a link only by putting this copy on record as outdated, and with a new generation. The peer
// waits for the link if its DRBD has a network configuration: it was not booted, or may connect itself.
//
// A move to another group is a move to any pair of hosts that the replicas are not on: the model does not
// know which hosts are in which group, so it may do more than the product. It may also attach a volume that
// is on its way, which the product refuses: no promise hangs on that. Nothing is modelled of the
// PersistentVolume, which decides where pods may run.
//
// A change of the cache's size is modelled as one of two sizes, which is wished for at any time, and made
// with the places of the replicas. That there is no room for it, or that it is taken back, makes what is
// tried no different: the replicas are laid again all the same. Hosts here take a replica of any size for the
// one that they have; escached refuses it.
//
// A host outside the group, which may have the volume without a cache, is the fourth host in a world of its
// own. There the caches of the others keep what they have written back, as dm-writecache does, and would
// show it. Nothing is modelled of the labels that decide where pods may run.
//
// A host that trims a volume is modelled as a user of it without a cache: it mounts the filesystem, which replays the
// journal, and it discards. What it writes no cache knows of. That the filesystem knows what is free is not modelled.
//
// # What is assumed
//
//   - While DRBD's handler for a failed disk runs on a Primary whose peer is in sync and not counted, that
//     host does not lose its power. What it had sent may be acknowledged, the peer alone has it, and the
//     record does not count the peer: docs/limits.md. TestASecondIsLeft shows it.
//   - A disk does not fail while the other copy's disk has failed too and is not on record: then no
//     copy is left. A host whose disk has failed waits for its arbiter without end; the kernel waits
//     nine minutes.
//   - A Primary without a disk whose peer comes back acknowledges nothing before csi-node's next look
//     has counted that peer in place of its own copy. If the link was down when the disk failed, the
//     kernel does not wait for that look.
//   - csi-controller fences a client that is late within the 30 s for which a silent client keeps its lock,
//     and within the hour for which krbd shuts out the one whose lock was broken.
//   - A fenced client whose entry somebody removes writes nothing before csi-controller looks for it, and an
//     entry of an hour that it has since is not over by then: docs/limits.md.
//   - What a late device writes back does no harm before another host can write to the image: it is what all
//     current copies have.
//   - A kubelet stages no volume while csi-controller takes it from its node, if that node lives.
//   - A host that has its replica when it is asked for it has it still a moment later, when the replica
//     is confirmed.
//   - An operator who discards a cache gives up what its former holder acknowledges afterwards, too.
//   - With a record that was set back it is promised that no data is removed, and that nothing begins that an
//     answering host contradicts. If the volume was used in a later attachment than the record tells of, no
//     older copy is used either. What changed within an attachment is not promised: the record may count a copy
//     that lacks writes by then. Nor is a frozen holder of the record's attachment kept from going on.
//   - No host connects a volume while etcd is restored.
//   - Every attachment is noted in its image's metadata, but for those of the states from which two
//     explorations begin: an older version noted nothing there.
//   - Somebody else's entry of the blocklist is there when the controller reads the list, or not at
//     all.
//
// # What is left out
//
//   - That a drained volume is left alone when it is published again: since a copy that is laid again does
//     not count before it is filled, no promise hangs on it.
//   - A disk of a Primary that works again without a reboot.
//   - A Primary that has lost its peer, and after that its disk, when a peer comes back that was booted.
//   - Two disks that fail one after the other, and a volume that changes hands, in one order of more
//     than 14 steps. At 19 a Primary without a disk that was given up, and that nobody could ask to give its
//     device up, connects again with the copy it has written to, after that was written back and before
//     the record says so: docs/limits.md.
//   - Another machine of the same name that has a replica laid on it. One that answers and has none is
//     modelled.
//   - DRBD's own note that a copy is outdated, but for a device that was given up. escached makes it
//     at a start by the record; without it there is more to try, not less.
//   - A copy that was given up over the link while its peer's disk is lost before the two are
//     connected again: the record counts it, and DRBD does not promote it without force.
//   - Which loss a repair is for, and when it begins: it may begin whenever authority.Substitutable allows
//     it, so every reason is covered. The same goes for a write-back without a pod. A holder that dies between
//     the record of its new partner and the change of its own, and is attached again: escached refuses the new
//     partner until its copy is known to be current.
//   - A publish that is drained from the beginning, with a record that was set back. A new attachment may get
//     the number of one that the record has forgotten, and whose host is down. What that host has is removed
//     later as if it were of the new one. A publish that writes back has the same end, in orders of 15 steps.
//     The note in the image's metadata, which is not modelled, refuses the first of these attachments.
//   - Replacing a copy whose old partner is asked about after the new one is counted: a host changes its
//     partner before it fills the new one.
//   - A dev_connect that csi-controller itself has asked for, to have a cache written back or a volume trimmed, and that
//     ends after it was given up. A host that maps the image so late does not trim it: escached asks the arbiter first. The
//     map keeps others out until csi-node on that host gives it up.
package model
