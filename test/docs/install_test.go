package docs

import (
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/internal/page"
)

// TestAnInstallationTakesTenCommands counts what test/e2e/release runs on hosts that pull from a registry
// with a certificate of its own. Commands that only check something do not count.
func TestAnInstallationTakesTenCommands(t *testing.T) {
	install := page.Read(t, root+"/docs/install.md")
	steps := install.Section(t, "Steps")
	unpack := install.Section(t, "Get a release")
	commands := slices.Concat(
		page.Commands(unpack.Block(t, "-C charts")), []string{unpack.Line(t, "    tar -xzf kubectl-escache")},
		page.Commands(install.Section(t, "A registry with a certificate of your own").Block(t, "certs.d")),
		page.Commands(steps.Step(t, 1)), []string{steps.Quoted(t, "kubectl label node"), steps.Quoted(t, "helm install")},
		page.Commands(steps.Step(t, 7))[:1],
	)
	if len(commands) > 10 {
		t.Errorf("an installation takes %d commands, not at most 10:\n%s", len(commands), strings.Join(commands, "\n"))
	}
	for _, check := range []string{"kubectl get nodegroups", "kubectl escache preflight", "helm test"} {
		steps.Quoted(t, check)
	}
	if values := steps.Step(t, 3); !strings.Contains(values, "nodeGroups:") || !strings.Contains(values, "storageClasses:") {
		t.Errorf("these values are not enough:\n%s", values)
	}
	if first := page.Commands(steps.Step(t, 7)); len(first) != 3 || !strings.HasPrefix(first[1], "kubectl wait ") {
		t.Errorf("the page does not wait for the first pod: %q", first)
	}
}
