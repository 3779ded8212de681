package release

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

func helm(t *testing.T, args ...string) string {
	t.Helper()
	home := t.TempDir()
	return mustRun(t, []string{"HELM_CACHE_HOME=" + home, "HELM_CONFIG_HOME=" + home, "HELM_DATA_HOME=" + home}, tool(t, "helm"), args...)
}

func chart(t *testing.T, m made) {
	file := m.path("escache-csi-" + number + ".tgz")
	var about struct {
		Name, Version string
		App           string `yaml:"appVersion"`
	}
	check(t, yaml.Unmarshal([]byte(helm(t, "show", "chart", file)), &about))
	if about.Name != "escache-csi" || about.Version != number || about.App != version {
		t.Errorf("%+v", about)
	}
	// Who has the package has no checkout: nothing in it may point into one.
	into := regexp.MustCompile(`\.\./|\bcheckout\b|charts/escache-csi|(^|[^/])\bdocs/[a-z/-]+\.md|/blob/main/`)
	packed := untar(t, file)
	for name, text := range packed {
		if strings.HasPrefix(name, "escache-csi/crds/") {
			continue
		}
		for line := range strings.Lines(string(text)) {
			if into.MatchString(line) {
				t.Errorf("%s points into a checkout: %s", name, line)
			}
		}
	}
	if !strings.Contains(string(packed["escache-csi/README.md"]), "/blob/"+version+"/docs/install.md") {
		t.Error("the README does not name the page on the installation")
	}
	// It has every file of the chart but what README.md is made from.
	inTree, err := filepath.Glob(checkout + "/charts/escache-csi/templates/*/*")
	check(t, err)
	more, err := filepath.Glob(checkout + "/charts/escache-csi/*/*.*")
	check(t, err)
	for _, path := range append(inTree, more...) {
		rel, _ := filepath.Rel(checkout+"/charts", path)
		if _, ok := packed[rel]; !ok {
			t.Errorf("%s is not packed", rel)
		}
	}
	if notes := packed["escache-csi/templates/NOTES.txt"]; !strings.Contains(string(notes), "helm show crds") {
		t.Errorf("the notes do not say how to upgrade the CRDs:\n%s", notes)
	}
	inTreeCRDs, err := filepath.Glob(checkout + "/charts/escache-csi/crds/*.yaml")
	check(t, err)
	if got := strings.Count(helm(t, "show", "crds", file), "kind: CustomResourceDefinition"); got != len(inTreeCRDs) || got == 0 {
		t.Errorf("helm show crds prints %d CRDs, the chart's folder has %d", got, len(inTreeCRDs))
	}
}

var imageLine = regexp.MustCompile(`(?m)^\s*(?:- )?image: "?([^"\s]+)"?$`)

// imageList wants the images that Helm renders, those of snapshots too, and nothing else.
func imageList(t *testing.T, m made) {
	listed := strings.Fields(string(m.read(t, "images.txt")))
	var rendered []string
	for _, snapshots := range []string{"true", "false"} {
		out := helm(t, "template", "x", m.path("escache-csi-"+number+".tgz"),
			"--set", "ceph.clusterID=any,ceph.monitors={10.0.0.1},snapshots.enabled="+snapshots)
		for _, match := range imageLine.FindAllStringSubmatch(out, -1) {
			rendered = append(rendered, match[1])
		}
	}
	slices.Sort(rendered)
	rendered = slices.Compact(rendered)
	if !slices.Equal(listed, rendered) {
		t.Errorf("images.txt has\n%s\nand the chart\n%s", strings.Join(listed, "\n"), strings.Join(rendered, "\n"))
	}
	for _, name := range []string{"csi-controller", "csi-node", "escached"} {
		if want := "ghcr.io/escache/" + name + ":" + version; !slices.Contains(listed, want) {
			t.Errorf("no %s", want)
		}
	}
	if len(listed) != 7 {
		t.Errorf("%d images", len(listed))
	}
}

func texts(t *testing.T, m made) {
	docs := untar(t, m.path("docs_"+version+".tar.gz"))
	for _, name := range []string{"README.md", "LICENSE", "CHANGELOG.md", "docs/install.md", "docs/upgrade.md"} {
		if len(docs[name]) == 0 {
			t.Errorf("docs have no %s", name)
		}
	}
}

// again makes the release a second time, and compares what is promised to be the same. Images are not:
// they have Debian's packages of the day. Programs from other directories are hack/reproduce.sh's work.
func again(t *testing.T, m made) {
	dir := t.TempDir()
	second := made{dir: filepath.Join(dir, "second")}
	if log, err := release(t, second.dir, version, "RELEASE_IMAGES=no"); err != nil {
		t.Fatalf("%v\n%s", err, log)
	} else if !strings.Contains(log, "checksums.txt is not signed: set RELEASE_KEY") {
		t.Errorf("it does not say that there is no signature:\n%s", log)
	}
	entries, err := os.ReadDir(second.dir)
	check(t, err)
	if len(entries) < 10 {
		t.Errorf("only %d files were compared", len(entries))
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "checksums.txt") {
			if e.Name() != "checksums.txt" {
				t.Errorf("%s without a key", e.Name())
			}
			continue
		}
		if sum(t, second.path(e.Name())) != sum(t, m.path(e.Name())) {
			t.Errorf("%s is not the same the second time", e.Name())
		}
	}
}
