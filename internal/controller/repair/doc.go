// Package repair gives volumes their second replica back after it was lost. The data that is on one host
// only goes to Ceph first. Then another node of the group gets a copy, or the same one if it came back
// empty, while the pod goes on writing.
//
// Package redundancy says why there is one copy, from the record and from what the hosts answer. What is
// not known is no proof. So a repair begins when a host has been silent, or a copy without a link, for
// longer than Policy.After. It begins at once when a disk is proven to be dead, or a host to be empty or
// out of its group.
//
// A volume's repair is on record in its CacheVolume (status.repair). It goes through these steps,
// each of which can be repeated, also by another leader:
//
//  1. Begin: the copy of the attached node's partner is lost, and on record as outdated, so that the
//     holder goes on without it. status.repair is written.
//  2. Drain: the volume writes through for the owner "repair" (package drain), so that it also
//     survives the loss of its holder. It does so only in the attachment that the repair is on record for
//     (authority.MayBegin). Once it is clean, its truth is in Ceph on record. A Ceph
//     that does not take the data delays the next step for at most Policy.Patience. A Drain of a
//     CacheFlush is another claim: neither ends the other.
//  3. Substitute: the node of the new copy is put on record, as outdated, and an old replica there is
//     removed. The node is the least loaded of those that are ready, have room and take part in no
//     other copy. The lost replica becomes a stale one of the NodeGroup and is wiped when its host is
//     back. spec.replicas names the new pair.
//  4. Copy: the new node creates an empty copy. The holder takes it as its partner and copies its
//     cache to it.
//  5. Finish: the copy is current, the claim of write-through ends, status.repair goes.
//
// If the lost copy is back before step 3, nothing is replaced: it resynchronises, and the repair
// ends with that. If the volume is detached meanwhile, the repair ends too: the next attach
// creates the replicas again. A detached volume that is clean needs nothing.
//
// A holder whose own disk has failed has no copy to make another from. It only writes through.
//
// A copy that counts can be moved off its host, too: a CacheFlush that drains the volume asks for it. Then step 2
// is never cut short, and step 3 puts the copy on record as outdated together with the new one. The claim of
// step 2 ends only when both replicas count (authority.MayEnd), so the volume is in Ceph all that time. If no
// host can take the copy, nothing begins (Stay). If the CacheFlush ends before step 3, nothing is replaced.
//
// The repair is timid. It needs a holder that answers. Between two nodes it copies one volume at a time,
// and no more than Policy.Parallel volumes in all. It writes back no more detached volumes than that at once.
// It replaces nothing while many hosts of a group are away (Pause). It never touches a copy that counts, unless
// that is to be moved and everything is in Ceph.
package repair
