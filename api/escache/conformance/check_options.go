package conformance

import (
	"cmp"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

func optionsChecks() []Check {
	return []Check{{"options change under running I/O", optionsChange, beside}}
}

// staysDirty is how long data without a maximum age must stay dirty in this check.
const staysDirty = 2 * time.Second

func optionsChange(s *suite) {
	soon := escache.CacheOptions{HighWatermark: 60, LowWatermark: 40, MaxDirtyAgeSeconds: 1}
	refused(s, "options of an unknown volume", s.first.options(s.nameVolume(), 1, soon), escache.CodeNotFound)
	v := s.laid()
	refused(s, "options of a standby", s.first.options(v, 1, soon), escache.CodeNotConnected)
	v.epoch = 4
	v.attach(s.first)
	data := v.makeDirty(s.first)
	refused(s, "options of an older attachment", s.first.options(v, v.epoch-1, soon), escache.CodeStaleEpoch)
	refused(s, "crossed watermarks", s.first.options(v, v.epoch, escache.CacheOptions{HighWatermark: 20, LowWatermark: 30}),
		escache.CodeInvalidRequest)
	s.remainsDirty(v)

	for range 2 {
		s.inForce(v, soon)
	}
	s.eventually("what is too old is written back", func() (bool, any) {
		dirty := v.dirty(s.first)
		return dirty == 0, dirty
	})
	v.holds(s.first, 0, data)

	s.inForce(v, escache.CacheOptions{HighWatermark: 70, LowWatermark: 40}) // without a maximum age again
	s.ordered(v)
	data = v.makeDirty(s.first)
	s.remainsDirty(v)
	done(s, "mode writethrough", s.first.mode(v, escache.ModeWritethrough))
	s.inForce(v, escache.CacheOptions{})
	if status := s.first.status(v.VolumeRef); status.Mode != escache.ModeWritethrough || status.State != escache.StateDraining {
		s.Errorf("a change of options in writethrough left the status %+v", shown(status))
	}
	v.holds(s.first, 0, data)
}

// ordered demands that a strict order of write-back is refused, or in force, and that it is refused of an
// engine that cannot have it. Then it sets the default again.
func (s *suite) ordered(v *volume) {
	s.Helper()
	before := escache.CacheOptions{HighWatermark: 70, LowWatermark: 40}
	strict := before
	strict.WriteBackOrder = escache.OrderStrict
	if cmp.Or(s.target.Engine, escache.EngineWritecache) == escache.EngineWritecache {
		refused(s, "a strict order of writecache", s.first.options(v, v.epoch, strict), escache.CodeInvalidRequest)
	} else {
		s.inForce(v, strict)
	}
	s.inForce(v, before)
}

// inForce sets options and demands that the answer has exactly these.
func (s *suite) inForce(v *volume, want escache.CacheOptions) {
	s.Helper()
	var now escache.OptionsResponse
	decode(s, s.first.options(v, v.epoch, want), &now)
	if now.Options != want {
		s.Errorf("set to %+v, in force is %+v", want, now.Options)
	}
}

// remainsDirty demands that dirty data is not written back for a while.
func (s *suite) remainsDirty(v *volume) {
	s.Helper()
	before := v.dirty(s.first)
	time.Sleep(staysDirty)
	if now := v.dirty(s.first); now == 0 || now < before {
		s.Errorf("%d bytes were dirty, and %d after %s", before, now, staysDirty)
	}
}
