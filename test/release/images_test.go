package release

import (
	"bytes"
	"compress/gzip"
	"debug/buildinfo"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"slices"
	"strings"
	"testing"
)

// allImages are the images of a release.
func allImages() []program {
	return []program{
		{"csi-controller", "linux/amd64"},
		{"csi-node", "linux/amd64"}, {"csi-node", "linux/arm64"},
		{"escached", "linux/amd64"}, {"escached", "linux/arm64"},
	}
}

// What OCI's image layout says, as far as it is checked here.
type (
	descriptor struct {
		MediaType   string            `json:"mediaType"`
		Digest      string            `json:"digest"`
		Size        int               `json:"size"`
		Annotations map[string]string `json:"annotations"`
	}
	ociIndex struct {
		Manifests []descriptor `json:"manifests"`
	}
	ociManifest struct {
		Config descriptor   `json:"config"`
		Layers []descriptor `json:"layers"`
	}
	ociConfig struct {
		OS           string `json:"os"`
		Architecture string `json:"architecture"`
		Config       struct {
			User       string   `json:"User"`
			Entrypoint []string `json:"Entrypoint"`
		} `json:"config"`
	}
)

type layout struct {
	index  ociIndex
	image  ociManifest
	config ociConfig
	blobs  map[string][]byte
}

// readLayout reads an OCI archive and compares every blob with its digest and size.
func readLayout(t *testing.T, path string) layout {
	t.Helper()
	l := layout{blobs: untar(t, path)}
	var version struct {
		Layout string `json:"imageLayoutVersion"`
	}
	check(t, json.Unmarshal(l.blobs["oci-layout"], &version))
	check(t, json.Unmarshal(l.blobs["index.json"], &l.index))
	if version.Layout != "1.0.0" || len(l.index.Manifests) != 1 {
		t.Fatalf("%s: layout %q with %d manifests", path, version.Layout, len(l.index.Manifests))
	}
	check(t, json.Unmarshal(l.blob(t, l.index.Manifests[0]), &l.image))
	check(t, json.Unmarshal(l.blob(t, l.image.Config), &l.config))
	for _, layer := range l.image.Layers {
		l.blob(t, layer)
	}
	if blobs := len(l.image.Layers) + 2; len(l.blobs) != blobs+2 {
		t.Errorf("%s has %d files and needs %d", path, len(l.blobs), blobs+2)
	}
	return l
}

func (l layout) blob(t *testing.T, d descriptor) []byte {
	t.Helper()
	data := l.blobs["blobs/"+strings.Replace(d.Digest, ":", "/", 1)]
	if d.Digest != "sha256:"+sumOf(data) || d.Size != len(data) {
		t.Fatalf("blob %s of %d bytes has %d and the sum %s", d.Digest, d.Size, len(data), sumOf(data))
	}
	return data
}

// file is a file of the image, from the last layer that has it.
func (l layout) file(t *testing.T, name string) []byte {
	t.Helper()
	for _, layer := range slices.Backward(l.image.Layers) {
		data := l.blob(t, layer)
		if strings.HasSuffix(layer.MediaType, "gzip") {
			in, err := gzip.NewReader(bytes.NewReader(data))
			check(t, err)
			data, err = io.ReadAll(in)
			check(t, err)
		}
		command := exec.CommandContext(t.Context(), "tar", "-xO", name)
		command.Stdin = bytes.NewReader(data)
		if out, err := command.Output(); err == nil {
			return out
		}
	}
	t.Fatalf("no %s in the image", name)
	return nil
}

func images(t *testing.T, m made) {
	if !full() {
		t.Skip("images take minutes and root: RELEASE_TEST=all")
	}
	for _, image := range allImages() {
		t.Run(image.name+" "+image.platform, func(t *testing.T) {
			l := readLayout(t, m.path(asset(image.name, image.platform, "oci.tar")))
			if got := l.config.OS + "/" + l.config.Architecture; got != image.platform {
				t.Errorf("it is for %s", got)
			}
			names := l.index.Manifests[0].Annotations
			if want := "ghcr.io/escache/" + image.name + ":" + version; names["io.containerd.image.name"] != want ||
				names["org.opencontainers.image.ref.name"] != version {
				t.Errorf("it is named %v, not %s", names, want)
			}
			if want := "/usr/local/bin/" + image.name; len(l.config.Config.Entrypoint) != 1 || l.config.Config.Entrypoint[0] != want {
				t.Errorf("it starts %q", l.config.Config.Entrypoint)
			}
			if user := l.config.Config.User; (image.name == "csi-controller") != (user == "65532:65532") {
				t.Errorf("it runs as %q", user)
			}
			data := l.file(t, "usr/local/bin/"+image.name)
			info, err := buildinfo.Read(bytes.NewReader(data))
			check(t, err)
			if built := (debug.BuildSetting{Key: "GOARCH", Value: l.config.Architecture}); !slices.Contains(info.Settings, built) {
				t.Errorf("the program was built with %v", info.Settings)
			}
			moduleList(t, l.file(t, "usr/share/escache/"+image.name+".cdx.json"), data)
			moduleList(t, m.read(t, asset(image.name, image.platform, "cdx.json")), data)
			if image.platform != "linux/amd64" {
				return
			}
			flag := map[string]string{"escached": "version"}[image.name]
			if flag == "" {
				flag = "--version"
			}
			// csi-controller finds this machine's librbd, of the same Debian.
			if out := mustRun(t, nil, unpack(t, data, image.name), flag); !strings.Contains(out, version) {
				t.Errorf("%s %s: %q", image.name, flag, out)
			}
		})
	}
}

// pushRelease pushes what was made, and compares the digests.
func pushRelease(t *testing.T, m made) {
	if !full() {
		t.Skip("there are no images without RELEASE_TEST=all; TestPush pushes small ones")
	}
	pushed := serve(t)
	out := mustRun(t, []string{"INSECURE=1"}, checkout+"/hack/publish/push.sh", m.dir, pushed.address)
	for _, image := range allImages() {
		name := pushed.address + "/escache/" + image.name + ":" + version
		want := readLayout(t, m.path(asset(image.name, image.platform, "oci.tar"))).index.Manifests[0].Digest
		if got := pushed.crane(t, "digest", "--platform", image.platform, name); got != want || !strings.Contains(out, name+"@") {
			t.Errorf("%s has the digest %s, not %s\n%s", name, got, want, out)
		}
		pushed.crane(t, "validate", "--remote", name)
	}
	dir := t.TempDir()
	helm(t, "pull", "--plain-http", "oci://"+pushed.address+"/escache/charts/escache-csi", "--version", number, "--destination", dir)
	name := "escache-csi-" + number + ".tgz"
	if _, err := os.Stat(filepath.Join(dir, name)); err != nil || sum(t, filepath.Join(dir, name)) != sum(t, m.path(name)) {
		t.Errorf("the chart in the registry is another one: %v", err)
	}
}
