package authority

import "github.com/escache/escache-csi/api/v1alpha1"

// neverStaged reports whether the attachment began where the volume was being written back, and the node still has
// the device that the write-back has connected. Then no NodeStage of the attachment has connected it: dev_connect
// stores its epoch with a device that is there already. So the kubelet has nothing to unstage, and the node can
// write back for nobody again.
//
// A NodeStage may be on its way all the same. If its dev_connect comes after the next one for the write-back,
// escached refuses the older epoch. If it comes before, csi-node has to put the device's client on record before
// it uses the device. That write fails, because the record has changed since, and [MayStage] refuses the
// older epoch. So no client may be on record yet.
func neverStaged(v *v1alpha1.CacheVolume, holder Report) bool {
	s, has := &v.Status, &holder.status
	began := s.FlushEpoch > 0 && s.FlushEpoch < s.Epoch && !InCeph(v) && !s.UncachedAttached()
	return began && s.ClientAddress == "" &&
		holder.known && holder.connected() && !has.Connecting && !has.Uncached && has.Epoch <= s.FlushEpoch
}
