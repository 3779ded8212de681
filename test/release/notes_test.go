package release

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// notes returns the release notes that a release of the version gets.
func notes(t *testing.T, version string) string {
	t.Helper()
	dir := t.TempDir()
	mustRun(t, nil, checkout+"/hack/publish/notes.sh", dir, version)
	text, err := os.ReadFile(filepath.Join(dir, "release-notes.md"))
	check(t, err)
	body, ok := strings.CutPrefix(string(text), "# escache-csi "+version+"\n\n")
	if !ok {
		t.Fatalf("%s: %.100s", version, text)
	}
	return body
}

func TestNotesOfTheFirstReleaseSayWhatIsInIt(t *testing.T) {
	for _, version := range []string{"v0.1.0", "v0.1.0-rc.1"} {
		text := notes(t, version)
		if lines := strings.Count(text, "\n"); lines < 10 || lines > 80 {
			t.Errorf("%s: %d lines", version, lines)
		}
		// Nobody has used what was mended before the first release.
		if strings.Contains(text, "- Fixed") {
			t.Errorf("%s: notes of the first release list defects that no release had:\n%s", version, text)
		}
		if strings.Contains(text, "](docs/") || !strings.Contains(text, "/blob/"+version+"/docs/limits.md") {
			t.Errorf("%s: links lead nowhere outside of a checkout:\n%s", version, text)
		}
	}
}

func TestNotesOfAVersionWithoutASectionAreWhatIsUnreleased(t *testing.T) {
	changes, err := os.ReadFile(checkout + "/CHANGELOG.md")
	check(t, err)
	_, want, found := strings.Cut(string(changes), "## Unreleased\n\n")
	want, _, _ = strings.Cut(want, "\n## ")
	first, _, _ := strings.Cut(want, "\n")
	if text := notes(t, "v99.0.0"); !found || !strings.HasPrefix(text, first) {
		t.Errorf("the notes begin with\n%.200s\nnot with\n%s", text, first)
	}
}
