package conformance

import (
	"bytes"

	"github.com/escache/escache-csi/api/escache"
)

func trimChecks() []Check {
	return []Check{
		{"a device without a filesystem is not trimmed and not formatted", trimWithoutFilesystem, beside},
		{"an image without a cache is not trimmed when another host is given the volume", trimOfAnother, beside},
	}
}

func (h *host) trim(v *volume, epoch int64) *answer {
	h.s.Helper()
	return h.post(escache.PathTrim, escache.TrimRequest{VolumeRef: v.VolumeRef, Epoch: epoch, FSType: "ext4", TimeoutSeconds: 1})
}

func trimWithoutFilesystem(s *suite) {
	v := s.newVolume()
	refused(s, "trim a volume that is not here", s.first.trim(v, 1), escache.CodeNotFound)
	v.epoch = 4
	v.attachUncached(s.first)
	refused(s, "trim for an earlier attachment", s.first.trim(v, v.epoch-1), escache.CodeStaleEpoch)
	refused(s, "trim a blank device", s.first.trim(v, v.epoch), escache.CodeInvalidRequest)
	v.holds(s.first, 0, bytes.Repeat([]byte{0}, mib))
	v.stopUncached(s.first)
}

// trimOfAnother: whoever asks may not know that the volume is another host's by now. What the filesystem here counts as
// free may be in use there.
func trimOfAnother(s *suite) {
	if s.target.Record == nil {
		s.Skipf("no record can be made for the arbiter of this target")
	}
	v := s.newVolume()
	v.attachUncached(s.first)
	if err := s.target.Record(s.Context(), v.VolumeRef, v.id, s.second.Name, v.epoch+1); err != nil {
		s.Fatalf("record that %s has %s: %v", s.second.Name, v, err)
	}
	refused(s, "trim what is on record as another host's", s.first.trim(v, v.epoch), escache.CodeStaleEpoch)
	v.stopUncached(s.first)
}
