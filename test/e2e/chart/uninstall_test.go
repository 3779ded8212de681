//go:build e2e

package chart

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/internal/page"
	"github.com/escache/escache-csi/test/labtest"
)

func uninstall(t *testing.T, w *world) {
	command := []string{"uninstall", release, "--namespace", namespace, "--timeout", "5m"}
	before := w.pods(t)
	if out, err := w.try(t.Context(), "", "helm", command...); err == nil {
		t.Fatalf("uninstalled while there are volumes: %s", out)
	}
	log := w.kubectl(t, "-n", namespace, "logs", "job/escache-uninstall")
	if volume := w.volume(t, "first"); !strings.Contains(log, volume) {
		t.Errorf("the Job that refuses does not name %s: %s", volume, log)
	}
	after := w.pods(t)
	for name := range before {
		if after[name] != before[name] {
			t.Errorf("pod %s was removed by an uninstall that was refused", name)
		}
	}
	w.hasNotFailed(t, "first")
	w.steps.Mark("helm uninstall is refused while there are volumes")

	w.kubectl(t, "delete", "pods,pvc", "--all", fmt.Sprintf("--timeout=%s", podTime))
	w.sees(t, "", "get", "cachevolumes,volumeattachments,pv", "-o", "name")
	labtest.WaitForCommand(t, "nothing is left of the volumes", podTime, func(ctx context.Context) error {
		for _, args := range [][]string{{"ls", "fast"}, {"trash", "ls", "fast"}} {
			if out, err := w.try(ctx, "", "rbd", args...); err != nil || out != "" {
				return fmt.Errorf("rbd %s: %q: %w", strings.Join(args, " "), out, err)
			}
		}
		for _, h := range w.hosts {
			if left, err := h.Residue(ctx); err != nil || len(left) > 0 {
				return fmt.Errorf("%s has %q: %w", h.Name, left, err)
			}
		}
		return nil
	})
	_, err := w.escache(t, "flush", "--group=rack-1", "--drain") // never over: the uninstall has to end it
	check(t, err)
	_, err = w.try(t.Context(), "", "helm", command...)
	check(t, err)
	w.sees(t, "", "get", "cacheflushes", "-o", "name")
	w.sees(t, "", "-n", namespace, "get", "pods", "-o", "name")
	w.steps.Mark("volumes deleted, and helm uninstall")

	kinds := w.kubectl(t, "api-resources", "--verbs=list", "-o", "name")
	all := strings.Join(strings.Fields(kinds), ",")
	const part = "app.kubernetes.io/part-of=escache-csi"
	kept := w.kubectl(t, "get", "nodegroups", "-l", part, "-o", "name")
	if left := w.kubectl(t, "get", all, "-A", "-l", part, "-o", "name"); left != kept || kept == "" {
		t.Errorf("left behind:\n%s\nand not\n%s", left, kept)
	}
	w.kubectl(t, "delete", "nodegroups", "--all", "--timeout=60s") // nobody is there any more who would take a finalizer off
	w.sees(t, "", "get", "csistoragecapacities", "-A", "-o", "name")
	w.sees(t, "", "get", "csinodes", "-o", "jsonpath={.items[*].spec.drivers[*].name}")
	doc := page.Read(t, "docs/uninstall.md")
	clean := doc.Line(t, "  rm -r ")
	for _, h := range w.hosts {
		if left := w.shell(t, h.Name, `pgrep -fl '[e]scached|csi-[n]ode|csi-[c]ontroller' || true
			grep -e escache /proc/mounts || true`); left != "" {
			t.Errorf("%s still has %s", h.Name, left)
		}
		w.shell(t, h.Name, clean)
		// The kubelet keeps a directory of its own for each driver whose volumes it had.
		if left := w.shell(t, h.Name, `find / -xdev \( -path /var/lib/containerd -o -path /var/log -o -path /var/lib/kubelet/plugins/kubernetes.io \) -prune \
			-o -path '*escache*' -print; find /run -path '*escache*'`); left != "" {
			t.Errorf("%s: after %q there are still\n%s", h.Name, clean, left)
		}
	}
	const stays = "secret/escache-ceph-controller secret/escache-ceph-node configmap/kube-root-ca.crt lease.coordination.k8s.io/escache-csi-controller"
	if left := w.kubectl(t, "-n", namespace, "get", "all,secrets,configmaps,leases", "-o", "name"); strings.Join(strings.Fields(left), " ") != stays {
		t.Errorf("the namespace has\n%s\nand not %s", left, stays)
	}
	w.steps.Print(t)
}
