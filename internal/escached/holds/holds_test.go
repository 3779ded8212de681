package holds_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/holds"
	"github.com/escache/escache-csi/internal/escached/volume"
)

var hold = holds.Record{VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "pvc-1"}, Ends: time.Minute, Paused: true}

// The file of a record cannot be read while too many files are open, for example. A directory in its place stands for that.
func TestARecordThatCannotBeReadOnceIsNotForgotten(t *testing.T) {
	name := volume.NameOf(hold.VolumeRef)
	for when, look := range map[string]func(dir string, writer *holds.Records) *holds.Records{
		"by the process that holds": func(_ string, writer *holds.Records) *holds.Records { return writer },
		"by the next process":       func(dir string, _ *holds.Records) *holds.Records { return holds.New(dir) },
	} {
		t.Run(when, func(t *testing.T) {
			dir := t.TempDir()
			writer := holds.New(dir)
			if err := writer.Put(hold); err != nil {
				t.Fatal(err)
			}
			records, path, away := look(dir, writer), filepath.Join(dir, name), filepath.Join(t.TempDir(), "away")
			rename(t, path, away)
			if err := os.Mkdir(path, 0o700); err != nil {
				t.Fatal(err)
			}
			records.List()
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
			rename(t, away, path)
			if got := records.List(); len(got) != 1 || got[0] != hold {
				t.Errorf("List: %+v, want the hold", got)
			}
			if got := records.Get(name); got == nil || *got != hold {
				t.Errorf("Get: %+v, want the hold", got)
			}
			if err := records.Drop(name); err != nil {
				t.Fatal(err)
			}
			if got := records.Get(name); got != nil || len(records.List()) != 0 {
				t.Errorf("%+v is left after Drop", got)
			}
		})
	}
}

func rename(t *testing.T, from, to string) {
	t.Helper()
	if err := os.Rename(from, to); err != nil {
		t.Fatal(err)
	}
}
