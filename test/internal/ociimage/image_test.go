package ociimage

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func sample(t *testing.T) Image {
	t.Helper()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	return Image{
		Ref: "lab.escache.io/sample:1", Entrypoint: []string{"/usr/bin/program"},
		Files: []File{{Path: "/usr/bin/program", Source: program}, {Path: "/bin/sh", Link: "/usr/bin/program"}, {Path: "/etc/conf", Content: []byte("x")}},
	}
}

func contents(t *testing.T, r io.Reader) (map[string][]byte, map[string]*tar.Header) {
	t.Helper()
	files, headers := map[string][]byte{}, map[string]*tar.Header{}
	for in := tar.NewReader(r); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			return files, headers
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(in)
		if err != nil {
			t.Fatal(err)
		}
		files[header.Name], headers[header.Name] = data, header
	}
}

func TestEveryBlobIsWhereItsDigestSays(t *testing.T) {
	var out bytes.Buffer
	if err := Write(&out, sample(t)); err != nil {
		t.Fatal(err)
	}
	files, _ := contents(t, &out)
	blob := func(d descriptor) []byte {
		data, ok := files["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
		if !ok || describe(d.MediaType, data).Digest != d.Digest || len(data) != d.Size {
			t.Fatalf("no blob of %d bytes for %s", d.Size, d.Digest)
		}
		return data
	}
	var index struct {
		Manifests []descriptor `json:"manifests"`
	}
	if err := json.Unmarshal(files["index.json"], &index); err != nil || len(index.Manifests) != 1 {
		t.Fatal(index, err)
	}
	if name := index.Manifests[0].Annotations["io.containerd.image.name"]; name != "lab.escache.io/sample:1" {
		t.Errorf("name %q", name)
	}
	var manifest struct {
		Config descriptor   `json:"config"`
		Layers []descriptor `json:"layers"`
	}
	if err := json.Unmarshal(blob(index.Manifests[0]), &manifest); err != nil || len(manifest.Layers) != 1 {
		t.Fatal(manifest, err)
	}
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
	}
	if err := json.Unmarshal(blob(manifest.Config), &config); err != nil || config.RootFS.DiffIDs[0] != manifest.Layers[0].Digest {
		t.Errorf("the uncompressed layer is not the one named: %v, %v", config, err)
	}
	layer, headers := contents(t, bytes.NewReader(blob(manifest.Layers[0])))
	if string(layer["usr/bin/program"]) != "#!/bin/sh\n" || headers["usr/bin/program"].Mode != 0o755 {
		t.Errorf("program: %q, mode %o", layer["usr/bin/program"], headers["usr/bin/program"].Mode)
	}
	if headers["bin/sh"].Linkname != "/usr/bin/program" || headers["usr/bin/"] == nil || headers["tmp/"].Mode != 0o1777 {
		t.Errorf("links and directories: %v", headers)
	}
}

func TestSameInputGivesTheSameBytes(t *testing.T) {
	var a, b bytes.Buffer
	image := sample(t)
	if err := errors.Join(Write(&a, image), Write(&b, image)); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("two runs differ")
	}
}

func TestBrokenImagesAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Image){
		"no tag":         func(i *Image) { i.Ref = "lab.escache.io/sample" },
		"no entry point": func(i *Image) { i.Entrypoint = nil },
		"relative path":  func(i *Image) { i.Files[0].Path = "usr/bin/program" },
		"path with dots": func(i *Image) { i.Files[0].Path = "/usr/../program" },
		"missing source": func(i *Image) { i.Files[0].Source += "x" },
	} {
		t.Run(name, func(t *testing.T) {
			image := sample(t)
			change(&image)
			if err := Write(io.Discard, image); err == nil {
				t.Error("written")
			}
		})
	}
}
