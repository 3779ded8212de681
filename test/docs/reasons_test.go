package docs

import (
	"maps"
	"regexp"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/reasons"
)

// TestEveryReasonIsExplained wants every reason of a condition or an Event in docs/reasons.md, and none there that no
// code has. test/chart wants every alert in docs/alerts.md.
func TestEveryReasonIsExplained(t *testing.T) {
	written := reasons.OfConditions(t, root)
	maps.Copy(written, reasons.OfEvents(t, root))
	for _, kind := range []string{v1alpha1.GroupDeletionBlocked, v1alpha1.GroupFormerMembers} { // Events have the name of the condition
		written[kind] = "internal/controller/nodegroup"
	}
	for _, sure := range []string{"PeerLost", "IOFrozen", "RepairDraining", "RepairOver", "Recovered", "FencedAgain", "CacheResized", "CacheDiscarded"} {
		if written[sure] == "" {
			t.Errorf("the test does not find %s in the code any more", sure)
		}
	}
	explained := map[string]bool{}
	for _, row := range regexp.MustCompile(`(?m)^\| (`+"`[^|]*`"+`) \|`).FindAllStringSubmatch(read(t, "docs/reasons.md"), -1) {
		for _, word := range regexp.MustCompile("`([A-Za-z]+)`").FindAllStringSubmatch(row[1], -1) {
			explained[word[1]] = true
			if written[word[1]] == "" {
				t.Errorf("docs/reasons.md explains %s, which no code has", word[1])
			}
		}
	}
	for reason, where := range written {
		if !explained[reason] {
			t.Errorf("docs/reasons.md does not explain %s, which is in %s", reason, where)
		}
	}
}
