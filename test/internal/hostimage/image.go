package hostimage

import (
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/escache/escache-csi/test/internal/buildcache"
)

// source is this builder: what it puts into an image, and itself, since a change of either makes
// another image.
//
//go:embed *.go initramfs.sh all:rootfs
var source embed.FS

// Image is what a machine boots.
type Image struct {
	Kernel string
	Initrd string
	Root   string // ext4, to be copied for each machine
	// Release is the kernel's, e.g. 6.1.0-56-cloud-amd64.
	Release string
}

// Build returns the image of a flavour, from the cache where it is there. It needs the network only
// when a package is not in the cache yet.
func Build(ctx context.Context, cache *buildcache.Cache, flavour Flavour, log func(step string)) (Image, error) {
	packages, err := versions(ctx, cache, append(slices.Clone(flavour.Packages), kernelPackage))
	if err != nil {
		return Image{}, err
	}
	key, err := imageKey(flavour, packages)
	if err != nil {
		return Image{}, err
	}
	dir, err := cache.Get(ctx, "hostimage", flavour.Name+"-"+key, func(ctx context.Context, dir string) error {
		b := builder{cache: cache, flavour: flavour, packages: packages, dir: dir, log: log}
		return b.build(ctx)
	})
	if err != nil {
		return Image{}, fmt.Errorf("build the host image %q: %w", flavour.Name, err)
	}
	release, err := os.ReadFile(filepath.Join(dir, "release"))
	if err != nil {
		return Image{}, fmt.Errorf("host image: %w", err)
	}
	return Image{
		Kernel: filepath.Join(dir, "kernel"), Initrd: filepath.Join(dir, "initrd"), Root: filepath.Join(dir, "root.ext4"),
		Release: strings.TrimSpace(string(release)),
	}, nil
}

// versions resolves packages once for each state of apt's package lists, because that takes apt
// more than a second.
func versions(ctx context.Context, cache *buildcache.Cache, packages []string) ([]debian, error) {
	parts := slices.Clone(packages)
	for _, pattern := range []string{
		"/var/lib/apt/lists/*Release", "/var/lib/apt/lists/*Packages*", "/etc/apt/sources.list*", "/etc/apt/sources.list.d/*",
	} {
		lists, err := filepath.Glob(pattern)
		if err != nil {
			return nil, fmt.Errorf("package lists: %w", err)
		}
		for _, list := range lists {
			if info, err := os.Stat(list); err == nil {
				parts = append(parts, fmt.Sprint(list, info.Size(), info.ModTime().UnixNano()))
			}
		}
	}
	dir, err := cache.Get(ctx, "resolved", buildcache.Key(parts...), func(ctx context.Context, dir string) error {
		found, err := resolve(ctx, packages)
		if err != nil {
			return err
		}
		var lines strings.Builder
		for _, p := range found {
			fmt.Fprintln(&lines, p.name, p.version, p.file)
		}
		return os.WriteFile(filepath.Join(dir, "packages"), []byte(lines.String()), 0o644)
	})
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(filepath.Join(dir, "packages"))
	if err != nil {
		return nil, fmt.Errorf("resolved packages: %w", err)
	}
	var found []debian
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) != 3 {
			return nil, fmt.Errorf("%s holds a broken line %q; remove it", dir, line)
		}
		found = append(found, debian{name: fields[0], version: fields[1], file: fields[2]})
	}
	return found, nil
}

func imageKey(flavour Flavour, packages []debian) (string, error) {
	self, err := buildcache.KeyFS(source)
	if err != nil {
		return "", err
	}
	parts := append(flavour.key(), self)
	for _, p := range packages {
		parts = append(parts, p.String())
	}
	for _, extra := range flavour.Extra {
		sum, err := hashTree(extra.Source)
		if err != nil {
			return "", err
		}
		parts = append(parts, extra.Path, sum)
	}
	return buildcache.Key(parts...), nil
}

func hashTree(root string) (string, error) {
	sum := sha256.New()
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.Type().IsRegular() {
			return err
		}
		file, err := os.Open(path)
		if err != nil {
			return err
		}
		defer file.Close()
		fmt.Fprintln(sum, strings.TrimPrefix(path, root))
		_, err = io.Copy(sum, file)
		return err
	})
	if err != nil {
		return "", fmt.Errorf("extra files of the host image: %w", err)
	}
	return hex.EncodeToString(sum.Sum(nil)), nil
}

type builder struct {
	cache    *buildcache.Cache
	flavour  Flavour
	packages []debian
	dir      string
	log      func(string)
}

