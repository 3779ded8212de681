//go:build e2e

// Package release tries a release as somebody would who has nothing but its directory: with the
// commands of its docs, as they stand there, on bare hosts that pull the images from a registry with
// TLS. It runs inside a lab without any image of the driver: hack/e2e-release.sh.
package release

import (
	"testing"

	"github.com/escache/escache-csi/test/internal/page"
)

// TestRelease is one installation, so each step needs those before it.
func TestRelease(t *testing.T) {
	w := open(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *world, page.Page)
	}{
		{"the release goes into a registry with TLS", publish},
		{"a release that was changed is found", damaged},
		{"unpack and check", unpack},
		{"check the hosts", checkHosts},
		{"hosts pull from the registry once they trust it", trust},
		{"install", install},
		{"the first pod", firstPod},
		{"helm test", helmTest},
		{"nothing came from elsewhere", onlyFromTheRegistry},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			defer w.say(t)
			step.run(t, w, w.page)
		}) {
			return
		}
	}
	w.print(t)
}
