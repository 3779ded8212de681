// Package chart tests the Helm chart: what it renders, what it refuses, that a real API server
// takes it, and that the programs know every flag it gives them.
package chart

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/escache/escache-csi/test/kubetest"
)

const (
	checkout  = "../.."
	chartDir  = checkout + "/charts/escache-csi"
	namespace = "escache-system"
	release   = "escache"
)

// cases are the values files, by name.
func cases(t *testing.T) map[string]string {
	t.Helper()
	files, err := filepath.Glob("testdata/values/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no values files: %v", err)
	}
	out := map[string]string{}
	for _, file := range files {
		out[strings.TrimSuffix(filepath.Base(file), ".yaml")] = file
	}
	return out
}

// The versions of Helm that install the chart, by the names that test/buildtools knows.
const (
	helm4 = "helm"
	helm3 = "helm3"
)

// withEach runs a test with each version of Helm.
func withEach(t *testing.T, test func(t *testing.T, version string)) {
	t.Helper()
	for _, version := range []string{helm4, helm3} {
		t.Run(version, func(t *testing.T) { test(t, version) })
	}
}

// helm runs it in a home of its own and returns what it prints, also when it fails.
func helm(t *testing.T, version string, args ...string) (string, error) {
	t.Helper()
	return run(t, nil, kubetest.Tools(t, version)[version], args...)
}

// goTool returns the path of a tool in the version that hack/tools pins. The go command builds the
// tool if its cache lacks it.
func goTool(t *testing.T, name string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "tool", "-modfile="+checkout+"/hack/tools/"+name+"/go.mod", "-n", name)
	command.Stderr = os.Stderr
	path, err := command.Output()
	if err != nil {
		t.Fatalf("build %s: %v", name, err)
	}
	return strings.TrimSpace(string(path))
}

func run(t *testing.T, in io.Reader, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, program, args...)
	home := t.TempDir()
	command.Env = append(os.Environ(), "HELM_CACHE_HOME="+home, "HELM_CONFIG_HOME="+home, "HELM_DATA_HOME="+home)
	command.Stdin = in
	var out, complaints bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaints
	if err := command.Run(); err != nil {
		return out.String(), errors.Join(err, errors.New(complaints.String()))
	}
	return out.String(), nil
}

// render is what Helm makes of a values file.
func render(t *testing.T, values string, args ...string) string {
	t.Helper()
	return renderWith(t, helm4, values, args...)
}

func renderWith(t *testing.T, version, values string, args ...string) string {
	t.Helper()
	out, err := helm(t, version, append([]string{"template", release, chartDir, "--namespace", namespace, "--values", values}, args...)...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

// object is a manifest.
type object map[string]any

func (o object) get(path ...string) any {
	var at any = map[string]any(o)
	for _, key := range path {
		m, ok := at.(map[string]any)
		if !ok {
			return nil
		}
		at = m[key]
	}
	return at
}

func (o object) kind() string { s, _ := o["kind"].(string); return s }
func (o object) name() string { s, _ := o.get("metadata", "name").(string); return s }

func parse(t *testing.T, manifests string) []object {
	t.Helper()
	var out []object
	in := yaml.NewDecoder(strings.NewReader(manifests))
	for {
		var o map[string]any // not an object: the maps in it would be objects too
		err := in.Decode(&o)
		if errors.Is(err, io.EOF) {
			return out
		}
		if err != nil {
			t.Fatal(err)
		}
		if len(o) > 0 {
			out = append(out, o)
		}
	}
}
