// Package repair gives volumes their second replica back when the host of one is gone for long: the data that is on one host
// only goes to Ceph first, then the third node of the group gets a copy, while the pod goes on writing.
//
// A volume's repair is on record in its CacheVolume (status.repair) and goes through these steps, each of which can be repeated,
// by another leader too:
//
//  1. Begin: the partner of the attached node has not answered for longer than Policy.After, does not answer now, and is on
//     record as outdated, so that the holder goes on without it. status.repair is written.
//  2. Drain: the volume writes through for the owner "repair" (package drain), so that it survives the loss of its holder, too.
//     Once it is clean its truth is in Ceph on record. A Ceph that does not take the data holds the next step up only for
//     Policy.Patience. A Drain of a CacheFlush is another claim: neither ends the other's.
//  3. Substitute: the third node is put on record, as outdated, and what it may have of earlier times is removed; the lost
//     replica becomes a stale one of the NodeGroup, which wipes it when its host is back; spec.replicas names the new pair.
//  4. Copy: the new node lays an empty copy, the holder takes it as its partner and copies its cache to it.
//  5. Finish: the copy is current, the claim to write-through ends, status.repair goes.
//
// If the lost host is back before step 3, nothing is replaced: it resynchronises, and the repair ends with that. If the volume
// is detached meanwhile the repair ends, too: the next attach lays replicas anew. A detached volume that is clean needs nothing.
//
// The repair is timid: it needs a holder that answers and has a current copy; it copies between a node and others once at a time,
// and no more than Policy.Parallel volumes in all; it never touches a copy that counts.
package repair
