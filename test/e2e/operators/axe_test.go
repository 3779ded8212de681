//go:build e2e

package operators

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/sha512"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/internal/buildcache"
)

// axe-core finds what screen readers and keyboards cannot use. The hash is that of the package, as npm
// writes it.
const (
	axeVersion = "4.14.1"
	axeHash    = "sha512-FHfa+lmNjQZfJz1q8wKqIDwC6DExcHt/pkjNQb09a3NPjCKg2rhu5qb2S4r76ASyFNNtuFooJpZe37OgudVGtQ=="
	axeScript  = "package/axe.min.js"
)

// axe returns the source of axe-core, from the cache of tools or, the first time, by npm.
func axe(t *testing.T) string {
	t.Helper()
	cache, err := buildcache.Open("")
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	dir, err := cache.Get(ctx, "tools", "axe-core-"+axeVersion+"-"+buildcache.Key(axeHash), fetchAxe)
	must(t, err)
	source, err := os.ReadFile(filepath.Join(dir, filepath.Base(axeScript)))
	must(t, err)
	return string(source)
}

func fetchAxe(ctx context.Context, dir string) error {
	command := exec.CommandContext(ctx, "npm", "pack", "axe-core@"+axeVersion, "--ignore-scripts", "--silent")
	command.Dir = dir
	if out, err := command.CombinedOutput(); err != nil {
		return fmt.Errorf("npm pack (hack/setup.sh screens installs it): %w\n%s", err, out)
	}
	path := filepath.Join(dir, "axe-core-"+axeVersion+".tgz")
	packed, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	sum := sha512.Sum512(packed)
	if got := "sha512-" + base64.StdEncoding.EncodeToString(sum[:]); got != axeHash {
		return fmt.Errorf("axe-core %s has the hash %s, not %s: do not use it", axeVersion, got, axeHash)
	}
	unpacked, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	for archive := tar.NewReader(unpacked); ; {
		header, err := archive.Next()
		if err != nil {
			return fmt.Errorf("%s in the package: %w", axeScript, err)
		}
		if header.Name != axeScript {
			continue
		}
		source, err := io.ReadAll(archive)
		if err != nil {
			return err
		}
		return errors.Join(os.Remove(path), os.WriteFile(filepath.Join(dir, filepath.Base(axeScript)), source, 0o644))
	}
}

// accessible fails if axe-core finds anything in what the browser shows.
func (c *chromium) accessible(what string) {
	c.t.Helper()
	if found := c.violations(); found != "" {
		c.t.Errorf("%s cannot be used by all: %s", what, found)
	}
}

// violations returns what axe-core finds; "" if that is nothing.
func (c *chromium) violations() string {
	c.t.Helper()
	c.run(axe(c.t) + ";0")
	found, _ := c.run(`axe.run().then(r => r.violations.map(v => v.id + ": " + v.help + ": " + v.nodes.map(n => n.html).join(" | ")).join("\n"))`).(string)
	return found
}
