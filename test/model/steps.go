package model

// Steps of the controller's operations.
const (
	publishAttach uint8 = iota
	publishDrop
	publishMove
	publishLay
	publishAuthority
	unpublishList
	unpublishRecord
	unpublishFence
	unpublishDetach
	settleWrite
	flushAttach
	flushConnect
	flushStop
	flushEnd
	publishAbandon
	flushAbandon
	unpublishReplace
	unpublishBack
	drainClaim
	drainTurn
	drainRecord
	restoreCache
	restoreMode
	restoreClaim
	discardRecord
	repairRecord
	repairClear
	repairMove
	repairLay
	repairPair
	transferPrepare
	transferRecord
	transferClear
	transferCleared
	transferPlace
	trimAttach
	trimConnect
	trimStop
)

var stepTexts = map[uint8]string{
	publishAttach:    "the record says who is attached",
	publishDrop:      "old replicas are dropped",
	publishMove:      "the record says where the new replicas are",
	publishLay:       "replicas are laid where there are none",
	publishAuthority: "the record says that the truth is in the cache; the volume is published",
	unpublishList:    "Ceph says who has the image open",
	unpublishRecord:  "the record says who is about to be fenced",
	unpublishFence:   "those clients are put on the blocklist",
	unpublishDetach:  "the record says that the node is detached",
	settleWrite:      "the record says that the truth is in Ceph",
	flushAttach:      "the record says who has it to write back",
	flushConnect:     "dev_connect where it is to be written back",
	flushStop:        "what was written back is stopped",
	publishAbandon:   "earlier holders that were fenced give their devices up",
	flushAbandon:     "earlier holders that were fenced give their devices up",
	unpublishReplace: "entries that ended too early are added anew",
	unpublishBack:    "the record says that it is written back for nobody again",
	drainClaim:       "the record says that the volume is to write through",
	drainTurn:        "the device writes through",
	drainRecord:      "the record says that the truth is in Ceph, and stays there",
	restoreCache:     "the record says that the truth is in the cache again",
	restoreMode:      "the device writes back again",
	restoreClaim:     "the record says that the volume writes back",
	discardRecord:    "the record says that the cache is discarded",
	repairRecord:     "the record says that the new copy is not current",
	repairClear:      "an old copy is removed where the new one is to be",
	repairMove:       "the record says where the new copy is",
	repairLay:        "the new copy is laid, and is empty",
	repairPair:       "the holder gets its new partner",
	transferPrepare:  "what is left on the hosts of the new group is removed",
	transferRecord:   "the record says that the volume goes to the new group",
	transferClear:    "the replicas in the former group are removed",
	transferCleared:  "the record says that the volume has left them",
	transferPlace:    "the record says that the volume is in the new group",
	trimAttach:       "the record says who has it to trim it",
	trimConnect:      "the image is mapped without a cache, where it is to be trimmed",
	trimStop:         "the host that trims it is to unmap it",
	flushEnd:         "how the write-back went is looked at",
}

// fenced is where an operation goes on after it has fenced.
func (c controller) fenced() uint8 {
	switch c.op {
	case opPublish:
		return publishAttach
	case opFlush:
		if c.outside {
			return trimAttach
		}
		return flushAttach
	case opDiscard:
		return discardRecord
	default:
		return unpublishDetach
	}
}

// abandoned is where a publish goes on after earlier holders have given up their devices.
func (c controller) abandoned() uint8 {
	if c.over {
		return publishLay
	}
	return publishDrop
}

func (c controller) text() string { return stepTexts[c.pc] }
