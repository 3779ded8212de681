package release

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// TestWorkflowsCallMake wants workflows to call targets that are there, and to name no registry but
// that of the repository's own owner.
func TestWorkflowsCallMake(t *testing.T) {
	paths, err := filepath.Glob(checkout + "/.github/workflows/*.yaml")
	check(t, err)
	makefile, err := os.ReadFile(checkout + "/Makefile")
	check(t, err)
	target := regexp.MustCompile(`(?m)(?:^|&& |; )\s*make ([a-z0-9-]+)`)
	host := regexp.MustCompile(`\b[a-z0-9-]+(?:\.[a-z0-9-]+)*\.(?:io|com|org|dev|net)\b`)
	called := map[string]bool{}
	for _, path := range paths {
		text, err := os.ReadFile(path)
		check(t, err)
		for _, name := range host.FindAllString(string(text), -1) {
			if name != "ghcr.io" {
				t.Errorf("%s names %s", path, name)
			}
		}
		var workflow struct {
			Permissions map[string]string `yaml:"permissions"`
			Jobs        map[string]struct {
				Timeout int                          `yaml:"timeout-minutes"`
				Steps   []struct{ Run, Uses string } `yaml:"steps"`
			} `yaml:"jobs"`
		}
		check(t, yaml.Unmarshal(text, &workflow))
		if workflow.Permissions["contents"] != "read" || len(workflow.Permissions) != 1 {
			t.Errorf("%s gives every job %v", path, workflow.Permissions)
		}
		for name, job := range workflow.Jobs {
			if job.Timeout == 0 {
				t.Errorf("%s: %s may run for ever", path, name)
			}
			for _, step := range job.Steps {
				for _, match := range target.FindAllStringSubmatch(step.Run, -1) {
					called[match[1]] = true
					if !strings.Contains(string(makefile), "\n"+match[1]+": ") {
						t.Errorf("%s: no target %s", path, match[1])
					}
				}
				if strings.Contains(step.Run, "${{") {
					t.Errorf("%s: a script has an expression in it; pass it in env: %s", path, step.Run)
				}
			}
		}
	}
	for _, name := range []string{"lint", "test", "release", "push"} {
		if !called[name] {
			t.Errorf("no workflow calls make %s", name)
		}
	}
}
