package linksecret

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

const (
	first  = "uZ0cRQh7bqkq3yNf5mV2W8sXa1tLd4eGj6oPiKrTnHw"
	second = "aZ0cRQh7bqkq3yNf5mV2W8sXa1tLd4eGj6oPiKrTnHw"
)

func TestASecretIsKeptUntilItIsRemoved(t *testing.T) {
	f := In(filepath.Join(t.TempDir(), "state"))
	if got, err := f.Get("escache-1"); got != "" || err != nil {
		t.Fatal(got, err)
	}
	for _, secret := range []escache.Secret{first, first, second} {
		if err := f.Set("escache-1", secret); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := In(filepath.Dir(f.Dir)).Get("escache-1"); string(got) != second || err != nil {
		t.Error("another process must find it", err)
	}
	for path, mode := range map[string]os.FileMode{f.Dir: 0o700, f.path("escache-1"): 0o600} {
		if st, err := os.Stat(path); err != nil || st.Mode().Perm() != mode {
			t.Errorf("%s: %v, %v", path, st.Mode(), err)
		}
	}
	if names, err := f.List(); err != nil || !slices.Equal(names, []string{"escache-1"}) {
		t.Error(names, err)
	}
	for range 2 {
		if err := f.Set("escache-1", ""); err != nil {
			t.Fatal(err)
		}
	}
	if names, err := f.List(); err != nil || len(names) != 0 {
		t.Error(names, err)
	}
}

func TestADamagedFileHoldsNoSecret(t *testing.T) {
	f := In(t.TempDir())
	if err := f.Set("escache-1", first); err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"", first[:20], "\x00" + first[1:]} {
		if err := os.WriteFile(f.path("escache-1"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := f.Get("escache-1"); got != "" || err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

func TestTidyRemovesWhatAKilledSetLeft(t *testing.T) {
	f := In(t.TempDir())
	if err := f.Tidy(); err != nil {
		t.Fatal("there is no directory yet:", err)
	}
	if err := f.Set("escache-1", first); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(f.path(".new-123"), []byte(second), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := f.Tidy(); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(f.Dir)
	if err != nil || len(entries) != 1 || entries[0].Name() != "escache-1" {
		t.Errorf("%v, %v", entries, err)
	}
}
