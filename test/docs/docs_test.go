// Package docs checks that what the pages point at is there.
package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const root = "../.."

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(root, path))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func exists(path string) bool {
	matches, err := filepath.Glob(filepath.Join(root, path))
	return err == nil && len(matches) > 0
}

func TestLinksLeadSomewhere(t *testing.T) {
	pages := append(pagesOf(t), "README.md", "CONTRIBUTING.md", "charts/escache-csi/README.md")
	link := regexp.MustCompile(`\]\(([^)#]*)(#[^)]*)?\)`)
	links := 0
	for _, page := range pages {
		for _, match := range link.FindAllStringSubmatch(read(t, page), -1) {
			if strings.Contains(match[1], "://") {
				continue
			}
			links++
			checkLink(t, page, match[1], match[2])
		}
	}
	if links < 30 {
		t.Errorf("only %d links were found", links)
	}
}

// checkLink checks a link of a page to a file, or to the page itself where file is empty.
func checkLink(t *testing.T, page, file, anchor string) {
	t.Helper()
	target := page
	if file != "" {
		target = filepath.Join(filepath.Dir(page), file)
	}
	switch {
	case !exists(target):
		t.Errorf("%s: no %s", page, file)
	case anchor != "" && !slices.Contains(anchors(read(t, target)), anchor):
		t.Errorf("%s: %s has no heading %s", page, target, anchor)
	}
}

// anchors returns what links may name after # in a page, as GitHub makes it of the headings.
func anchors(page string) []string {
	leftOut := regexp.MustCompile(`[^a-z0-9_ -]`)
	var all []string
	for _, heading := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(page, -1) {
		name := leftOut.ReplaceAllString(strings.ToLower(heading[1]), "")
		all = append(all, "#"+strings.ReplaceAll(name, " ", "-"))
	}
	return all
}

// pagesOf returns the paths of all pages below docs.
func pagesOf(t *testing.T) []string {
	t.Helper()
	var pages []string
	for _, pattern := range []string{"/docs/*.md", "/docs/*/*.md"} {
		all, err := filepath.Glob(root + pattern)
		if err != nil {
			t.Fatal(err)
		}
		for _, page := range all {
			path, err := filepath.Rel(root, page)
			if err != nil {
				t.Fatal(err)
			}
			pages = append(pages, path)
		}
	}
	return pages
}

func TestReadmeListsEveryPage(t *testing.T) {
	list := read(t, "docs/README.md")
	for _, page := range pagesOf(t) {
		name := strings.TrimPrefix(page, "docs/")
		if name != "README.md" && !strings.Contains(list, "]("+name+")") {
			t.Errorf("docs/README.md does not list %s", name)
		}
	}
}

// TestPagesThatProgramsNameAreThere looks at what programs and chart say to people, and at comments.
func TestPagesThatProgramsNameAreThere(t *testing.T) {
	page := regexp.MustCompile(`(?:^|[^/A-Za-z])(docs/[a-z/-]+\.md)\b`)
	named := 0
	for _, folder := range []string{"api", "charts", "cmd", "hack", "internal"} {
		err := filepath.WalkDir(filepath.Join(root, folder), func(path string, entry os.DirEntry, err error) error {
			if err != nil || entry.IsDir() {
				return err
			}
			text, err := os.ReadFile(path)
			for _, match := range page.FindAllStringSubmatch(string(text), -1) {
				named++
				if !exists(match[1]) {
					t.Errorf("%s names %s, which is not there", path, match[1])
				}
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if named < 20 {
		t.Errorf("only %d pages are named", named)
	}
}

// TestContributingNamesWhatIsThere checks the tree under "Where things are", and every path in the
// rest.
func TestContributingNamesWhatIsThere(t *testing.T) {
	text := read(t, "CONTRIBUTING.md")
	_, rest, found := strings.Cut(text, "## Where things are\n")
	tree, _, ends := strings.Cut(rest, "\n## ")
	if !found || !ends {
		t.Fatal(`no section "Where things are"`)
	}
	var paths []string
	parents := map[int]string{2: ""}
	for line := range strings.Lines(tree) {
		entry := strings.TrimLeft(line, " ")
		indent := len(line) - len(entry)
		if indent < 4 {
			continue
		}
		names, _, _ := strings.Cut(strings.TrimSpace(entry), "  ")
		for name := range strings.FieldsSeq(names) {
			path := filepath.Join(parents[indent-2], name)
			paths = append(paths, path)
			parents[indent] = path
		}
	}
	if len(paths) < 60 {
		t.Errorf("the tree has only %d folders", len(paths))
	}
	code := regexp.MustCompile("`((?:api|charts|cmd|docs|hack|internal|test)/[^` ]+)`")
	for _, match := range code.FindAllStringSubmatch(text, -1) {
		paths = append(paths, match[1])
	}
	for _, path := range paths {
		if !exists(strings.ReplaceAll(path, "NAME", "*")) {
			t.Errorf("no %s", path)
		}
	}
	for _, wing := range []string{"internal", "internal/controller", "internal/node", "internal/escached", "internal/plugin", "test"} {
		entries, err := os.ReadDir(filepath.Join(root, wing))
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.IsDir() && !slices.Contains(paths, wing+"/"+e.Name()) {
				t.Errorf("%s/%s is not in the tree", wing, e.Name())
			}
		}
	}
}
