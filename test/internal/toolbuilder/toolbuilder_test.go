package toolbuilder

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/internal/buildcache"
	"github.com/escache/escache-csi/test/internal/progress"
)

func TestEveryToolIsPinnedByItsModule(t *testing.T) {
	root, err := checkout(".")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, s := range all() {
		module := filepath.Join(root, "hack", "tools", s.module)
		version, err := versionOf(t.Context(), module, s.requires)
		if err != nil {
			t.Error(err)
		}
		sums, err := os.ReadFile(filepath.Join(module, "go.sum"))
		if err != nil || !strings.Contains(string(sums), s.requires+" "+version+" h1:") {
			t.Errorf("%s: go.sum does not hold %s %s: %v", s.module, s.requires, version, err)
		}
		for _, name := range s.names {
			if seen[name] {
				t.Errorf("two sets build %s", name)
			}
			seen[name] = true
		}
	}
}

func TestUnknownToolNamesTheKnownOnes(t *testing.T) {
	if _, err := find("kubeadm"); err == nil || !strings.Contains(err.Error(), "kubelet") {
		t.Errorf("find: %v", err)
	}
}

func TestKubernetesPartsAreOneProgram(t *testing.T) {
	kubectl, err := find("kubectl")
	if err != nil {
		t.Fatal(err)
	}
	scheduler, err := find("kube-scheduler")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(kubectl.names, scheduler.names) {
		t.Errorf("kubectl is in %v, the scheduler in %v", kubectl.names, scheduler.names)
	}
	if flags := kubectl.ldflags("v1.36.3"); !strings.Contains(flags, "version.gitMinor=36") {
		t.Errorf("linker flags without the minor version: %s", flags)
	}
}

func TestKeyFollowsEverythingThatChangesTheResult(t *testing.T) {
	module := t.TempDir()
	write := func(name, content string) {
		if err := os.WriteFile(filepath.Join(module, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write("go.mod", "module example.org/tool\n\ngo 1.26.0\n")
	write("go.sum", "")
	key := func(args ...string) string {
		key, err := cacheKey(t.Context(), module, args)
		if err != nil {
			t.Fatal(err)
		}
		return key
	}
	keys := []string{key("build"), key("build", "-race")}
	if keys[0] != key("build") {
		t.Error("the same module has two keys")
	}
	write("go.sum", "example.org/a v1.0.0 h1:x\n")
	keys = append(keys, key("build"))
	write("main.go", "package main\n")
	keys = append(keys, key("build"))
	slices.Sort(keys)
	if len(slices.Compact(keys)) != 4 {
		t.Errorf("a change left the key as it was: %v", keys)
	}
}

func TestBuildFillsTheCacheOnceAndLinksTheOtherNames(t *testing.T) {
	module := filepath.Join(t.TempDir(), "m")
	for name, content := range map[string]string{
		"go.mod":  "module example.org/tool\n\ngo 1.26.0\n",
		"main.go": "package main\n\nimport \"os\"\n\nfunc main() { os.Stdout.WriteString(os.Args[0]) }\n",
	} {
		if err := os.MkdirAll(module, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(module, name), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	if err := compile(t.Context(), module, filepath.Join(dir, "one"), []string{"build", "."}, []string{"two"}); err != nil {
		t.Fatal(err)
	}
	if target, err := os.Readlink(filepath.Join(dir, "two")); err != nil || target != "one" {
		t.Errorf("two is %q, %v", target, err)
	}
	if err := os.WriteFile(filepath.Join(module, "main.go"), []byte("package main\n\nfunc main() { undefined() }\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := compile(t.Context(), module, filepath.Join(dir, "three"), []string{"build", "."}, nil); err == nil ||
		!strings.Contains(err.Error(), "undefined") {
		t.Errorf("the compiler's message is missing: %v", err)
	}
}

func TestNewRefusesADirectoryOutsideTheCheckout(t *testing.T) {
	cache, err := buildcache.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := New(t.TempDir(), cache, progress.New(os.Stderr)); err == nil {
		t.Error("a directory that is no checkout")
	}
}
