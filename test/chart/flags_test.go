package chart

import (
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/kubetest"
)

// programs are the binaries by the name of their container.
func programs(t *testing.T) map[string]string {
	t.Helper()
	out := kubetest.Tools(t, "csi-provisioner", "csi-attacher", "csi-resizer", "csi-snapshotter")
	tags, err := exec.CommandContext(t.Context(), filepath.Join(checkout, "hack/ceph-tags.sh")).Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	for _, name := range []string{"csi-controller", "csi-node", "escached"} {
		out[name] = filepath.Join(dir, name)
		command := exec.CommandContext(t.Context(), "go", "build", "-tags", strings.TrimSpace(string(tags)), "-o", out[name], "./cmd/"+name)
		command.Dir = checkout
		if text, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
	}
	out["check"] = out["csi-controller"]     // the Job before an uninstall
	out["preflight"] = out["csi-controller"] // the pod of `helm test`
	return out
}

var helpFlag = regexp.MustCompile(`(?m)^\s+(?:-\w, )?--?([a-z][a-z0-9-]*)`)

// TestProgramsTakeTheirFlags looks each flag up in its program's help: one that it does not know
// would keep it from starting. Ours are also started with exactly what the chart gives them: what
// is wrong with a value, they say at once.
func TestProgramsTakeTheirFlags(t *testing.T) {
	paths := programs(t)
	known := helps(t, paths)
	for name, values := range cases(t) {
		checked := 0
		for _, o := range parse(t, render(t, values)) {
			for _, c := range containers(o) {
				program := fmt.Sprint(c["name"])
				var args []string
				list, _ := c["args"].([]any)
				for _, arg := range list {
					args = append(args, strings.NewReplacer("$(POD_NAME)", "p", "$(POD_NAMESPACE)", "n", "$(NODE_NAME)", "n1").Replace(fmt.Sprint(arg)))
					flag, _, _ := strings.Cut(strings.TrimLeft(fmt.Sprint(arg), "-"), "=")
					if strings.HasPrefix(fmt.Sprint(arg), "-") && !known[program][flag] {
						t.Errorf("%s: %s has no flag --%s", name, program, flag)
					}
					checked++
				}
				if program != "csi-controller" && program != "csi-node" && program != "preflight" {
					continue
				}
				// Outside of a pod there is no API server to be found: that is what stops them,
				// after the flags have been accepted.
				out, err := exec.CommandContext(t.Context(), paths[program], args...).CombinedOutput()
				if err == nil || !strings.Contains(string(out), "Kubernetes API") {
					t.Errorf("%s: %s: %v: %s", name, program, err, out)
				}
			}
		}
		if checked < 50 {
			t.Errorf("%s: only %d flags were looked at", name, checked)
		}
	}
}

// helps are the flags that each program's help names.
func helps(t *testing.T, paths map[string]string) map[string]map[string]bool {
	t.Helper()
	known := map[string]map[string]bool{}
	for name, path := range paths {
		known[name] = map[string]bool{}
		args := []string{"--help"}
		if name == "preflight" {
			args = []string{name, "--help"}
		}
		text, _ := exec.CommandContext(t.Context(), path, args...).CombinedOutput() // the sidecars end with 2 after their help
		for _, m := range helpFlag.FindAllStringSubmatch(string(text), -1) {
			known[name][m[1]] = true
		}
		if len(known[name]) < 3 {
			t.Fatalf("%s --help tells of no flags:\n%s", name, text)
		}
	}
	return known
}
