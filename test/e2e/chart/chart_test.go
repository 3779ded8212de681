//go:build e2e

// Package chart tests what the Helm chart installs where it belongs: its images and pods on hosts
// with real kernels that have nothing of the driver before. It runs inside a lab with bare hosts
// that has the images: hack/e2e-chart.sh.
package chart

import "testing"

// TestChart is the life of one release, so each step needs those before it.
func TestChart(t *testing.T) {
	w := open(t)
	for _, step := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"install, to the first pod with a volume", install},
		{"a host loses its power, and the other one's writes go on", peerLoss},
		{"upgrade under load", upgrade},
		{"two StorageClasses are compared by kubectl escache bench", benchmarks},
		{"a snapshot, and a volume of it", snapshots},
		{"each fault raises its alert", faults},
		{"no secret is where others may read it", secrets},
		{"uninstall refuses while there are volumes, and then leaves nothing", uninstall},
	} {
		if !t.Run(step.name, func(t *testing.T) {
			defer w.say(t)
			step.run(t, w)
		}) {
			return
		}
	}
}
