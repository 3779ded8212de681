//go:build e2e

package release

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/internal/buildcache"
	"github.com/escache/escache-csi/test/internal/ociimage"
	"github.com/escache/escache-csi/test/internal/page"
	"github.com/escache/escache-csi/test/internal/progress"
	"github.com/escache/escache-csi/test/internal/registry"
	"github.com/escache/escache-csi/test/internal/toolbuilder"
	"github.com/escache/escache-csi/test/testca"
)

// publish is what a maintainer does, with a checkout: it serves a registry, and pushes the release
// there and the sidecars of the Kubernetes project, which the release does not have.
func publish(t *testing.T, w *world, _ page.Page) {
	crane := variable(t, "CRANE")
	authority, err := testca.NewAuthority("registry")
	check(t, err)
	host, _, err := net.SplitHostPort(w.registry)
	check(t, err)
	pair, err := authority.Server("registry", host)
	check(t, err)
	ca := filepath.Join(w.dir, "ca.crt")
	check(t, os.WriteFile(ca, authority.Certificate(), 0o600))
	_, err = registry.Serve(w.life, registry.Config{Crane: crane, Dir: w.blobs, Address: w.registry, TLS: &pair})
	check(t, err)

	trusting := func(name string, args ...string) *exec.Cmd {
		cmd := exec.CommandContext(t.Context(), name, args...)
		cmd.Env = append(os.Environ(), "SSL_CERT_FILE="+ca)
		return cmd
	}
	t.Log(must(t, trusting("hack/publish/push.sh", w.made, w.registry)))
	for _, image := range w.images(t) {
		if strings.HasPrefix(image, "ghcr.io/escache/") {
			continue // push.sh has pushed it
		}
		_, name, _ := strings.Cut(image, "/")
		t.Log(must(t, trusting(crane, "push", sidecar(t, image), w.registry+"/"+name)))
	}
}

// images are those that the chart can use, as the release lists them.
func (w *world) images(t *testing.T) []string {
	t.Helper()
	list, err := os.ReadFile(filepath.Join(w.made, "images.txt"))
	check(t, err)
	return strings.Fields(string(list))
}

// sidecar makes the image of one of CSI's sidecars, from the pinned module, and returns the directory
// that has it.
func sidecar(t *testing.T, image string) string {
	t.Helper()
	cache, err := buildcache.Open("")
	check(t, err)
	builder, err := toolbuilder.New(".", cache, progress.New(os.Stderr))
	check(t, err)
	program, _, _ := strings.Cut(path.Base(image), ":")
	built, err := builder.Path(t.Context(), program)
	check(t, err)
	dir := t.TempDir()
	file, err := os.Create(filepath.Join(dir, "image.tar"))
	check(t, err)
	check(t, ociimage.Write(file, ociimage.Image{
		Ref: image, Entrypoint: []string{"/" + program}, Files: []ociimage.File{{Path: "/" + program, Source: built}},
	}))
	check(t, file.Close())
	layout := filepath.Join(dir, "layout")
	check(t, os.Mkdir(layout, 0o755))
	must(t, exec.CommandContext(t.Context(), "tar", "-xf", file.Name(), "-C", layout))
	return layout
}

// trust has the hosts trust the registry as the page says. Before that they refuse it.
func trust(t *testing.T, w *world, doc page.Page) {
	one := w.registry + "/escache/csi-node:" + w.version
	pull := "ctr --namespace k8s.io images pull --hosts-dir /etc/containerd/certs.d " + one
	ctx, cancel := context.WithTimeout(t.Context(), commandTime)
	defer cancel()
	if out, err := w.lab.Shell(ctx, w.hosts[0].Name, pull); err == nil || !strings.Contains(err.Error(), "x509") {
		t.Fatalf("%s pulls from a registry that it does not trust: %v, %s", w.hosts[0].Name, err, out)
	}
	w.all(t, doc.Section(t, "A registry with a certificate of your own").Block(t, "certs.d"))
}

// onlyFromTheRegistry looks at what the hosts have pulled.
func onlyFromTheRegistry(t *testing.T, w *world, _ page.Page) {
	pulled := map[string]bool{}
	for _, h := range w.hosts {
		for name := range strings.FieldsSeq(w.onHost(t, h.Name, "ctr --namespace k8s.io images ls -q")) {
			switch {
			case strings.HasPrefix(name, "sha256:"), strings.HasPrefix(name, "lab.escache.io/"): // the lab's own, there from the start
			case strings.HasPrefix(name, w.registry+"/"):
				name, _, _ = strings.Cut(strings.TrimPrefix(name, w.registry+"/"), "@")
				pulled[name] = true
			default:
				t.Errorf("%s has %s, which is not from the registry", h.Name, name)
			}
		}
	}
	for _, image := range w.images(t) {
		_, name, _ := strings.Cut(image, "/")
		if !pulled[name] && !strings.Contains(name, "csi-snapshotter") { // snapshots are off by default
			t.Errorf("no host has pulled %s", name)
		}
	}
	if len(pulled) < 6 {
		t.Errorf("only %d images were pulled: %v", len(pulled), pulled)
	}
}
