package buildcache

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"
)

func open(t *testing.T) *Cache {
	t.Helper()
	cache, err := Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	return cache
}

func TestAnEntryIsBuiltOnceByOneOfManyCallers(t *testing.T) {
	cache := open(t)
	var builds atomic.Int32
	var group sync.WaitGroup
	for range 8 {
		group.Go(func() {
			dir, err := cache.Get(t.Context(), "kind", "key", func(_ context.Context, dir string) error {
				builds.Add(1)
				time.Sleep(20 * time.Millisecond)
				return os.WriteFile(filepath.Join(dir, "file"), []byte("x"), 0o644)
			})
			if err != nil {
				t.Error(err)
				return
			}
			if _, err := os.Stat(filepath.Join(dir, "file")); err != nil {
				t.Error(err)
			}
		})
	}
	group.Wait()
	if builds.Load() != 1 {
		t.Errorf("built %d times", builds.Load())
	}
}

func TestAFailedBuildLeavesNoEntry(t *testing.T) {
	cache := open(t)
	failed := errors.New("no")
	if _, err := cache.Get(t.Context(), "kind", "key", func(context.Context, string) error { return failed }); !errors.Is(err, failed) {
		t.Fatalf("got %v", err)
	}
	left, err := filepath.Glob(filepath.Join(cache.dir, "kind", "*"))
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v %v", left, err)
	}
	if _, err := cache.Get(t.Context(), "kind", "key", func(context.Context, string) error { return nil }); err != nil {
		t.Errorf("second try: %v", err)
	}
}

func TestWaitingForAnotherBuildEndsWithTheContext(t *testing.T) {
	cache := open(t)
	unlock, err := cache.Lock(t.Context(), "kind-key")
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err = cache.Get(ctx, "kind", "key", func(context.Context, string) error { return nil })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

func TestOldEntriesGoWhenANewOneComes(t *testing.T) {
	cache := open(t)
	nothing := func(context.Context, string) error { return nil }
	old, err := cache.Get(t.Context(), "kind", "old", nothing)
	if err != nil {
		t.Fatal(err)
	}
	past := time.Now().Add(-unusedFor - time.Hour)
	if err := os.Chtimes(old, past, past); err != nil {
		t.Fatal(err)
	}
	if _, err := cache.Get(t.Context(), "kind", "new", nothing); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(old); !os.IsNotExist(err) {
		t.Errorf("the old entry is still there: %v", err)
	}
}

func TestKeysTellContentsApart(t *testing.T) {
	if Key("ab", "c") == Key("a", "bc") {
		t.Error("parts run into each other")
	}
	one, err := KeyFS(fstest.MapFS{"a": {Data: []byte("1")}})
	if err != nil {
		t.Fatal(err)
	}
	two, err := KeyFS(fstest.MapFS{"a": {Data: []byte("2")}})
	if err != nil || one == two {
		t.Errorf("same key for other content (%v)", err)
	}
}
