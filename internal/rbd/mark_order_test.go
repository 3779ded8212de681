package rbd

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/test/cephtest"
)

// TestAnImagesMetadataIsChangedByOneCallAtATime: a call that nobody waits for any more goes on, and would write
// its older note over that of its successor.
func TestAnImagesMetadataIsChangedByOneCallAtATime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		options := Options{Kubernetes: "a"}.withDefaults()
		c, release := &Cluster{id: "c", options: options, gate: newGate("c", 1, 4, time.Second)}, make(chan struct{})
		defer close(release)
		ref, other := ImageRef{"rbd", "one"}, ImageRef{"rbd", "two"}
		if err := hang(t.Context(), c.gate, "image_note", ref.String(), release); !errors.Is(err, ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		ctx := t.Context()
		for name, change := range map[string]func(ImageRef) error{
			"mark":    func(image ImageRef) error { return second(c.MarkImage(ctx, image, "v")) },
			"note":    func(image ImageRef) error { return c.NoteImage(ctx, image, "v", "note") },
			"release": func(image ImageRef) error { return c.ReleaseImage(ctx, image, "v", "note") },
			"keep":    func(image ImageRef) error { return c.KeepImage(ctx, image, "v", "now") },
			"adopt":   func(image ImageRef) error { return second(c.AdoptImage(ctx, image, "v", "note")) },
			"retake":  func(image ImageRef) error { return second(c.RetakeImage(ctx, image, "b", "v", "note")) },
		} {
			if err := change(ref); err == nil || !strings.Contains(err.Error(), "an earlier call on it has not ended") {
				t.Errorf("%s: %v", name, err)
			}
			if err := change(other); err == nil || !strings.Contains(err.Error(), "1 calls are ahead of it") {
				t.Errorf("%s of another image: %v", name, err)
			}
		}
	})
}

// TestANoteIsNotReplacedByAnOlderOne: Ceph hangs, the caller has given up its older note, and repeats with a newer
// one. Whatever Ceph does first when it goes on, the image says what was noted last.
func TestANoteIsNotReplacedByAnOlderOne(t *testing.T) {
	broken := cephtest.Start(t)
	const images = 12
	options := Options{Kubernetes: "a", Calls: 2 * images, MaxStuck: 2 * images, Connections: 4}
	for name, leader := range map[string]func(t *testing.T, former *Cluster) *Cluster{
		"call": func(_ *testing.T, former *Cluster) *Cluster { return former },
		"leader": func(t *testing.T, former *Cluster) *Cluster {
			t.Helper()
			fenced, next := addresses(t, former), options
			next.Admit = func(s Session) error { return s.Fence(time.Hour, fenced...) }
			return open(t, broken, next)
		},
	} {
		t.Run("of an earlier "+name, func(t *testing.T) {
			former := open(t, broken, options)
			ref := func(i int) ImageRef { return ImageRef{"rbd", fmt.Sprint("earlier-", name, i)} }
			for i := range images {
				must(t, former.CreateImage(t.Context(), ImageSpec{ImageRef: ref(i), SizeBytes: 1 << 20, Volume: "v"}))
			}
			now := leader(t, former)
			resume := broken.Stall(t)
			for _, err := range inParallel(images, func(i int) error {
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				return former.NoteImage(ctx, ref(i), "v", "epoch 4")
			}) {
				if !errors.Is(err, ErrUnavailable) {
					t.Fatalf("noted while the OSD hangs: %v", err)
				}
			}
			time.AfterFunc(2*time.Second, resume)
			for i, err := range inParallel(images, func(i int) error { return now.NoteImage(within(t, time.Minute), ref(i), "v", "epoch 5") }) {
				if err != nil {
					t.Errorf("image %d: %v", i, err)
				}
			}
			eventually(t, time.Minute, func() error {
				if h := former.Health(); h.Running > 0 {
					return fmt.Errorf("health %+v", h)
				}
				return nil
			})
			for i := range images {
				if mark, err := now.MarkOf(t.Context(), ref(i)); err != nil || mark.Note != "epoch 5" {
					t.Errorf("image %d says %q, %v", i, mark.Note, err)
				}
			}
		})
	}
}

// addresses are the Ceph clients of a cluster that was used.
func addresses(t *testing.T, c *Cluster) (all []string) {
	t.Helper()
	for _, l := range c.links {
		l.mu.Lock()
		if l.conn != nil {
			address, err := l.conn.conn.GetAddrs()
			must(t, err)
			all = append(all, address)
		}
		l.mu.Unlock()
	}
	return all
}
