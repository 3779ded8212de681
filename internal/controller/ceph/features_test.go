package ceph

import (
	"os"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/rbd"
)

// TestPageHasTheDefaultFeatures compares docs/parameters.md with the features of an image whose
// StorageClass names none.
func TestPageHasTheDefaultFeatures(t *testing.T) {
	page, err := os.ReadFile("../../../docs/parameters.md")
	if err != nil {
		t.Fatal(err)
	}
	features, err := rbd.ParseFeatures(nil)
	if err != nil {
		t.Fatal(err)
	}
	if want := "| `imageFeatures` | `" + strings.Join(features.Names(), ",") + "` |"; !strings.Contains(string(page), want) {
		t.Errorf("docs/parameters.md has no row that begins with %s", want)
	}
}
