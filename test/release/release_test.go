// Package release makes a release as `make release` does, and checks every file of it. That compiles
// everything again for a release, so it is not a part of `make test`: `make release-test` sets
// RELEASE_TEST=all. With RELEASE_TEST=some there are no images in it, which take minutes and root, and
// the plugin is built for one platform.
package release

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	checkout = "../.."
	version  = "v0.1.0-rc.1"
	number   = "0.1.0-rc.1" // of the chart
	debian   = "0.1.0~rc.1" // sorts before 0.1.0
	url      = "https://dl.test/v0.1.0-rc.1"
)

// wanted skips a test that makes a release or pushes one, unless RELEASE_TEST says so.
func wanted(t *testing.T) {
	t.Helper()
	if os.Getenv("RELEASE_TEST") == "" {
		t.Skip("`make release-test` runs it")
	}
}

// full reports whether the images are in the release.
func full() bool { return os.Getenv("RELEASE_TEST") == "all" }

func platforms() []string {
	if full() {
		return []string{"linux/amd64", "linux/arm64", "darwin/amd64", "darwin/arm64", "windows/amd64", "windows/arm64"}
	}
	return []string{"linux/amd64"}
}

// a release in a directory, and the key that has signed it.
type made struct {
	dir string
	key *ecdsa.PrivateKey
}

func (m made) path(name string) string { return filepath.Join(m.dir, name) }

func (m made) read(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(m.path(name))
	check(t, err)
	return data
}

func TestRelease(t *testing.T) {
	wanted(t)
	m := makeRelease(t)
	for _, part := range []struct {
		name string
		test func(*testing.T, made)
	}{
		{"every file is expected", files},
		{"every file is in checksums.txt", checksums},
		{"cosign's way to check the signature accepts it", signature},
		{"archives have the program and the licence", archives},
		{"programs print their version and complete command lines", programs},
		{"every program has a list of its modules", moduleLists},
		{"krew installs the plugin", krew},
		{"Debian packages", debs},
		{"chart", chart},
		{"list of images", imageList},
		{"release notes and docs", texts},
		{"the commands of docs/install.md", installPage},
		{"the same source and version give the same bytes", again},
		{"images", images},
		{"push", pushRelease},
	} {
		t.Run(part.name, func(t *testing.T) { part.test(t, m) })
	}
}

func makeRelease(t *testing.T) made {
	t.Helper()
	key, file := newKey(t)
	m := made{dir: filepath.Join(t.TempDir(), "some where", "release"), key: key}
	log, err := release(t, m.dir, version, "RELEASE_KEY="+file)
	if err != nil {
		t.Fatalf("%v\n%s", err, log)
	}
	return m
}

// release runs the script behind `make release`.
func release(t *testing.T, dir, version string, env ...string) (string, error) {
	t.Helper()
	env = append([]string{"RELEASE_URL=" + url, "PLATFORMS=" + strings.Join(platforms(), " ")}, env...)
	if !full() {
		env = append(env, "RELEASE_IMAGES=no")
	}
	return run(t, env, checkout+"/hack/publish/release.sh", dir, version)
}

func newKey(t *testing.T) (*ecdsa.PrivateKey, string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	check(t, err)
	der, err := x509.MarshalPKCS8PrivateKey(key)
	check(t, err)
	file := filepath.Join(t.TempDir(), "key.pem")
	check(t, os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600))
	return key, file
}

// run returns what a program prints. Nothing that the caller's `make` has set reaches it.
func run(t *testing.T, env []string, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, program, args...)
	callers := []string{
		"INSECURE", "MAKEFLAGS", "REGISTRY", "RELEASE_IMAGES", "RELEASE_KEY", "RELEASE_URL", "REPOSITORY", "SOURCE_DATE_EPOCH",
	}
	for _, have := range os.Environ() {
		name, _, _ := strings.Cut(have, "=")
		if !slices.Contains(callers, name) {
			command.Env = append(command.Env, have)
		}
	}
	command.Env = append(command.Env, env...)
	var out bytes.Buffer
	command.Stdout, command.Stderr = &out, &out
	err := command.Run()
	return out.String(), err
}

func mustRun(t *testing.T, env []string, program string, args ...string) string {
	t.Helper()
	out, err := run(t, env, program, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", program, strings.Join(args, " "), err, out)
	}
	return out
}

