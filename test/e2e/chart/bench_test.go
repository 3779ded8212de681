//go:build e2e

package chart

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/internal/plugin/bench/job"
)

// benchmarks compares the release's StorageClass with one that writes through, in a namespace that takes
// restricted pods only. The image is that of the installed csi-node.
func benchmarks(t *testing.T, w *world) {
	const place, other = "bench", "escache-writethrough"
	parameters := w.kubectl(t, "get", "storageclass", class, "-o", "jsonpath={.parameters}")
	changed := map[string]string{}
	check(t, json.Unmarshal([]byte(parameters), &changed))
	changed["cacheMode"] = "writethrough"
	text, err := json.Marshal(changed)
	check(t, err)
	w.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %s, labels: {pod-security.kubernetes.io/enforce: restricted}}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: csi.escache.io
volumeBindingMode: WaitForFirstConsumer
parameters: %s
`, place, other, text))
	args := []string{"-n", place, "--storage-class", class, "--compare", other, "--node", "n1", "--size", "256Mi", "--seconds", "2", "--rounds", "2"}
	said, err := w.escache(t, append([]string{"bench", "-o", "json"}, args...)...)
	check(t, err)
	report := job.Report{}
	check(t, json.Unmarshal([]byte(said), &report))
	if report.Node != "n1" || len(report.Tests) != len(benchmark.Tests()) {
		t.Errorf("the report is %s", said)
	}
	for _, row := range report.Tests {
		if len(row.Volumes) != 2 || row.Ratio <= 0 {
			t.Fatalf("%s by %d: %+v", row.Name, row.Workers, row)
		}
		for _, f := range row.Volumes {
			if f.PerSecond <= 0 || f.P50Millis > f.P99Millis || len(f.Turns) != 2 {
				t.Errorf("%s by %d: %+v", row.Name, row.Workers, f)
			}
		}
	}
	check(t, report.Print(t.Output()))
	w.benchLeftNothing(t, place)
	w.steps.Mark("kubectl escache bench of two StorageClasses")

	// It gives up while the pod waits for a node that is not there.
	if said, err = w.escache(t, "bench", "-n", place, "--storage-class", class, "--node", "none", "--timeout", "20s"); err == nil ||
		!strings.Contains(err.Error(), "the pod has not started within 20s") {
		t.Errorf("%v: %s", err, said)
	}
	w.benchLeftNothing(t, place)
	w.kubectl(t, "delete", "namespace/"+place, "storageclass/"+other, "--timeout=2m")
	w.steps.Mark("another one, which gave up")
}

func (w *world) benchLeftNothing(t *testing.T, place string) {
	t.Helper()
	if left, err := w.try(context.WithoutCancel(t.Context()), "", "kubectl", "-n", place, "get", "jobs,pods,pvc", "-o", "name"); err != nil || left != "" {
		t.Errorf("it has left %q, %v", left, err)
	}
}
