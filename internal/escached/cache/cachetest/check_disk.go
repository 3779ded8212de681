package cachetest

import (
	"errors"
	"slices"

	"github.com/escache/escache-csi/internal/escached/cache"
)

const (
	headerBlock   = 0
	metadataBlock = cache.HeaderBytes / cache.BlockBytes
)

func wipes(s *suite) {
	for _, at := range []int64{headerBlock, metadataBlock} {
		s.put(at, filled(7)) // the disk belonged to someone else
		if unused, err := s.e.Unused(s.Context(), s.spec.Disk); unused || err != nil {
			s.Errorf("with something in block %d it is unused: %v, %v", at, unused, err)
		}
		s.must("Wipe", s.e.Wipe(s.Context(), s.spec.Disk))
		if unused, err := s.e.Unused(s.Context(), s.spec.Disk); !unused || err != nil {
			s.Errorf("after Wipe it is unused: %v, %v", unused, err)
		}
	}
	s.onDisk("after Wipe", 0)
}

func prepares(s *suite) {
	s.must("Check of a blank disk", s.e.Check(s.Context(), s.spec.Disk, s.id, false))
	if unused, err := s.e.Unused(s.Context(), s.spec.Disk); !unused || err != nil {
		s.Errorf("after Check it is not unused: %v", err)
	}
	s.prepared()
	s.must("Check", s.e.Check(s.Context(), s.spec.Disk, s.id, true))
	if unused, err := s.e.Unused(s.Context(), s.spec.Disk); unused || err != nil {
		s.Errorf("after Prepare it is unused: %v, %v", unused, err)
	}
	s.onDisk("after Prepare", 0)
	s.assemble()
	s.write(1, 1)
	s.remove()
	s.must("Prepare again", s.e.Prepare(s.Context(), s.spec, s.id, true))
	s.onDisk("after another Prepare", cache.BlockBytes)
}

// unchanged runs a Prepare that must fail with want and leave the disk's two first blocks alone.
func (s *suite) unchanged(what string, id cache.Identity, usedHere bool, want error) {
	s.Helper()
	before := [][]byte{s.block(s.spec.Disk.Path, headerBlock), s.block(s.spec.Disk.Path, metadataBlock)}
	s.refused(what+", by Check", s.e.Check(s.Context(), s.spec.Disk, id, usedHere), want)
	s.refused(what, s.e.Prepare(s.Context(), s.spec, id, usedHere), want)
	after := [][]byte{s.block(s.spec.Disk.Path, headerBlock), s.block(s.spec.Disk.Path, metadataBlock)}
	if !slices.EqualFunc(before, after, slices.Equal[[]byte]) {
		s.Errorf("%s: the disk was changed", what)
	}
}

func refusesForeign(s *suite) {
	s.prepared()
	for _, id := range []cache.Identity{
		{Pool: "other", Image: s.id.Image, ImageID: s.id.ImageID},
		{Pool: s.id.Pool, Image: "other", ImageID: s.id.ImageID},
		{Pool: s.id.Pool, Image: s.id.Image, ImageID: "20cd"},
	} {
		s.unchanged(id.String(), id, false, cache.ErrForeign)
	}
}

func refusesBlank(s *suite) {
	s.must("Wipe", s.e.Wipe(s.Context(), s.spec.Disk))
	s.unchanged("a blank disk that was used here", s.id, true, cache.ErrCorrupt)
	s.must("Prepare of a new one", s.e.Prepare(s.Context(), s.spec, s.id, false))
}

// metadataCopies is how many blocks an engine may need to find its metadata: a damaged one of several
// copies does no harm.
const metadataCopies = 2

// spoil overwrites the engine's metadata.
func (s *suite) spoil(with []byte) {
	s.Helper()
	for i := range int64(metadataCopies) {
		s.put(metadataBlock+i, with)
	}
}

func refusesDamage(s *suite) {
	for what, damage := range map[string]func(){
		"a damaged header": func() {
			block := s.block(s.spec.Disk.Path, headerBlock)
			block[30] ^= 1
			s.put(headerBlock, block)
		},
		"blank metadata":   func() { s.spoil(filled(0)) },
		"foreign metadata": func() { s.spoil(filled(7)) },
	} {
		s.prepared()
		damage()
		s.unchanged(what, s.id, false, cache.ErrCorrupt)
		if n, err := s.e.Dirty(s.Context(), s.spec.Disk); !errors.Is(err, cache.ErrCorrupt) {
			s.Errorf("with %s %d bytes are dirty: %v", what, n, err)
		}
	}
	s.spoil(filled(7))
	if _, err := s.e.Dirty(s.Context(), s.spec.Disk); err == nil {
		s.Errorf("Dirty counts in foreign metadata")
	}
}

func refusesOptions(s *suite) {
	if err := s.e.CheckOptions(cache.Options{HighWatermark: 60, LowWatermark: 40, MaxAgeSeconds: 9}); err != nil {
		s.Errorf("good options: %v", err)
	}
	if err := s.e.CheckOptions(cache.Options{HighWatermark: 20, LowWatermark: 30}); err == nil {
		s.Errorf("write-back that stops above the mark at which it starts is taken")
	}
}
