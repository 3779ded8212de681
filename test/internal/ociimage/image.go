// Package ociimage writes container images from static binaries, without a container engine. An
// image has one layer, in the OCI image layout that `ctr images import` reads. The same input gives
// the same bytes.
package ociimage

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
)

// Image is what goes into one.
type Image struct {
	Ref        string   // full name with a tag, e.g. "lab.escache.io/busybox:1"
	Entrypoint []string // absolute paths inside the image
	Files      []File
}

// File is one file or symbolic link. Directories above it are made.
type File struct {
	Path    string      // absolute, in the image
	Source  string      // a file here; or
	Content []byte      // its content; or
	Link    string      // where the symbolic link points to
	Mode    fs.FileMode // 0: that of Source, or 0644
}

// Media types of the OCI image specification, v1.1.
const (
	typeIndex    = "application/vnd.oci.image.index.v1+json"
	typeManifest = "application/vnd.oci.image.manifest.v1+json"
	typeConfig   = "application/vnd.oci.image.config.v1+json"
	typeLayer    = "application/vnd.oci.image.layer.v1.tar"
)

type descriptor struct {
	MediaType   string            `json:"mediaType"`
	Digest      string            `json:"digest"`
	Size        int               `json:"size"`
	Platform    map[string]string `json:"platform,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

func describe(mediaType string, blob []byte) descriptor {
	sum := sha256.Sum256(blob)
	return descriptor{MediaType: mediaType, Digest: "sha256:" + hex.EncodeToString(sum[:]), Size: len(blob)}
}

// Write writes the image as a tar.
func Write(out io.Writer, image Image) error {
	name, tag, ok := strings.Cut(path.Base(image.Ref), ":")
	if !ok || name == "" || tag == "" || len(image.Entrypoint) == 0 {
		return fmt.Errorf("image %q needs a name with a tag and an entry point", image.Ref)
	}
	layer, err := layerOf(image.Files)
	if err != nil {
		return fmt.Errorf("image %s: %w", image.Ref, err)
	}
	platform := map[string]string{"architecture": "amd64", "os": "linux"}
	layerIs := describe(typeLayer, layer)
	config, err := json.Marshal(map[string]any{
		"architecture": platform["architecture"], "os": platform["os"],
		"config": map[string]any{"Entrypoint": image.Entrypoint, "Env": []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{layerIs.Digest}},
	})
	if err != nil {
		return err
	}
	configIs := describe(typeConfig, config)
	manifest, err := json.Marshal(map[string]any{
		"schemaVersion": 2, "mediaType": typeManifest, "config": configIs, "layers": []descriptor{layerIs},
	})
	if err != nil {
		return err
	}
	manifestIs := describe(typeManifest, manifest)
	manifestIs.Platform = platform
	manifestIs.Annotations = map[string]string{"io.containerd.image.name": image.Ref, "org.opencontainers.image.ref.name": tag}
	index, err := json.Marshal(map[string]any{"schemaVersion": 2, "mediaType": typeIndex, "manifests": []descriptor{manifestIs}})
	if err != nil {
		return err
	}
	return writeLayout(out, index, layer, config, manifest)
}

func writeLayout(out io.Writer, index []byte, blobs ...[]byte) error {
	t := tar.NewWriter(out)
	files := []File{{Path: "/oci-layout", Content: []byte(`{"imageLayoutVersion":"1.0.0"}`)}, {Path: "/index.json", Content: index}}
	for _, blob := range blobs {
		files = append(files, File{Path: "/blobs/" + strings.Replace(describe("", blob).Digest, ":", "/", 1), Content: blob})
	}
	for _, file := range files {
		if err := add(t, file); err != nil {
			return err
		}
	}
	return t.Close()
}

// layerOf is the root file system as a tar, ordered by path.
func layerOf(files []File) ([]byte, error) {
	files = append([]File{
		{Path: "/etc/passwd", Content: []byte("root:x:0:0:root:/:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n")},
		{Path: "/etc/group", Content: []byte("root:x:0:\nnogroup:x:65534:\n")},
	}, files...)
	directories := map[string]fs.FileMode{"/dev": 0o755, "/proc": 0o755, "/run": 0o755, "/sys": 0o755, "/tmp": 0o1777, "/var": 0o755}
	for _, file := range files {
		if !path.IsAbs(file.Path) || path.Clean(file.Path) != file.Path {
			return nil, fmt.Errorf("path %q is not absolute and clean", file.Path)
		}
		for dir := path.Dir(file.Path); dir != "/"; dir = path.Dir(dir) {
			if directories[dir] == 0 {
				directories[dir] = 0o755
			}
		}
	}
	var b bytes.Buffer
	t := tar.NewWriter(&b)
	paths := make([]string, 0, len(directories))
	for dir := range directories {
		paths = append(paths, dir)
	}
	slices.Sort(paths)
	for _, dir := range paths {
		header := &tar.Header{Typeflag: tar.TypeDir, Name: dir[1:] + "/", Mode: int64(directories[dir])}
		if err := t.WriteHeader(header); err != nil {
			return nil, err
		}
	}
	slices.SortStableFunc(files, func(a, b File) int { return strings.Compare(a.Path, b.Path) })
	for _, file := range files {
		if err := add(t, file); err != nil {
			return nil, err
		}
	}
	if err := t.Close(); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// add writes one file; no time and no owner, so that the same input gives the same bytes.
func add(t *tar.Writer, file File) error {
	header := &tar.Header{Name: strings.TrimPrefix(file.Path, "/"), Typeflag: tar.TypeReg, Mode: int64(file.Mode.Perm())}
	switch {
	case file.Link != "":
		header.Typeflag, header.Linkname, header.Mode = tar.TypeSymlink, file.Link, 0o777
		return t.WriteHeader(header)
	case file.Source != "":
		info, err := os.Stat(file.Source)
		if err != nil {
			return err
		}
		if header.Mode == 0 {
			header.Mode = int64(info.Mode().Perm())
		}
		if file.Content, err = os.ReadFile(file.Source); err != nil {
			return err
		}
	}
	if header.Mode == 0 {
		header.Mode = 0o644
	}
	header.Size = int64(len(file.Content))
	if err := t.WriteHeader(header); err != nil {
		return err
	}
	_, err := t.Write(file.Content)
	return err
}
