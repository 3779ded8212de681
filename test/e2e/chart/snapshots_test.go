//go:build e2e

package chart

import (
	"regexp"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/internal/page"
)

var yamlBlock = regexp.MustCompile("(?s)```yaml\n(.*?)```")

// snapshots follows docs/snapshots.md, with a pod that writes to the claim it names.
func snapshots(t *testing.T, w *world) {
	doc := page.Read(t, "docs/snapshots.md")
	before := w.pods(t)
	w.sh(t, "charts", doc.Line(t, "    helm upgrade"))
	w.rolledOut(t)
	for name := range w.pods(t) {
		if strings.Contains(name, "-node-") && before[name] == "" {
			t.Errorf("pod %s was replaced for the sake of csi-snapshotter", name)
		}
	}
	w.steps.Mark("snapshots enabled")
	w.claim(t, "data", "n1", writing)
	w.running(t, "data")
	w.goesOn(t, "data", 0)
	volume := w.volume(t, "data")
	blocks := yamlBlock.FindAllStringSubmatch(string(doc), -1)
	if len(blocks) < 2 || !strings.Contains(blocks[0][1], "kind: VolumeSnapshot\n") || !strings.Contains(blocks[1][1], "kind: VolumeSnapshot,") {
		t.Fatalf("the first blocks of the page are not a VolumeSnapshot and a claim of it: %v", blocks)
	}
	n := w.count(t, "data")
	w.apply(t, blocks[0][1])
	w.sees(t, "true", "get", "volumesnapshot", "before-migration", "-o", "jsonpath={.status.readyToUse}")
	w.goesOn(t, "data", n)
	w.steps.Mark("VolumeSnapshot of a volume in use")
	w.apply(t, blocks[1][1])
	w.pod(t, "restored", "data-before-migration", "n2", idle)
	w.running(t, "restored")
	if got := w.count(t, "restored"); got < n {
		t.Errorf("the count is %d, and %d was written before the snapshot", got, n)
	}
	w.hasNotFailed(t, "data")
	w.steps.Mark("a pod with a volume of it")
	w.removePod(t, "restored", w.volume(t, "data-before-migration"))
	w.removePod(t, "data", volume)
	w.kubectl(t, "delete", "volumesnapshot/before-migration", "pvc/data", "pvc/data-before-migration", "--timeout=2m")
	w.sees(t, "", "get", "cachesnapshots", "-o", "name")
}
