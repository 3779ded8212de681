// Package discard carries out CacheDiscards: somebody accepts the loss of acknowledged writes that only lost caches have.
//
// # The contract, for kubectl-escache and everybody else
//
// A volume needs it when its attach is refused because no current copy can be reached: status.authority of its CacheVolume is
// Cache, and every node of spec.replicas that is not in status.outdated is gone. The refusal names those nodes, since when they
// are silent, and the bytes at stake. To go on with what Ceph has:
//
//  1. Read the CacheVolume. Show spec.replicas, status.outdated, status.dirtyBytes and what the NodeGroup's status.members say of
//     the nodes (lastSeen); have the person type the volume's name.
//
//  2. Find out who the person is, as the API server sees it: create a SelfSubjectReview (authentication.k8s.io/v1) and take
//     status.userInfo.username.
//
//  3. Create, with the name that was typed in confirm (the API server compares it with volume):
//
//     {apiVersion: escache.io/v1alpha1, kind: CacheDiscard, metadata: {generateName: VOLUME-},
//     spec: {volume: VOLUME, confirm: VOLUME, epoch: 7, requestedBy: alice@example.org, reason: n1's mainboard burnt}}
//
//     epoch is status.epoch of the CacheVolume as read in step 1; reason may be left out, and any other name will do.
//
//     A ValidatingAdmissionPolicy of the chart refuses it unless requestedBy is the user who creates it. The right to create
//     cachediscards.escache.io is the ClusterRole escache-cache-discard, which nothing else includes.
//
//  4. Watch status.phase until it is Discarded or Refused. Pending with a message means that something does not answer (Ceph, the
//     API server) or that another operation runs on the volume: it is tried again, every few seconds, until the object is deleted.
//
// Dry run: create it with dryRun=All; the API server then checks the form and the right, and nothing else happens.
//
// Refused, without a change, when: there is no such CacheVolume; its epoch is another; the truth is in Ceph already; a node with
// a current copy answers (attach the volume there, which loses nothing); or the volume is attached to a node that Kubernetes has
// not given up (taint it out-of-service first).
//
// Discarded means, in this order: the clients of the lost holder are on Ceph's blocklist, for years; the CacheVolume says
// authority Ceph, all replicas outdated, attached nowhere, and status.discarded {request, requestedBy, nodes, bytesAtStake, epoch,
// time}; an Event CacheDiscarded on the CacheVolume and on the CacheDiscard tells the same. The next attach, on any node of the
// group, lays replicas anew; what a lost host still has is wiped when it is back, and never promoted before. The filesystem is as
// Ceph has it: writes are missing in no particular order, so check it before use.
//
// status.bytesAtStake is what was dirty when that was last reported, which is at most some ten seconds before the host was lost.
//
// The object stays as the record of the loss until somebody deletes it. Deleting one that is Pending takes the request back.
package discard
