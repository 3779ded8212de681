package engine

import (
	"errors"
	"fmt"
	"reflect"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/trim"
	"github.com/escache/escache-csi/internal/escached/volume"
)

func trimOf(epoch int64) escache.TrimRequest {
	return escache.TrimRequest{
		VolumeRef: ref, Epoch: epoch, FSType: "xfs", MountOptions: []string{"noatime"}, StartByte: 1 << 30, TimeoutSeconds: 7,
	}
}

// connectedForTrim has the volume on the host, with a cache or without one, and says which device its filesystem is on.
func connectedForTrim(t *testing.T, uncached bool) (w *world, e *Engine, device string, epoch int64) {
	t.Helper()
	w = newWorld(t)
	e = w.restarted()
	if uncached {
		if _, err := e.DevConnect(t.Context(), uncachedOf(3)); err != nil {
			t.Fatal(err)
		}
		w.recordErr = nil
		w.record = escache.VolumeRecord{VolumeRef: ref, ImageID: "10ab", AttachedNode: "n1", Epoch: 3}
		return w, e, "/dev/rbd7", 3
	}
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	if _, err := e.DevConnect(t.Context(), escache.ConnectRequest{VolumeRef: ref, ImageID: "10ab", Epoch: 3}); err != nil {
		t.Fatal(err)
	}
	dev, ok, err := e.Device(t.Context(), volume.NameOf(ref))
	if err != nil || !ok {
		t.Fatal(err)
	}
	return w, e, dev.Path, 3
}

func TestTrimIsDoneOnTheDeviceOfTheAttachment(t *testing.T) {
	for _, uncached := range []bool{true, false} {
		t.Run(fmt.Sprintf("without a cache: %v", uncached), func(t *testing.T) {
			w, e, device, epoch := connectedForTrim(t, uncached)
			answer, err := e.Trim(t.Context(), trimOf(epoch))
			if err != nil || answer.Done || answer.NextByte != 2<<30 || answer.TrimmedBytes != 4096 {
				t.Errorf("%+v %v", answer, err)
			}
			want := trim.Request{Device: device, Type: "xfs", Options: []string{"noatime"}, Start: 1 << 30, Longest: 7 * time.Second}
			if len(w.trimmed) != 1 || !reflect.DeepEqual(w.trimmed[0], want) {
				t.Errorf("%+v, not %+v", w.trimmed, want)
			}
			if _, err := e.Trim(t.Context(), trimOf(epoch-1)); code(err) != escache.CodeStaleEpoch {
				t.Errorf("an earlier attachment: %v", err)
			}
			for _, failure := range []struct {
				err  error
				code escache.Code
			}{
				{fmt.Errorf("%w: it takes no discards", trim.ErrRefused), escache.CodeInvalidRequest},
				{&command.StuckError{}, escache.CodeStuck},
			} {
				w.trimErr = failure.err
				if _, err := e.Trim(t.Context(), trimOf(epoch)); code(err) != failure.code {
					t.Errorf("%v: %v", failure.err, err)
				}
			}
			calls := len(w.trimmed)
			if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil {
				t.Fatal(err)
			}
			wants := map[bool]escache.Code{true: escache.CodeNotFound, false: escache.CodeNotConnected}
			if _, err := e.Trim(t.Context(), trimOf(epoch)); code(err) != wants[uncached] || len(w.trimmed) != calls {
				t.Errorf("after stop: %v", err)
			}
		})
	}
}

// What is half mapped, or mapped as another image, is not mounted.
func TestAMapThatIsNotTheRecordsIsNotTrimmed(t *testing.T) {
	w, e, _, epoch := connectedForTrim(t, true)
	w.maps[0].ImageID = "20cd"
	if _, err := e.Trim(t.Context(), trimOf(epoch)); code(err) != escache.CodeNotConnected || len(w.trimmed) > 0 {
		t.Errorf("another image: %v", err)
	}
	w.maps = nil
	if _, err := e.Trim(t.Context(), trimOf(epoch)); code(err) != escache.CodeNotConnected || len(w.trimmed) > 0 {
		t.Errorf("no map: %v", err)
	}
}

// A call may come late, from a csi-controller that does not lead any more. The host then has the image of an attachment that
// has ended, and what the filesystem in it counts as free may be in use by now.
func TestWithoutACacheOnlyTheAttachmentOnRecordIsTrimmed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*world)
		want   escache.Code
	}{
		"another node has it":         {func(w *world) { w.record.AttachedNode = "n2" }, escache.CodeStaleEpoch},
		"no node has it":              {func(w *world) { w.record.AttachedNode = "" }, escache.CodeStaleEpoch},
		"it was given here again":     {func(w *world) { w.record.Epoch++ }, escache.CodeStaleEpoch},
		"the record was set back":     {func(w *world) { w.record.Epoch-- }, escache.CodeStaleEpoch},
		"it is of another image":      {func(w *world) { w.record.ImageID = "20cd" }, escache.CodeIdentityMismatch},
		"the arbiter does not answer": {func(w *world) { w.recordErr = errors.New("no such socket") }, escache.CodeInternal},
		"the record says so":          {func(*world) {}, ""},
	} {
		w, e, _, epoch := connectedForTrim(t, true)
		c.change(w)
		if _, err := e.Trim(t.Context(), trimOf(epoch)); code(err) != c.want || (len(w.trimmed) > 0) != (c.want == "") {
			t.Errorf("%s: %v, %+v", name, err, w.trimmed)
		}
	}
}
