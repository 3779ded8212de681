package unfence

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

type fences struct {
	looks int
	look  func(context.Context) error
}

func (f *fences) KeepFenced(ctx context.Context) error {
	f.looks++
	return f.look(ctx)
}

// TestAWatchLooksAgainWhateverItFinds: a look that fails or hangs does not end it.
func TestAWatchLooksAgainWhateverItFinds(t *testing.T) {
	for name, look := range map[string]func(context.Context) error{
		"all is well": func(context.Context) error { return nil },
		"it fails":    func(context.Context) error { return errors.New("no Ceph") },
		"it hangs": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				out, f := &bytes.Buffer{}, &fences{look: look}
				w := &Watch{Fences: f, Log: slog.New(slog.NewTextHandler(out, nil)), Every: 5 * time.Second, Longest: 10 * time.Second}
				ctx, cancel := context.WithTimeout(t.Context(), 44*time.Second)
				defer cancel()
				if err := w.Start(ctx); err != nil {
					t.Error(err)
				}
				want := 9
				if name == "it hangs" {
					want = 3
				}
				if f.looks != want {
					t.Errorf("%d looks in 44 s, want %d", f.looks, want)
				}
				if said := strings.Contains(out.String(), "trying again"); said == (name == "all is well") {
					t.Errorf("the log says %q", out)
				}
			})
		})
	}
}
