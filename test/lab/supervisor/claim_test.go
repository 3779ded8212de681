package supervisor

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/escache/escache-csi/test/lab/labclient"
)

func place(t *testing.T) labclient.Location {
	t.Helper()
	root := t.TempDir()
	return labclient.Location{Name: "x", Checkout: root, StateDir: filepath.Join(root, ".lab", "x"), RunDir: filepath.Join(root, "run", "x")}
}

func TestALabIsClaimedOnceUntilItsHolderEnds(t *testing.T) {
	location := place(t)
	holder, err := claim(location)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := claim(location); !errors.Is(err, errTaken) {
		t.Errorf("claimed twice: %v", err)
	}
	if err := removeAll(location); err != nil {
		t.Fatal(err)
	}
	next, err := claim(location)
	if err != nil {
		t.Errorf("a removed lab cannot be claimed again: %v", err)
	}
	next.Close()
	holder.Close()
}

func TestAFailedStartLeavesOnlyLogs(t *testing.T) {
	location := place(t)
	for path, stays := range map[string]bool{"a/x.log": true, "a/disk.img": false, "b/c/key": false, "plan.json": false} {
		path := filepath.Join(location.StateDir, path)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, nil, 0o644)); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if _, err := os.Stat(path); (err == nil) != stays {
				t.Errorf("%s: %v", path, err)
			}
		}()
	}
	if err := saveLogs(location); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(location.StateDir, "b")); !os.IsNotExist(err) {
		t.Errorf("an empty directory is left: %v", err)
	}
}

func TestRemovingALabLeavesOthersAlone(t *testing.T) {
	location := place(t)
	other := filepath.Join(location.Checkout, ".lab", "other")
	if err := errors.Join(os.MkdirAll(location.StateDir, 0o755), os.MkdirAll(other, 0o755)); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(location); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(other); err != nil {
		t.Error(err)
	}
	if err := os.Remove(other); err != nil {
		t.Fatal(err)
	}
	if err := removeAll(location); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(location.Checkout + "/*"); len(left) != 0 {
		// .lab begins with a dot: Glob would not see it, so this is run/
		t.Errorf("left: %v", left)
	}
	if _, err := os.Stat(filepath.Join(location.Checkout, ".lab")); !os.IsNotExist(err) {
		t.Errorf(".lab is left: %v", err)
	}
}
