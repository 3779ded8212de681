// Package buildcache keeps packages, images and binaries that are slow to build. An entry is a
// directory whose name is a hash of everything it was built from, so entries never change. Several
// checkouts and processes can share a cache.
package buildcache

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// unusedFor is how long an entry is kept after its last use.
const unusedFor = 14 * 24 * time.Hour

// Cache is a directory of entries.
type Cache struct {
	dir string
}

// Open opens the cache in dir. If dir is empty, it is $ESCACHE_CACHE, $XDG_CACHE_HOME/escache-csi
// or ~/.cache/escache-csi.
func Open(dir string) (*Cache, error) {
	if dir == "" {
		dir = os.Getenv("ESCACHE_CACHE")
	}
	if dir == "" {
		user, err := os.UserCacheDir()
		if err != nil {
			return nil, fmt.Errorf("find a place for the cache (set ESCACHE_CACHE to a directory): %w", err)
		}
		dir = filepath.Join(user, "escache-csi")
	}
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, fmt.Errorf("cache directory: %w", err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the cache: %w", err)
	}
	return &Cache{dir: dir}, nil
}

// Key hashes the parts that an entry is built from.
func Key(parts ...string) string {
	sum := sha256.New()
	for _, part := range parts {
		fmt.Fprintf(sum, "%d:%s,", len(part), part)
	}
	return hex.EncodeToString(sum.Sum(nil))[:20]
}

// KeyFS hashes the names and contents of all files in a tree except tests, so that a builder's own
// embedded source can be part of the key.
func KeyFS(tree fs.FS) (string, error) {
	var parts []string
	err := fs.WalkDir(tree, ".", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() || strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := fs.ReadFile(tree, path)
		parts = append(parts, path, string(data))
		return err
	})
	if err != nil {
		return "", fmt.Errorf("hash a tree: %w", err)
	}
	return Key(parts...), nil
}

// Get returns the directory of the entry kind/key. If it is missing, build fills an empty
// directory, which becomes the entry if build succeeds. Of several callers, in any process, one
// builds and the others wait.
func (c *Cache) Get(ctx context.Context, kind, key string, build func(ctx context.Context, dir string) error) (string, error) {
	entry := filepath.Join(c.dir, kind, key)
	if c.use(entry) {
		return entry, nil
	}
	unlock, err := c.lock(ctx, kind+"-"+key)
	if err != nil {
		return "", err
	}
	defer unlock()
	if c.use(entry) {
		return entry, nil
	}
	if err := os.MkdirAll(filepath.Dir(entry), 0o755); err != nil {
		return "", fmt.Errorf("create the cache: %w", err)
	}
	// A build that was killed may have left a directory. Only this process holds the lock, so it
	// can be removed.
	work := entry + ".new"
	if err := os.RemoveAll(work); err != nil {
		return "", fmt.Errorf("clear %s: %w", work, err)
	}
	defer os.RemoveAll(work)
	if err := os.Mkdir(work, 0o755); err != nil {
		return "", fmt.Errorf("cache entry: %w", err)
	}
	if err := build(ctx, work); err != nil {
		return "", err
	}
	if err := os.Rename(work, entry); err != nil {
		return "", fmt.Errorf("cache entry: %w", err)
	}
	c.prune(filepath.Dir(entry))
	return entry, nil
}

// Dir returns a directory of the cache that callers fill themselves, for files whose names contain
// their version.
func (c *Cache) Dir(kind string) (string, error) {
	dir := filepath.Join(c.dir, kind)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("create the cache: %w", err)
	}
	return dir, nil
}

// Lock waits for the exclusive use of a name. The returned function ends that use.
func (c *Cache) Lock(ctx context.Context, name string) (func(), error) { return c.lock(ctx, name) }

func (c *Cache) use(entry string) bool {
	if _, err := os.Stat(entry); err != nil {
		return false
	}
	now := time.Now()
	_ = os.Chtimes(entry, now, now) // only prune looks at it
	return true
}

func (c *Cache) prune(kind string) {
	entries, err := os.ReadDir(kind)
	if err != nil {
		return
	}
	for _, entry := range entries {
		info, err := entry.Info()
		if err == nil && entry.IsDir() && time.Since(info.ModTime()) > unusedFor {
			_ = os.RemoveAll(filepath.Join(kind, entry.Name())) // what stays now goes the next time
		}
	}
}

// sayEvery is how often a process that waits for another one prints so.
const sayEvery = 30 * time.Second

// lock polls, because a blocking flock cannot be interrupted by a context.
func (c *Cache) lock(ctx context.Context, name string) (func(), error) {
	dir := filepath.Join(c.dir, "locks")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, fmt.Errorf("create the cache: %w", err)
	}
	file, err := os.OpenFile(filepath.Join(dir, name), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("lock %s: %w", name, err)
	}
	said := time.Now()
	for {
		err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if err == nil {
			return func() { file.Close() }, nil
		}
		if !errors.Is(err, syscall.EWOULDBLOCK) && !errors.Is(err, syscall.EINTR) {
			file.Close()
			return nil, fmt.Errorf("lock %s: %w", name, err)
		}
		if time.Since(said) > sayEvery {
			said = time.Now()
			fmt.Fprintf(os.Stderr, "waiting for another process that builds %s in %s\n", name, c.dir)
		}
		select {
		case <-ctx.Done():
			file.Close()
			return nil, fmt.Errorf("another process builds %s in %s and has not finished: %w", name, c.dir, ctx.Err())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
