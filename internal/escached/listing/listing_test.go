package listing

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestNames(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b", "a"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := Names(dir); err != nil || !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("got %v, %v", names, err)
	}
	if names, err := Names(filepath.Join(dir, "nowhere")); err != nil || len(names) > 0 {
		t.Errorf("a directory that is not there: %v, %v", names, err)
	}
	if names, err := Names(filepath.Join(dir, "a")); err == nil {
		t.Errorf("what cannot be listed has %v", names)
	}
}
