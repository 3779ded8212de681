// Package discard carries out CacheDiscards: a person accepts the loss of acknowledged writes that
// only lost caches hold.
//
// A CacheDiscard is tried until it is Discarded or Refused. It is refused, without a change, if a
// current copy answers, if the record has another epoch, or if the volume is attached to a node
// that Kubernetes has not given up. Package authority has the rules. Otherwise the lost holder's
// Ceph clients are fenced first, and then the loss is recorded on the CacheVolume. The object stays
// as the record of the loss. docs/discard-api.md is the contract for those who create
// CacheDiscards.
package discard