// tool is the path of a tool that hack/tools pins.
func tool(t *testing.T, name string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "tool", "-modfile="+checkout+"/hack/tools/"+name+"/go.mod", "-n", name)
	command.Stderr = os.Stderr
	path, err := command.Output()
	check(t, err)
	return strings.TrimSpace(string(path))
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func files(t *testing.T, m made) {
	want := []string{
		"checksums.txt", "checksums.txt.pub", "checksums.txt.sig", "docs_" + version + ".tar.gz", "escache.yaml",
		"escache-csi-" + number + ".tgz", "escached_" + number + "_amd64.deb", "escached_" + number + "_arm64.deb",
		"images.txt", "release-notes.md",
	}
	for _, platform := range platforms() {
		want = append(want, asset("kubectl-escache", platform, "tar.gz"), asset("kubectl-escache", platform, "cdx.json"))
	}
	for _, platform := range []string{"linux/amd64", "linux/arm64"} {
		want = append(want, asset("escached", platform, "tar.gz"), asset("escached", platform, "cdx.json"), asset("escache-cache", platform, "cdx.json"))
	}
	if full() {
		for _, image := range allImages() {
			want = append(want, asset(image.name, image.platform, "oci.tar"))
			if image.name != "escached" {
				want = append(want, asset(image.name, image.platform, "cdx.json"))
			}
		}
	}
	entries, err := os.ReadDir(m.dir)
	check(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
		if info, err := e.Info(); err != nil || info.Size() == 0 || info.Mode().Perm()&0o444 != 0o444 {
			t.Errorf("%s: %v, %v: it is empty, or others cannot read it", e.Name(), info, err)
		}
	}
	slices.Sort(want)
	slices.Sort(got)
	if !slices.Equal(got, want) {
		t.Errorf("the release has\n%s\nnot\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// asset is the name of a file for one platform.
func asset(name, platform, kind string) string {
	return name + "_" + version + "_" + strings.ReplaceAll(platform, "/", "_") + "." + kind
}

func sum(t *testing.T, path string) string {
	t.Helper()
	file, err := os.Open(path)
	check(t, err)
	defer func() { _ = file.Close() }()
	hash := sha256.New()
	_, err = io.Copy(hash, file)
	check(t, err)
	return hex.EncodeToString(hash.Sum(nil))
}

func checksums(t *testing.T, m made) {
	listed := map[string]bool{}
	for line := range strings.Lines(string(m.read(t, "checksums.txt"))) {
		want, name, found := strings.Cut(strings.TrimSuffix(line, "\n"), "  ")
		if !found || listed[name] {
			t.Fatalf("line %q", line)
		}
		listed[name] = true
		if got := sum(t, m.path(name)); got != want {
			t.Errorf("%s is %s, not %s", name, got, want)
		}
	}
	entries, err := os.ReadDir(m.dir)
	check(t, err)
	for _, e := range entries {
		if !listed[e.Name()] && !strings.HasPrefix(e.Name(), "checksums.txt") {
			t.Errorf("%s is not listed", e.Name())
		}
	}
}

// signature does what `cosign verify-blob --key checksums.txt.pub` does.
func signature(t *testing.T, m made) {
	block, rest := pem.Decode(m.read(t, "checksums.txt.pub"))
	if block == nil || block.Type != "PUBLIC KEY" || len(bytes.TrimSpace(rest)) > 0 {
		t.Fatalf("checksums.txt.pub is not one public key: %v", block)
	}
	public, err := x509.ParsePKIXPublicKey(block.Bytes)
	check(t, err)
	key, ok := public.(*ecdsa.PublicKey)
	if !ok || !key.Equal(&m.key.PublicKey) {
		t.Fatalf("checksums.txt.pub is %v, not the public half of RELEASE_KEY", public)
	}
	sig, err := base64.StdEncoding.DecodeString(string(m.read(t, "checksums.txt.sig")))
	check(t, err)
	digest := sha256.Sum256(m.read(t, "checksums.txt"))
	if !ecdsa.VerifyASN1(key, digest[:], sig) {
		t.Error("the signature is not of checksums.txt")
	}
	digest[0]++
	if ecdsa.VerifyASN1(key, digest[:], sig) {
		t.Error("the signature is of anything")
	}
}

// untar reads a tar, compressed if its name says so, and checks what it says of its files.
func untar(t *testing.T, path string) map[string][]byte {
	t.Helper()
	file, err := os.Open(path)
	check(t, err)
	defer func() { _ = file.Close() }()
	var in io.Reader = file
	if strings.HasSuffix(path, "gz") {
		in, err = gzip.NewReader(file)
		check(t, err)
	}
	out := map[string][]byte{}
	for archive := tar.NewReader(in); ; {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return out
		}
		check(t, err)
		if header.Uid != 0 || header.Gid != 0 || header.Uname != "root" || header.Mode&0o022 != 0 {
			t.Errorf("%s: %s is %d:%d, mode %o", filepath.Base(path), header.Name, header.Uid, header.Gid, header.Mode)
		}
		if header.Typeflag == tar.TypeReg {
			out[strings.TrimPrefix(header.Name, "./")], err = io.ReadAll(archive)
			check(t, err)
		}
	}
}

// unpack writes a file of an archive where it can be run.
func unpack(t *testing.T, data []byte, name string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	check(t, os.WriteFile(path, data, 0o755))
	return path
}
