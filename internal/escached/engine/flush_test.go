package engine

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

func TestWhatCephRefusesStaysAndIsFlushedOnceItTakesIt(t *testing.T) {
	w, e := inUse(t)
	flush := func() (escache.FlushResponse, error) {
		return e.Flush(t.Context(), escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 60})
	}
	w.setDirty(4096)
	w.caches.Refuse(true)
	for _, try := range []string{"the first", "one that finds the error and clears it"} {
		if answer, err := flush(); code(err) != escache.CodeCacheError || answer.Clean {
			t.Errorf("%s: %+v, %v", try, answer, err)
		}
	}
	status, err := e.Status(t.Context(), &ref)
	if err != nil {
		t.Fatal(err)
	}
	if s := status.Volumes[0]; s.State != escache.StateError || s.Error.Code != escache.CodeCacheError || *s.DirtyBytes != 4096 {
		t.Errorf("%+v", s)
	}
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); code(err) != escache.CodeCacheError {
		t.Errorf("stop: %v", err)
	}
	w.caches.Refuse(false)
	if answer, err := flush(); err != nil || !answer.Clean {
		t.Errorf("%+v, %v", answer, err)
	}
}