func (b *builder) build(ctx context.Context) error {
	work := filepath.Join(b.dir, "work")
	defer os.RemoveAll(work)
	packages, root := filepath.Join(work, "packages"), filepath.Join(work, "root")
	b.log("download packages")
	debs, err := download(ctx, b.cache, b.packages)
	if err != nil {
		return err
	}
	b.log("unpack packages")
	if err := unpack(ctx, debs, b.packages, packages); err != nil {
		return err
	}
	k, err := readKernel(ctx, packages)
	if err != nil {
		return err
	}
	b.log("put the root tree together")
	if err := b.fill(ctx, k, packages, root); err != nil {
		return err
	}
	b.log("write kernel, initramfs and root disk")
	if err := makeKernel(ctx, filepath.Join(packages, "boot/vmlinuz-"+k.version), filepath.Join(b.dir, "kernel")); err != nil {
		return err
	}
	if err := makeInitramfs(ctx, k, filepath.Join(work, "initramfs"), filepath.Join(b.dir, "initrd")); err != nil {
		return err
	}
	if err := makeDisk(ctx, root, filepath.Join(b.dir, "root.ext4"), b.flavour.SizeMiB); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(b.dir, "release"), []byte(k.version+"\n"), 0o644)
}

// fill puts together what a host's root holds.
func (b *builder) fill(ctx context.Context, k *kernel, packages, root string) error {
	if err := mergedTree(root); err != nil {
		return err
	}
	t := &tree{from: packages, to: root, done: map[string]bool{}}
	for _, pattern := range b.flavour.Files {
		if err := t.add(pattern); err != nil {
			return err
		}
	}
	if err := k.install(ctx, b.flavour.Modules, root); err != nil {
		return err
	}
	if err := busyboxLinks(ctx, root); err != nil {
		return err
	}
	if err := writeOwnFiles(root); err != nil {
		return err
	}
	for _, extra := range b.flavour.Extra {
		if err := copyTree(extra.Source, filepath.Join(root, extra.Path)); err != nil {
			return fmt.Errorf("put %s into the image: %w", extra.Source, err)
		}
	}
	if b.flavour.Hook != nil {
		return b.flavour.Hook(ctx, root)
	}
	return nil
}

// busyboxLinks offers every program of busybox for which there is no real one.
func busyboxLinks(ctx context.Context, root string) error {
	names, err := output(exec.CommandContext(ctx, filepath.Join(root, "bin/busybox"), "--list"))
	if err != nil {
		return fmt.Errorf("busybox: %w", err)
	}
	for name := range strings.FieldsSeq(string(names)) {
		found, err := filepath.Glob(filepath.Join(root, "usr/*bin", name))
		if err != nil || len(found) > 0 {
			continue
		}
		if err := os.Symlink("/bin/busybox", filepath.Join(root, "usr/bin", name)); err != nil {
			return fmt.Errorf("busybox: %w", err)
		}
	}
	return os.Symlink("/bin/busybox", filepath.Join(root, "sbin/init"))
}

// writeOwnFiles writes the files of rootfs; all scripts among them can be run.
func writeOwnFiles(root string) error {
	for _, dir := range []string{
		"dev", "proc", "sys", "run", "tmp", "mnt", "root", "etc/lab/services", "etc/lab/boot.d", "var/lib/drbd", "var/log", "usr/local/bin",
	} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			return fmt.Errorf("root tree: %w", err)
		}
	}
	err := fs.WalkDir(source, "rootfs", func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		data, err := source.ReadFile(path)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if strings.HasPrefix(string(data), "#!") {
			mode = 0o755
		}
		target := filepath.Join(root, strings.TrimPrefix(path, "rootfs/"))
		return errors.Join(os.MkdirAll(filepath.Dir(target), 0o755), os.RemoveAll(target), os.WriteFile(target, data, mode))
	})
	if err != nil {
		return fmt.Errorf("root tree: %w", err)
	}
	for link, to := range map[string]string{"var/run": "/run", "var/lock": "/run/lock", "etc/mtab": "/proc/self/mounts"} {
		if err := os.Symlink(to, filepath.Join(root, link)); err != nil {
			return fmt.Errorf("root tree: %w", err)
		}
	}
	return nil
}

func makeDisk(ctx context.Context, root, target string, sizeMiB int) error {
	_, err := output(exec.CommandContext(ctx, "mke2fs", "-q", "-F", "-t", "ext4", "-J", "size=16",
		"-E", "lazy_itable_init=0,root_owner=0:0", "-d", root, target, strconv.Itoa(sizeMiB)+"M"))
	if err != nil {
		return fmt.Errorf("write the root disk: %w", err)
	}
	return nil
}
