package release

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/internal/registry"
	"github.com/escache/escache-csi/test/testca"
)

// target is a registry on this machine.
type target struct {
	address string
	program string
	env     []string
}

func (r target) crane(t *testing.T, args ...string) string {
	t.Helper()
	return strings.TrimSpace(mustRun(t, r.env, r.program, append([]string{"--insecure"}, args...)...))
}

// serve starts a registry that ends with the test.
func serve(t *testing.T) target {
	t.Helper()
	r := target{program: tool(t, "crane")}
	var err error
	r.address, err = registry.Serve(t.Context(), registry.Config{Crane: r.program, Dir: t.TempDir()})
	check(t, err)
	return r
}

// serveTLS starts one with TLS, with an authority that only the environment names.
func serveTLS(t *testing.T) target {
	t.Helper()
	authority, err := testca.NewAuthority("registry")
	check(t, err)
	pair, err := authority.Server("registry.test", "127.0.0.1")
	check(t, err)
	file := filepath.Join(t.TempDir(), "ca.pem")
	check(t, os.WriteFile(file, authority.Certificate(), 0o600))
	r := target{program: tool(t, "crane"), env: []string{"SSL_CERT_FILE=" + file}}
	r.address, err = registry.Serve(t.Context(), registry.Config{Crane: r.program, Dir: t.TempDir(), TLS: &pair})
	check(t, err)
	return r
}

// writeImage writes an OCI archive of an image with one small layer, and returns its digest.
func writeImage(t *testing.T, path, arch string) string {
	t.Helper()
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	check(t, out.WriteHeader(&tar.Header{Name: "arch", Mode: 0o644, Size: int64(len(arch))}))
	_, err := out.Write([]byte(arch))
	check(t, err)
	check(t, out.Close())
	files := map[string][]byte{"oci-layout": []byte(`{"imageLayoutVersion":"1.0.0"}`)}
	add := func(kind string, data []byte) map[string]any {
		files["blobs/sha256/"+sumOf(data)] = data
		return map[string]any{"mediaType": "application/vnd.oci.image." + kind, "digest": "sha256:" + sumOf(data), "size": len(data)}
	}
	encode := func(v any) []byte {
		data, err := json.Marshal(v)
		check(t, err)
		return data
	}
	config := add("config.v1+json", encode(map[string]any{
		"os": "linux", "architecture": arch, "config": map[string]any{},
		"rootfs": map[string]any{"type": "layers", "diff_ids": []string{"sha256:" + sumOf(layer.Bytes())}},
	}))
	manifest := add("manifest.v1+json", encode(map[string]any{
		"schemaVersion": 2, "mediaType": "application/vnd.oci.image.manifest.v1+json",
		"config": config, "layers": []any{add("layer.v1.tar", layer.Bytes())},
	}))
	files["index.json"] = encode(map[string]any{"schemaVersion": 2, "manifests": []any{manifest}})
	file, err := os.Create(path)
	check(t, err)
	archive := tar.NewWriter(file)
	for name, data := range files {
		check(t, archive.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(data))}))
		_, err := archive.Write(data)
		check(t, err)
	}
	check(t, archive.Close())
	check(t, file.Close())
	return fmt.Sprint(manifest["digest"])
}

// TestPush pushes small images to a registry, with TLS and without.
func TestPush(t *testing.T) {
	wanted(t)
	dir := t.TempDir()
	node := map[string]string{}
	for _, arch := range []string{"amd64", "arm64"} {
		node[arch] = writeImage(t, filepath.Join(dir, "csi-node_"+version+"_linux_"+arch+".oci.tar"), arch)
	}
	controller := writeImage(t, filepath.Join(dir, "csi-controller_"+version+"_linux_amd64.oci.tar"), "amd64")
	script := checkout + "/hack/publish/push.sh"
	for name, r := range map[string]target{"without TLS": serve(t), "with TLS": serveTLS(t)} {
		env := r.env
		if len(env) == 0 {
			env = []string{"INSECURE=1"}
		}
		mustRun(t, append(env, "REPOSITORY=a/b"), script, dir, r.address)
		out := mustRun(t, env, script, dir, r.address)
		mustRun(t, env, script, dir, r.address) // it can be repeated
		if got := r.crane(t, "digest", r.address+"/escache/csi-controller:"+version); got != controller || !strings.Contains(out, "@"+got) {
			t.Errorf("%s: csi-controller has the digest %s, not %s\n%s", name, got, controller, out)
		}
		if got := r.crane(t, "digest", r.address+"/a/b/csi-controller:"+version); got != controller {
			t.Errorf("%s: in another repository csi-controller has the digest %s", name, got)
		}
		for arch, want := range node { // one name, and each processor gets its own image
			got := r.crane(t, "digest", "--platform", "linux/"+arch, r.address+"/escache/csi-node:"+version)
			if got != want {
				t.Errorf("%s: csi-node for %s has the digest %s, not %s", name, arch, got, want)
			}
		}
	}
}

func TestPushSaysWhatIsMissing(t *testing.T) {
	wanted(t)
	script := checkout + "/hack/publish/push.sh"
	dir := t.TempDir()
	if out, err := run(t, nil, script, dir, "registry.test"); err == nil || !strings.Contains(out, "run make images") {
		t.Errorf("without images: %v, %s", err, out)
	}
	writeImage(t, filepath.Join(dir, "csi-node_"+version+"_linux_amd64.oci.tar"), "amd64")
	if out, err := run(t, nil, script, dir, ""); err == nil || !strings.Contains(out, "REGISTRY=") {
		t.Errorf("without a registry: %v, %s", err, out)
	}
	// An authority that nobody trusts is refused.
	r := serveTLS(t)
	if out, err := run(t, nil, script, dir, r.address); err == nil || !strings.Contains(out, "push "+r.address) {
		t.Errorf("pushed to a registry that is not trusted: %s", out)
	}
}

func TestReleaseRefusesWhatIsWrong(t *testing.T) {
	_, key := newKey(t)
	full := t.TempDir()
	check(t, os.WriteFile(full+"/file", nil, 0o600))
	junk := filepath.Join(t.TempDir(), "junk.pem")
	check(t, os.WriteFile(junk, []byte("junk"), 0o600))
	for _, c := range []struct{ name, dir, version, key, want string }{
		{"no v", t.TempDir(), "0.1.0", key, "VERSION=v0.1.0"},
		{"a commit", t.TempDir(), "d37039c-dirty", key, "VERSION=v0.1.0"},
		{"two parts", t.TempDir(), "v1.0", key, "VERSION=v0.1.0"},
		{"metadata, which a tag cannot have", t.TempDir(), "v1.0.0+1", key, "VERSION=v0.1.0"},
		{"files of another release", full, "v1.0.0", key, "is not empty"},
		{"no key", t.TempDir(), "v1.0.0", "/nowhere/key", "openssl genpkey"},
		{"a key that is none", t.TempDir(), "v1.0.0", junk, "no private key in PEM"},
	} {
		out, err := run(t, []string{"RELEASE_KEY=" + c.key}, checkout+"/hack/publish/release.sh", c.dir, c.version)
		if err == nil || !strings.Contains(out, c.want) {
			t.Errorf("%s: %v, %q", c.name, err, out)
		}
	}
}
