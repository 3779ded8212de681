package linkkey

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

const text = "0123456789abcdef0123456789abcdef"

func key(t *testing.T, text string) *Key {
	t.Helper()
	k, err := New("test", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestEveryLinkAndEveryGenerationHasASecretOfItsOwn(t *testing.T) {
	seen := map[escache.Secret]string{}
	for _, k := range []string{text, text + "x"} {
		for _, volume := range []string{"pvc-1", "pvc-2", "pvc-1\x001"} {
			for _, generation := range []int64{1, 2, 11} {
				what := fmt.Sprint(k, volume, generation)
				secret := key(t, k).Secret(volume, generation)
				if !secret.Valid() {
					t.Fatalf("%s: %q has another form than the API asks for", what, string(secret))
				}
				if other := seen[secret]; other != "" {
					t.Errorf("%q and %q have one secret", what, other)
				}
				seen[secret] = what
			}
		}
	}
}

// A later version must derive the same secrets, or the links of both hosts would have to change at
// the same time.
func TestTheDerivationStays(t *testing.T) {
	if got := string(key(t, text).Secret("pvc-1", 1)); got != "mbaEs34fb8-gBFf1vS1oESBOElXrrIFm-HaougHpI3s" {
		t.Error(got)
	}
}

func TestAKeyIsReadFromAFile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "key")
	for content, ok := range map[string]bool{text + "\n": true, text[1:] + "\n": false, "": false, strings.Repeat(" ", 64): false} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		k, err := Read(path)
		if (err == nil) != ok || err != nil && content != "" && strings.Contains(err.Error(), text[1:]) {
			t.Errorf("%q: %v", content, err)
		}
		if ok && k.Secret("a", 1) != key(t, text).Secret("a", 1) {
			t.Error("the line break is no part of the key")
		}
	}
	if _, err := Read(path + "-none"); err == nil {
		t.Error("no file, and no error")
	}
}

func TestAKeyIsPrintedNowhere(t *testing.T) {
	k := key(t, text)
	for _, format := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
		if out := fmt.Sprintf(format, k); strings.Contains(out, text) || strings.Contains(out, "48") {
			t.Errorf("%s: %s", format, out)
		}
	}
}
