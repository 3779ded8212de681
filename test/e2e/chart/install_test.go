//go:build e2e

package chart

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/internal/page"
)

// values are the least that docs/install.md asks for, with what is special here: small disks, no
// udev on the hosts, a lease that bears emulated processors, orphans that are looked for often, and
// logs that say all.
const values = `
ceph: {clusterID: %q, monitors: [%q]}
nodeGroups: [{name: rack-1, nodes: [n1, n2, n3]}]
storageClasses: [{name: escache, pool: fast, parameters: {cacheSize: 64Mi}}]
escached: {debug: true, extraEnv: [{name: DM_DISABLE_UDEV, value: "1"}]}
controller: {logLevel: debug, orphanInterval: 30s, lease: {duration: 60s, renewDeadline: 45s, retryPeriod: 5s}}
node: {logLevel: debug}
`

// install does what docs/install.md says, command for command.
func install(t *testing.T, w *world) {
	doc := page.Read(t, "docs/install.md")
	monitor := setting(t, "mon.host")
	check(t, os.WriteFile(w.values, fmt.Appendf(nil, values, os.Getenv("LAB_CEPH_FSID"), monitor), 0o600))
	for _, h := range w.hosts {
		for _, unwanted := range []string{"/usr/local/bin/escached", "/etc/escache", "/etc/ceph"} {
			w.shell(t, h.Name, "test ! -e "+unwanted)
		}
	}
	begin := time.Now()
	charts := "charts"
	if earlier := os.Getenv("UPGRADE_FROM_CHARTS"); earlier != "" {
		charts = earlier
	}
	w.sh(t, charts, doc.Step(t, 1))
	w.sh(t, charts, doc.Quoted(t, "kubectl label node"))
	w.steps.Mark("Ceph users with the caps of docs/install.md, namespace, Secrets, labels")

	command := doc.Quoted(t, "helm install")
	w.sh(t, charts, strings.Replace(command, "values.yaml", w.values, 1))
	w.steps.Mark("helm install")
	w.claim(t, "first", "n1", writing)
	w.running(t, "first")
	t.Logf("from an empty cluster to the first pod with a volume: %s", time.Since(begin).Round(time.Second))
	w.steps.Mark("first pod Ready, with a volume")
	w.rolledOut(t)
	w.ready(t)
	w.steps.Mark("every pod of the release Ready")
	w.goesOn(t, "first", 0)
	w.restrictedTo(t)
	if charts == "charts" { // an earlier release may have no tests
		w.sh(t, charts, doc.Quoted(t, "helm test escache"))
		w.sh(t, charts, doc.Block(t, "escached preflight --pool fast --server-name"))
		w.steps.Mark("helm test, and escached preflight in a pod of escached")
	}
}

// restrictedTo looks at what the pods really have.
func (w *world) restrictedTo(t *testing.T) {
	t.Helper()
	// The controller's pods would be taken by a namespace that enforces Pod Security's restricted.
	pods := w.kubectl(t, "-n", namespace, "get", "pods", "-l", "app.kubernetes.io/component=controller", "-o", "name")
	for pod := range strings.Lines(pods) {
		pod = strings.TrimSpace(pod)
		status := w.kubectl(t, "-n", namespace, "exec", pod, "-c", "csi-controller", "--", "cat", "/proc/1/status")
		for _, line := range []string{`Uid:\s65532\s`, `CapEff:\s0{16}`, `NoNewPrivs:\s1`, `Seccomp:\s2`} {
			if !regexp.MustCompile(line).MatchString(status) {
				t.Errorf("%s: csi-controller's process has no %q:\n%s", pod, line, status)
			}
		}
	}
	// What only escached may see is not on the host, and what the host's DRBD needs is.
	for _, h := range w.hosts {
		w.shell(t, h.Name, "test -x /usr/local/lib/escache/escached && test -e /etc/escache/escached.yaml && "+
			"test ! -e /run/escache/tls/tls.key && test ! -e /run/escache/ceph/keyring")
	}
}

// rolledOut waits for every pod of the release.
func (w *world) rolledOut(t *testing.T) {
	t.Helper()
	for _, part := range []string{"daemonset/escache-escached", "daemonset/escache-node", "deployment/escache-controller"} {
		w.kubectl(t, "-n", namespace, "rollout", "status", part, fmt.Sprintf("--timeout=%s", podTime))
	}
}

// sh runs a script of a page as it stands there, with a directory of charts, where files that it
// makes do not stay.
func (w *world) sh(t *testing.T, charts, script string) {
	t.Helper()
	t.Log(script)
	charts, err := filepath.Abs(charts)
	check(t, err)
	dir := t.TempDir()
	check(t, os.Symlink(charts, filepath.Join(dir, "charts")))
	_, err = w.try(t.Context(), "set -eu; cd "+dir+"\n"+script, "sh")
	check(t, err)
}

// setting is a line of the lab's ceph.conf.
func setting(t *testing.T, name string) string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sed", "-n", `s/^\s*`+name+`\s*=\s*//p`, os.Getenv("CEPH_CONF")).Output()
	if err != nil || len(out) == 0 {
		t.Fatalf("no %s in %s: %v", name, os.Getenv("CEPH_CONF"), err)
	}
	return strings.TrimSpace(string(out))
}
