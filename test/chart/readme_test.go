package chart

import (
	"os"
	"strings"
	"testing"
)

// TestReadmeIsMadeOfTheValues wants what `make generate` would write, and a word on every value.
func TestReadmeIsMadeOfTheValues(t *testing.T) {
	want, err := run(t, nil, goTool(t, "helm-docs"),
		"--chart-search-root", chartDir, "--sort-values-order", "file", "--log-level", "warning", "--dry-run")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(chartDir + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	got := string(text)
	if got != want {
		t.Errorf("charts/escache-csi/README.md is not of these values; `make generate` writes it anew\n%s", difference(want, got))
	}
	rows := 0
	for line := range strings.Lines(got) {
		cells := strings.Split(strings.TrimSpace(line), " | ")
		if len(cells) < 4 || !strings.HasPrefix(line, "| ") {
			continue
		}
		rows++
		if strings.Trim(cells[len(cells)-1], " |") == "" {
			t.Errorf("no word on %s: its comment begins with \"# -- \"", cells[0])
		}
	}
	if rows < 50 {
		t.Errorf("only %d values were looked at", rows)
	}
}
