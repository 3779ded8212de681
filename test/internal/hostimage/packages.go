package hostimage

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/escache/escache-csi/test/internal/buildcache"
)

// kernelPackage is Debian's name for its newest kernel for virtual machines.
const kernelPackage = "linux-image-cloud-amd64"

// neverNeeded are dependencies of scripts that no host runs; they are large.
var neverNeeded = []string{
	"adduser", "debconf", "dpkg", "initramfs-tools", "klibc-utils", "libicu", "libklibc", "libperl", "libpython3", "linux-base",
	"passwd", "perl", "python3", "usrmerge",
}

// debian is a package file, as apt names it.
type debian struct {
	name, version string
	file          string // name of the downloaded file
}

func (d debian) String() string { return d.name + "=" + d.version }

// resolve asks apt for packages and all they depend on, as if nothing were installed here.
func resolve(ctx context.Context, packages []string) ([]debian, error) {
	state, err := os.MkdirTemp("", "lab-apt-")
	if err != nil {
		return nil, fmt.Errorf("resolve packages: %w", err)
	}
	defer os.RemoveAll(state)
	status := filepath.Join(state, "status")
	if err := os.WriteFile(status, nil, 0o644); err != nil {
		return nil, fmt.Errorf("resolve packages: %w", err)
	}
	args := append([]string{
		"-qq", "--print-uris", "--no-install-recommends",
		"-o", "Dir::State::status=" + status, "-o", "Dir::Cache=" + state, "-o", "Debug::NoLocking=1", "install",
	}, packages...)
	out, err := output(exec.CommandContext(ctx, "apt-get", args...))
	if err != nil {
		return nil, fmt.Errorf("resolve Debian packages (is there a package list? run apt-get update): %w", err)
	}
	return parseURIs(out)
}

// parseURIs reads apt's lines of 'URI' FILE SIZE HASH.
func parseURIs(out []byte) ([]debian, error) {
	var found []debian
	lines := bufio.NewScanner(bytes.NewReader(out))
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 3 || !strings.HasPrefix(fields[0], "'") {
			continue
		}
		parts := strings.Split(fields[1], "_")
		if len(parts) != 3 {
			return nil, fmt.Errorf("apt names a package file %q, which is not NAME_VERSION_ARCH.deb", fields[1])
		}
		version, err := url.PathUnescape(parts[1])
		if err != nil {
			return nil, fmt.Errorf("version in %q: %w", fields[1], err)
		}
		if !slices.ContainsFunc(neverNeeded, func(prefix string) bool { return strings.HasPrefix(parts[0], prefix) }) {
			found = append(found, debian{name: parts[0], version: version, file: fields[1]})
		}
	}
	if len(found) == 0 {
		return nil, errors.New("apt resolved no package")
	}
	return found, lines.Err()
}

// download fetches the package files that the cache does not have yet, and returns the directory
// that holds all of them.
func download(ctx context.Context, cache *buildcache.Cache, packages []debian) (string, error) {
	dir, err := cache.Dir("debs")
	if err != nil {
		return "", err
	}
	unlock, err := cache.Lock(ctx, "debs")
	if err != nil {
		return "", err
	}
	defer unlock()
	args := []string{"-q", "-o", "APT::Sandbox::User=root", "download"}
	known := len(args)
	for _, p := range packages {
		if _, err := os.Stat(filepath.Join(dir, p.file)); err != nil {
			args = append(args, p.String())
		}
	}
	if len(args) == known {
		return dir, nil
	}
	fetch, err := os.MkdirTemp(dir, "new-")
	if err != nil {
		return "", fmt.Errorf("download packages: %w", err)
	}
	defer os.RemoveAll(fetch)
	cmd := exec.CommandContext(ctx, "apt-get", args...)
	cmd.Dir = fetch
	if _, err := output(cmd); err != nil {
		return "", fmt.Errorf("download Debian packages: %w", err)
	}
	files, err := os.ReadDir(fetch)
	if err != nil {
		return "", fmt.Errorf("download packages: %w", err)
	}
	for _, file := range files {
		if err := os.Rename(filepath.Join(fetch, file.Name()), filepath.Join(dir, file.Name())); err != nil {
			return "", fmt.Errorf("download packages: %w", err)
		}
	}
	return dir, nil
}

// unpack extracts the packages into one tree in which /bin, /sbin and /lib are links into /usr, as
// on a Debian 12 host.
func unpack(ctx context.Context, debs string, packages []debian, tree string) error {
	if err := mergedTree(tree); err != nil {
		return err
	}
	for _, p := range packages {
		// dpkg -x would replace the links of the merged tree by directories.
		contents := exec.CommandContext(ctx, "dpkg-deb", "--fsys-tarfile", filepath.Join(debs, p.file))
		extract := exec.CommandContext(ctx, "tar", "-x", "--keep-directory-symlink", "-C", tree)
		var err error
		if extract.Stdin, err = contents.StdoutPipe(); err != nil {
			return fmt.Errorf("unpack %s: %w", p, err)
		}
		if err := contents.Start(); err != nil {
			return fmt.Errorf("unpack %s: %w", p, err)
		}
		_, extracted := output(extract)
		if err := errors.Join(extracted, contents.Wait()); err != nil {
			return fmt.Errorf("unpack %s: %w", p, err)
		}
	}
	return nil
}

func mergedTree(root string) error {
	for _, dir := range []string{"bin", "sbin", "lib", "lib64"} {
		if err := os.MkdirAll(filepath.Join(root, "usr", dir), 0o755); err != nil {
			return fmt.Errorf("create a root tree: %w", err)
		}
		if err := os.Symlink("usr/"+dir, filepath.Join(root, dir)); err != nil {
			return fmt.Errorf("create a root tree: %w", err)
		}
	}
	return nil
}

// output runs a command and returns what it printed; an error holds the end of what it complained
// about.
func output(cmd *exec.Cmd) ([]byte, error) {
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	cmd.Env = append(os.Environ(), "LC_ALL=C", "DEBIAN_FRONTEND=noninteractive")
	out, err := cmd.Output()
	if err != nil {
		text := complaints.Bytes()
		return nil, fmt.Errorf("%s: %w: %s", filepath.Base(cmd.Path), err, bytes.TrimSpace(text[max(0, len(text)-2000):]))
	}
	return out, nil
}
