package release

import (
	"bytes"
	"debug/buildinfo"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// program is one that has an archive.
type program struct{ name, platform string }

func allPrograms() []program {
	var out []program
	for _, platform := range platforms() {
		out = append(out, program{"kubectl-escache", platform})
	}
	return append(out, program{"escached", "linux/amd64"}, program{"escached", "linux/arm64"})
}

// file is the program's name in its archive.
func (p program) file() string {
	if strings.HasPrefix(p.platform, "windows/") {
		return p.name + ".exe"
	}
	return p.name
}

func archives(t *testing.T, m made) {
	for _, p := range allPrograms() {
		got := untar(t, m.path(asset(p.name, p.platform, "tar.gz")))
		want := []string{"LICENSE", p.file()}
		if p.name == "kubectl-escache" && p.file() == p.name {
			want = append(want, "kubectl_complete-escache")
		}
		if p.name == "escached" {
			want = []string{"LICENSE", "escache-cache", "escached"}
		}
		var names []string
		for name := range got {
			names = append(names, name)
		}
		slices.Sort(names)
		if !slices.Equal(names, want) {
			t.Errorf("%v: %q", p, names)
		}
		if !bytes.Contains(got["LICENSE"], []byte("Apache License")) {
			t.Errorf("%v: the licence is %.80q", p, got["LICENSE"])
		}
		info, err := buildinfo.Read(bytes.NewReader(got[p.file()]))
		check(t, err)
		settings := map[string]string{}
		for _, s := range info.Settings {
			settings[s.Key] = s.Value
		}
		if settings["GOOS"]+"/"+settings["GOARCH"] != p.platform || settings["CGO_ENABLED"] != "0" || settings["-trimpath"] != "true" {
			t.Errorf("%v was built with %v", p, settings)
		}
		for _, module := range info.Deps {
			if strings.Contains(module.Path, "go-ceph") {
				t.Errorf("%v has %s in it", p, module.Path)
			}
		}
	}
}

func programs(t *testing.T, m made) {
	plugin := untar(t, m.path(asset("kubectl-escache", "linux/amd64", "tar.gz")))
	path := unpack(t, plugin["kubectl-escache"], "kubectl-escache")
	if out := mustRun(t, nil, path, "--version"); !strings.Contains(out, version) {
		t.Errorf("kubectl-escache --version: %q", out)
	}
	// kubectl finds the script on the PATH, and passes the words on; the script calls kubectl.
	bin := filepath.Dir(path)
	check(t, os.WriteFile(bin+"/kubectl_complete-escache", plugin["kubectl_complete-escache"], 0o755))
	check(t, os.WriteFile(bin+"/kubectl", []byte("#!/bin/sh\nshift\nexec kubectl-escache \"$@\"\n"), 0o755))
	out := mustRun(t, []string{"PATH=" + bin + ":" + os.Getenv("PATH")}, bin+"/kubectl_complete-escache", "supp")
	if !strings.HasPrefix(out, "support-bundle\t") {
		t.Errorf("supp is completed to %q", out)
	}
	for _, shell := range []string{"bash", "zsh", "fish", "powershell"} {
		if out := mustRun(t, nil, path, "completion", shell); !strings.Contains(out, "__complete") {
			t.Errorf("completion for %s is %.80q", shell, out)
		}
	}
	for _, name := range []string{"escached", "escache-cache"} {
		path = unpack(t, untar(t, m.path(asset("escached", "linux/amd64", "tar.gz")))[name], name)
		if out := mustRun(t, nil, path, "version"); out != version+"\n" {
			t.Errorf("%s version: %q", name, out)
		}
	}
}

func moduleLists(t *testing.T, m made) {
	for _, p := range allPrograms() {
		moduleList(t, m.read(t, asset(p.name, p.platform, "cdx.json")), untar(t, m.path(asset(p.name, p.platform, "tar.gz")))[p.file()])
	}
}

// component is a module in a CycloneDX list.
type component struct {
	Name    string `json:"name"`
	Version string `json:"version"`
}

// moduleList wants in a CycloneDX list what Go itself finds in a program.
func moduleList(t *testing.T, text, program []byte) {
	t.Helper()
	var list struct {
		Format   string `json:"bomFormat"`
		Metadata struct {
			Component component `json:"component"`
		} `json:"metadata"`
		Components []component `json:"components"`
	}
	check(t, json.Unmarshal(text, &list))
	info, err := buildinfo.Read(bytes.NewReader(program))
	check(t, err)
	if list.Format != "CycloneDX" || list.Metadata.Component.Name != "github.com/escache/escache-csi" ||
		!strings.Contains(list.Metadata.Component.Version, version) {
		t.Errorf("the list is of %q %+v", list.Format, list.Metadata.Component)
	}
	have := map[string]bool{}
	for _, c := range list.Components {
		have[c.Name+" "+c.Version] = true
	}
	if len(info.Deps) < 10 {
		t.Errorf("the program has only %d modules", len(info.Deps))
	}
	for _, module := range info.Deps {
		if !have[module.Path+" "+module.Version] {
			t.Errorf("%s %s is not listed", module.Path, module.Version)
		}
	}
}

// krew has krew itself read the manifest, compare the sum and install the plugin, as on each platform.
func krew(t *testing.T, m made) {
	var manifest struct {
		Metadata struct{ Name string } `yaml:"metadata"`
		Spec     struct {
			Version   string `yaml:"version"`
			Platforms []struct {
				Selector struct {
					Labels struct{ OS, Arch string } `yaml:"matchLabels"`
				} `yaml:"selector"`
				URI, Sha256 string
			} `yaml:"platforms"`
		} `yaml:"spec"`
	}
	check(t, yaml.Unmarshal(m.read(t, "escache.yaml"), &manifest))
	if manifest.Metadata.Name != "escache" || manifest.Spec.Version != version || len(manifest.Spec.Platforms) != len(platforms()) {
		t.Fatalf("%+v", manifest)
	}
	program := tool(t, "krew")
	for _, p := range manifest.Spec.Platforms {
		labels := p.Selector.Labels
		name := asset("kubectl-escache", labels.OS+"/"+labels.Arch, "tar.gz")
		if p.URI != url+"/"+name || p.Sha256 != sum(t, m.path(name)) {
			t.Errorf("%s: %+v", name, p)
		}
		root := t.TempDir()
		env := []string{"KREW_ROOT=" + root, "KREW_OS=" + labels.OS, "KREW_ARCH=" + labels.Arch, "KREW_NO_UPGRADE_CHECK=1"}
		args := []string{"install", "--manifest", m.path("escache.yaml"), "--archive"}
		mustRun(t, env, program, append(args, m.path(name))...)
		installed := filepath.Join(root, "store", "escache", version, program2file(labels.OS))
		packed := untar(t, m.path(name))
		if got, want := sum(t, installed), sumOf(packed[program2file(labels.OS)]); got != want {
			t.Errorf("%s: krew has installed %s, not %s", name, got, want)
		}
		// With every other file of the archive, of which one is what kubectl calls to complete words.
		for file := range packed {
			if _, err := os.Stat(filepath.Join(filepath.Dir(installed), file)); err != nil {
				t.Errorf("%s: krew has not installed %s: %v", name, file, err)
			}
		}
	}
	// Another archive than the manifest's is refused.
	env := []string{"KREW_ROOT=" + t.TempDir(), "KREW_OS=linux", "KREW_ARCH=amd64", "KREW_NO_UPGRADE_CHECK=1"}
	wrong := m.path(asset("escached", "linux/amd64", "tar.gz"))
	if out, err := run(t, env, program, "install", "--manifest", m.path("escache.yaml"), "--archive", wrong); err == nil {
		t.Errorf("krew installs anything:\n%s", out)
	}
}

func program2file(os string) string { return program{"kubectl-escache", os + "/"}.file() }
