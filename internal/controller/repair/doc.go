// Package repair gives volumes their second replica back after the host of one has been gone for
// long. The data that is on one host only goes to Ceph first. Then the third node of the group gets
// a copy, while the pod goes on writing.
//
// A volume's repair is on record in its CacheVolume (status.repair). It goes through these steps,
// each of which can be repeated, also by another leader:
//
//  1. Begin: the partner of the attached node has not answered for longer than Policy.After, does
//     not answer now, and is on record as outdated, so that the holder goes on without it.
//     status.repair is written.
//  2. Drain: the volume writes through for the owner "repair" (package drain), so that it also
//     survives the loss of its holder. Once it is clean, its truth is in Ceph on record. A Ceph
//     that does not take the data delays the next step for at most Policy.Patience. A Drain of a
//     CacheFlush is another claim: neither ends the other.
//  3. Substitute: the third node is put on record, as outdated, and an old replica there is
//     removed. The lost replica becomes a stale one of the NodeGroup and is wiped when its host
//     is back. spec.replicas names the new pair.
//  4. Copy: the new node lays an empty copy. The holder takes it as its partner and copies its
//     cache to it.
//  5. Finish: the copy is current, the claim to write-through ends, status.repair goes.
//
// If the lost host is back before step 3, nothing is replaced: it resynchronises, and the repair
// ends with that. If the volume is detached meanwhile, the repair ends too: the next attach lays
// replicas anew. A detached volume that is clean needs nothing.
//
// The repair is timid. It needs a holder that answers and has a current copy. Between two nodes it
// copies one volume at a time, and no more than Policy.Parallel volumes in all. It never touches a
// copy that counts.
package repair
