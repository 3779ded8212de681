package engine

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

type lifeVerb struct {
	name string
	do   func(e *Engine) error
}

// inUse is a host that has the volume, with its device.
func inUse(t *testing.T) (*world, *Engine) {
	t.Helper()
	w := newWorld(t)
	e := w.engine()
	for _, verb := range verbsOfALife()[:2] {
		if err := verb.do(e); err != nil {
			t.Fatal(err)
		}
	}
	return w, e
}

// verbsOfALife is every verb once, in the order of a volume's life.
func verbsOfALife() []lifeVerb {
	ctx := context.Background()
	return []lifeVerb{
		{"put_replica", func(e *Engine) error { return e.PutReplica(ctx, withSecret(oldSecret)) }},
		{"dev_connect", func(e *Engine) error { _, err := connectWith(e, 1); return err }},
		{"mode", func(e *Engine) error {
			return e.SetMode(ctx, escache.ModeRequest{VolumeRef: ref, Mode: escache.ModeWritethrough})
		}},
		{"options", func(e *Engine) error { _, err := optionsWith(e, 1, thirty); return err }},
		{"hold", func(e *Engine) error {
			_, err := e.Hold(ctx, escache.HoldRequest{VolumeRef: ref, MaxSeconds: 60})
			return err
		}},
		{"release", func(e *Engine) error { return e.Release(ctx, escache.ReleaseRequest{VolumeRef: ref}) }},
		{"resize", func(e *Engine) error {
			return e.Resize(ctx, escache.ResizeRequest{VolumeRef: ref, SizeBytes: 64 << 20})
		}},
		{"flush", func(e *Engine) error {
			res, err := e.Flush(ctx, escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 5})
			if err == nil && !res.Clean {
				return errors.New("not clean")
			}
			return err
		}},
		{"stop", func(e *Engine) error { return e.Stop(ctx, escache.StopRequest{VolumeRef: ref}) }},
		{"delete_replica", func(e *Engine) error { return e.DeleteReplica(ctx, ref, nil) }},
	}
}

// lifeWithALoss is the same life, but before it ends the host is cut off with the device in use and
// another one takes the volume over.
func lifeWithALoss(w *world) []lifeVerb {
	life := verbsOfALife()
	last := len(life) - 1
	return slices.Concat(life[:last], []lifeVerb{
		{"dev_connect", func(e *Engine) error {
			if w.lost {
				return nil // frozen: the test's own doing, after a connect that succeeded
			}
			_, err := connectWith(e, 2)
			return err
		}},
		{"repeer", func(e *Engine) error {
			req := withPartner("n3", "10.0.0.3")
			req.Secret = newSecret
			err := e.PutReplica(context.Background(), req)
			got := w.files[volume.NameOf(ref)]
			if err == nil && (got.PeerHost != "n3" || got.Secret != newSecret || w.minors[100].Connection == drbd.StandAlone) {
				return fmt.Errorf("the partner is %s, %+v", got.PeerHost, w.minors[100])
			}
			return err
		}},
		{"abandon", func(e *Engine) error {
			if !w.lost {
				w.lost = true
				w.freeze(volume.NameOf(ref))
				w.takenOver(3)
			}
			err := e.Abandon(context.Background(), escache.AbandonRequest{VolumeRef: ref, Epoch: 3})
			if err == nil && (!w.outdated[volume.NameOf(ref)] || len(w.maps)+w.connected() > 0 || w.minors[100].Disk != drbd.Outdated) {
				return fmt.Errorf("abandoned, and there is %q", w.left())
			}
			return err
		}},
	}, life[last:])
}

func TestARestartRemovesHalfWrittenFiles(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	if err := verbsOfALife()[0].do(e); err != nil {
		t.Fatal(err)
	}
	w.halfWritten = true
	half := filepath.Join(e.Secrets.Dir, ".new-123")
	if err := os.WriteFile(half, []byte(oldSecret), 0o600); err != nil {
		t.Fatal(err)
	}
	w.restarted()
	if _, err := os.Stat(half); !errors.Is(err, fs.ErrNotExist) || w.halfWritten {
		t.Errorf("half of a secret is there (%v), half of a resource file %v", err, w.halfWritten)
	}
}
