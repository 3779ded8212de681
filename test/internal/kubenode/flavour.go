// Package kubenode turns a lab machine into a Kubernetes node. It adds containerd, the kubelet and
// unpacked container images to the root image, and writes the files that differ for each node.
package kubenode

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/escache/escache-csi/test/internal/hostimage"
	"github.com/escache/escache-csi/test/internal/ociimage"
)

// Images that every node has. Nothing can be pulled in the lab.
const (
	PauseImage   = "lab.escache.io/pause:1"
	BusyboxImage = "lab.escache.io/busybox:1"
)

// Images are what a node's containerd has from the start, beside busybox.
type Images struct {
	Pause string // the program of test/pause, static
	// More are images made of files of this machine.
	More []ociimage.Image
	// Archives are files that `ctr images import` reads.
	Archives []string
}

// source is what nodes get, and the script that fills containerd's store.
//
//go:embed files
var source embed.FS

// Programs are the tools that Flavour needs.
func Programs() []string {
	return []string{"containerd", "containerd-shim-runc-v2", "ctr", "kubelet"}
}

// Flavour is the root image of a node. Programs are paths by name.
func Flavour(programs map[string]string, images Images) (hostimage.Flavour, error) {
	flavour := hostimage.Base()
	flavour.Name = "kubernetes"
	flavour.Packages = append(flavour.Packages, "containernetworking-plugins", "runc")
	flavour.Files = append(flavour.Files, "/usr/sbin/runc", "/usr/lib/cni/{host-local,loopback,portmap,ptp}")
	flavour.SizeMiB = 2048
	for _, name := range Programs() {
		// The image wants the file, not the link that a program of several names is.
		path, err := filepath.EvalSymlinks(programs[name])
		if err != nil {
			return flavour, fmt.Errorf("root image of a Kubernetes node: %s: %w", name, err)
		}
		flavour.Extra = append(flavour.Extra, hostimage.Extra{Source: path, Path: "/usr/local/bin/" + name})
	}
	script, err := source.ReadFile("files/preload.sh")
	if err != nil {
		return flavour, err
	}
	if flavour.HookKey, err = images.key(script); err != nil {
		return flavour, fmt.Errorf("root image of a Kubernetes node: %w", err)
	}
	extra, err := images.sizeMiB()
	if err != nil {
		return flavour, fmt.Errorf("root image of a Kubernetes node: %w", err)
	}
	flavour.SizeMiB += extra
	flavour.Hook = func(ctx context.Context, root string) error {
		if err := preload(ctx, root, script, images); err != nil {
			return fmt.Errorf("put images into containerd's store: %w", err)
		}
		return nil
	}
	return flavour, nil
}

// key names all that preload's result depends on.
func (i Images) key(script []byte) (string, error) {
	sum := sha256.New()
	sum.Write(script)
	files := append([]string{i.Pause}, i.Archives...)
	for _, image := range i.More {
		fmt.Fprintln(sum, image.Ref, image.Entrypoint)
		for _, file := range image.Files {
			fmt.Fprintln(sum, file.Path)
			files = append(files, file.Source)
		}
	}
	for _, path := range files {
		file, err := os.Open(path)
		if err != nil {
			return "", err
		}
		_, err = io.Copy(sum, file)
		if err := errors.Join(err, file.Close()); err != nil {
			return "", err
		}
	}
	return strings.Join([]string{PauseImage, BusyboxImage, hex.EncodeToString(sum.Sum(nil))}, " "), nil
}

// sizeMiB is what the images take in containerd's store, where each is twice: packed and unpacked.
func (i Images) sizeMiB() (int, error) {
	files := slices.Clone(i.Archives)
	for _, image := range i.More {
		for _, file := range image.Files {
			files = append(files, file.Source)
		}
	}
	var bytes int64
	for _, path := range files {
		info, err := os.Stat(path)
		if err != nil {
			return 0, err
		}
		bytes += 2*info.Size() + info.Size()/4 // small files take whole blocks
	}
	return int(bytes >> 20), nil
}

// preload writes the images and lets containerd unpack them into the tree, so that no node has to.
func preload(ctx context.Context, root string, script []byte, images Images) error {
	state, err := os.MkdirTemp("", "preload-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	busybox, err := busyboxFiles(ctx, filepath.Join(root, "usr/bin/busybox"))
	if err != nil {
		return err
	}
	made := append([]ociimage.Image{
		{Ref: PauseImage, Entrypoint: []string{"/pause"}, Files: []ociimage.File{{Path: "/pause", Source: images.Pause}}},
		{Ref: BusyboxImage, Entrypoint: []string{"/bin/sh"}, Files: busybox},
	}, images.More...)
	bin := filepath.Join(root, "usr/local/bin")
	store := filepath.Join(root, "var/lib/containerd")
	args := []string{
		"--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-s", "--",
		filepath.Join(bin, "containerd"), filepath.Join(bin, "ctr"), store, state,
	}
	for i, image := range made {
		path := filepath.Join(state, fmt.Sprintf("%d.tar", i))
		if err := writeImage(path, image); err != nil {
			return err
		}
		args = append(args, path)
	}
	args = append(args, images.Archives...)
	if err := os.MkdirAll(store, 0o711); err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, "unshare", args...)
	cmd.Stdin = bytes.NewReader(script)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%w: %s", err, out)
	}
	return nil
}

func writeImage(path string, image ociimage.Image) error {
	file, err := os.Create(path)
	if err != nil {
		return err
	}
	defer file.Close()
	return ociimage.Write(file, image)
}

// busyboxFiles is busybox under all its names.
func busyboxFiles(ctx context.Context, program string) ([]ociimage.File, error) {
	names, err := exec.CommandContext(ctx, program, "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("ask busybox for its programs: %w", err)
	}
	files := []ociimage.File{{Path: "/bin/busybox", Source: program}}
	for name := range strings.FieldsSeq(string(names)) {
		if name != "busybox" {
			files = append(files, ociimage.File{Path: "/bin/" + name, Link: "busybox"})
		}
	}
	return files, nil
}
