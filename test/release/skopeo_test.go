package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/internal/page"
)

// TestSkopeoLoops runs both loops of docs/install.md as they stand there, but for the version and the names of the registries.
func TestSkopeoLoops(t *testing.T) {
	wanted(t)
	section := page.Read(t, checkout+"/docs/install.md").Section(t, "Images")
	ours, kubernetes, dir := serveTLS(t), serve(t), t.TempDir()
	loop := func(words string) {
		t.Helper()
		block := section.Block(t, words)
		for _, name := range []string{"registry.example.com", "skopeo copy"} {
			if !strings.Contains(block, name) {
				t.Fatalf("the loop has no %s:\n%s", name, block)
			}
		}
		block = strings.NewReplacer("v0.1.0", version, "registry.example.com", ours.address, "registry.k8s.io", kubernetes.address,
			"skopeo copy --all", "skopeo copy --all --src-tls-verify=false").Replace(block) // the registry of Kubernetes has no TLS here
		mustRun(t, ours.env, "bash", "-euo", "pipefail", "-c", "cd '"+dir+"'\n"+block)
	}

	want := map[string]string{}
	for _, name := range []string{"csi-controller", "csi-node", "escached"} {
		want[name] = writeImage(t, filepath.Join(dir, name+"_"+version+"_linux_amd64.oci.tar"), "amd64")
	}
	loop("oci-archive:")
	for name, digest := range want {
		if got := ours.crane(t, "digest", ours.address+"/escache/"+name+":"+version); got != digest {
			t.Errorf("%s has the digest %s, not %s", name, got, digest)
		}
	}

	// A sidecar is there for two processors. images.txt also lists the driver's own images.
	archives, sidecar := t.TempDir(), "/sig-storage/csi-provisioner:v1"
	for _, arch := range []string{"amd64", "arm64"} {
		writeImage(t, filepath.Join(archives, "csi-node_"+version+"_linux_"+arch+".oci.tar"), arch)
	}
	mustRun(t, []string{"INSECURE=1"}, checkout+"/hack/publish/push.sh", archives, kubernetes.address)
	kubernetes.crane(t, "copy", kubernetes.address+"/escache/csi-node:"+version, kubernetes.address+sidecar)
	check(t, os.WriteFile(dir+"/images.txt", []byte("ghcr.io/escache/csi-node:"+version+"\n"+kubernetes.address+sidecar+"\n"), 0o600))
	loop("images.txt")
	for _, arch := range []string{"amd64", "arm64"} { // skopeo may compress a layer, which changes the digest and not the image
		config := func(r target) string { return r.crane(t, "config", "--platform", "linux/"+arch, r.address+sidecar) }
		if got, want := config(ours), config(kubernetes); got != want || !strings.Contains(got, arch) {
			t.Errorf("the sidecar for %s is %s, not %s", arch, got, want)
		}
	}
}
