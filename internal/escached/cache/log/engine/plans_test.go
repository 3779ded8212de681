package engine

import (
	"os"
	"path/filepath"
	"testing"
)

// A host with too many open files must not look like one without devices.
func TestPlansThatCannotBeListedAreAnError(t *testing.T) {
	p := plans{dir: filepath.Join(t.TempDir(), "log"), boot: "b"}
	if all, err := p.all(""); err != nil || len(all) > 0 {
		t.Errorf("there was none yet: %v, %v", all, err)
	}
	if err := p.put("escache-1", plan{}); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(p.dir, ".part-1.json"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if all, err := p.all("escache-"); err != nil || len(all) != 1 {
		t.Errorf("%v, %v", all, err)
	}
	p.dir = filepath.Join(p.dir, "escache-1.json")
	if all, err := p.all(""); err == nil {
		t.Errorf("no error, and %v", all)
	}
}
