// Package kubenode makes a lab machine a Kubernetes node: what its root image holds beyond a plain host's (containerd, kubelet, images
// unpacked in containerd's store), and the files that are each node's own.
package kubenode

import (
	"bytes"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/escache/escache-csi/hack/internal/hostimage"
	"github.com/escache/escache-csi/hack/internal/ociimage"
)

// Images that every node has. Nothing can be pulled in the lab.
const (
	PauseImage   = "lab.escache.io/pause:1"
	BusyboxImage = "lab.escache.io/busybox:1"
)

// source is what nodes get, and the script that fills containerd's store.
//
//go:embed files
var source embed.FS

// Programs are the tools that Flavour needs.
func Programs() []string {
	return []string{"containerd", "containerd-shim-runc-v2", "ctr", "kubelet"}
}

// Flavour is the root image of a node. Programs are paths by name; pause is the program of hack/pause, static.
func Flavour(programs map[string]string, pause string) (hostimage.Flavour, error) {
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
	program, err := os.ReadFile(pause)
	if err != nil {
		return flavour, fmt.Errorf("root image of a Kubernetes node: %w", err)
	}
	sum := sha256.Sum256(append(program, script...))
	flavour.HookKey = strings.Join([]string{PauseImage, BusyboxImage, hex.EncodeToString(sum[:])}, " ")
	flavour.Hook = func(ctx context.Context, root string) error {
		if err := preload(ctx, root, script, pause); err != nil {
			return fmt.Errorf("put images into containerd's store: %w", err)
		}
		return nil
	}
	return flavour, nil
}

// preload writes the images and lets containerd unpack them into the tree, so that no node has to.
func preload(ctx context.Context, root string, script []byte, pause string) error {
	state, err := os.MkdirTemp("", "preload-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	busybox, err := busyboxFiles(ctx, filepath.Join(root, "usr/bin/busybox"))
	if err != nil {
		return err
	}
	images := []ociimage.Image{
		{Ref: PauseImage, Entrypoint: []string{"/pause"}, Files: []ociimage.File{{Path: "/pause", Source: pause}}},
		{Ref: BusyboxImage, Entrypoint: []string{"/bin/sh"}, Files: busybox},
	}
	bin := filepath.Join(root, "usr/local/bin")
	store := filepath.Join(root, "var/lib/containerd")
	args := []string{
		"--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-s", "--",
		filepath.Join(bin, "containerd"), filepath.Join(bin, "ctr"), store, state,
	}
	for i, image := range images {
		path := filepath.Join(state, fmt.Sprintf("%d.tar", i))
		if err := writeImage(path, image); err != nil {
			return err
		}
		args = append(args, path)
	}
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
