//go:build e2e

package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// outOfServiceSince is on a Node whose out-of-service taint is csi-controller's own.
const outOfServiceSince = "escache.io/out-of-service-since"

// deployment runs a script in one pod, wherever Kubernetes puts it, and again elsewhere when it is
// gone.
func (w *world) deployment(t *testing.T, name, claim, script string) {
	t.Helper()
	quoted, err := json.Marshal(script)
	check(t, err)
	w.apply(t, fmt.Sprintf(`
apiVersion: apps/v1
kind: Deployment
metadata: {name: %[1]s, namespace: %[2]s}
spec:
  replicas: 1
  strategy: {type: Recreate}
  selector: {matchLabels: {app: %[1]s}}
  template:
    metadata: {labels: {app: %[1]s}}
    spec:
      terminationGracePeriodSeconds: 1
      hostNetwork: true
      automountServiceAccountToken: false
      containers:
      - name: c
        image: %[3]s
        imagePullPolicy: Never
        command: [sh, -c, %[4]s]
        volumeMounts: [{name: data, mountPath: /data}]
      volumes: [{name: data, persistentVolumeClaim: {claimName: %[5]s}}]
`, name, namespace, image, quoted, claim))
}

// podOf waits until a deployment's pod is ready on a node other than that one, and returns its name
// and node.
func (w *world) podOf(t *testing.T, deployment, not string) (pod, node string) {
	t.Helper()
	took := labtest.WaitForCommand(t, "a pod of "+deployment+" is ready", podTime, func(ctx context.Context) error {
		var pods corev1.PodList
		if err := w.get(ctx, &pods, "-n", namespace, "pods", "-l", "app="+deployment); err != nil {
			return err
		}
		for _, p := range pods.Items {
			for _, c := range p.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && p.Spec.NodeName != not && p.DeletionTimestamp == nil {
					pod, node = p.Name, p.Spec.NodeName
					return nil
				}
			}
		}
		return fmt.Errorf("there are %d pods, and none is", len(pods.Items))
	})
	t.Logf("pod %s is ready on %s after %s", pod, node, took.Round(time.Second))
	return pod, node
}

// get reads objects.
func (w *world) get(ctx context.Context, into any, args ...string) error {
	text, err := w.try(ctx, "", append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}

// isTainted says whether a node has csi-controller's own out-of-service taint. One of the two signs
// alone is an error.
func (w *world) isTainted(ctx context.Context, node string) (bool, error) {
	var n corev1.Node
	if err := w.get(ctx, &n, "node", node); err != nil {
		return false, err
	}
	has := false
	for _, taint := range n.Spec.Taints {
		has = has || taint.Key == outOfService
	}
	if has != (n.Annotations[outOfServiceSince] != "") {
		return has, fmt.Errorf("%s has the taint: %t, annotations %q", node, has, n.Annotations)
	}
	return has, nil
}

// tainted: nobody but csi-controller does anything between the loss of the host and the pod that
// runs elsewhere with its data.
func tainted(t *testing.T, w *world) {
	volume := w.claim(t, "dead", "e2e-node-ext4", "Filesystem", "256Mi")
	w.deployment(t, "dead", "dead", writingOn)
	defer w.deleteDeployment(t, "dead")
	pod, host := w.podOf(t, "dead", "")
	b := &busy{world: w, name: pod, volume: volume, host: host}
	b.sums = w.fill(t, pod)
	b.bothCurrent(t)
	b.writes(t)

	begin := time.Now()
	check(t, w.lab.PowerOff(t.Context(), host))
	labtest.WaitForCommand(t, host+" is tainted", podTime, func(ctx context.Context) error {
		if is, err := w.isTainted(ctx, host); err != nil || !is {
			return errors.Join(errors.New("it is not"), err)
		}
		return nil
	})
	t.Logf("%s is tainted %s after it lost its power", host, time.Since(begin).Round(time.Second))
	w.waitForEvent(t, "Node", host, "TaintedOutOfService", "has not been Ready", "has not answered", "replication links")
	b.name, b.host = w.podOf(t, "dead", host)
	t.Logf("the pod runs on %s %s after %s lost its power", b.host, time.Since(begin).Round(time.Second), host)
	b.same(t, b.name, b.sums)
	if n := b.count(t, b.name); n < b.acked {
		t.Errorf("the count is %d on %s, and %d was acknowledged", n, b.host, b.acked)
	}
	b.writes(t)

	check(t, w.lab.PowerOn(t.Context(), host))
	labtest.WaitForCommand(t, host+" is back in service", podTime, func(ctx context.Context) error {
		if is, err := w.isTainted(ctx, host); err != nil || is {
			return errors.Join(errors.New("it is tainted"), err)
		}
		return nil
	})
	w.waitForEvent(t, "Node", host, "BackInService")
	b.bothCurrent(t)
}

func (w *world) deleteDeployment(t *testing.T, name string) {
	t.Helper()
	if _, err := w.try(context.WithoutCancel(t.Context()), "", "-n", namespace, "delete", "deployment", name, "--timeout=60s"); err != nil {
		t.Errorf("%v", err)
	}
}

// notTainted: Kubernetes and csi-controller do not reach a host, and its partner does.
func notTainted(t *testing.T, w *world) {
	b := w.busy(t, "alive", writingOn)
	b.bothCurrent(t)
	b.writes(t)
	check(t, w.lab.Cut(t.Context(), b.host, labclient.Cut{From: labclient.CutControlPlane}))
	w.waitForEvent(t, "Node", b.host, "FailoverStoodDown", "but the controller and Kubernetes do not reach it", "replication links to it are up")
	if !w.logged(t, "not tainting a node that looks dead", `"node":"`+b.host+`"`) {
		t.Errorf("no line in a log of csi-controller says so")
	}
	// Twice as long as it takes to taint a dead one.
	for begin := time.Now(); time.Since(begin) < 30*time.Second; {
		if is, err := w.isTainted(t.Context(), b.host); err != nil || is {
			t.Fatalf("%s is tainted: %t, %v", b.host, is, err)
		}
		from := w.completed(t, b.host)
		labtest.WaitForCommand(t, "the writer goes on", commandTime, func(context.Context) error {
			if w.completed(t, b.host) == from {
				return fmt.Errorf("still %d", from)
			}
			return nil
		})
	}
	check(t, w.lab.Heal(t.Context()))
	w.kubectl(t, "wait", "--for=condition=Ready", "node/"+b.host, fmt.Sprintf("--timeout=%s", podTime))
	b.writes(t)
	b.keptAll(t)
}

// logged says whether a line of a csi-controller's log has all of the words.
func (w *world) logged(t *testing.T, words ...string) bool {
	t.Helper()
	status, err := w.lab.Status(t.Context())
	check(t, err)
	for _, part := range status.Parts {
		if !strings.HasPrefix(part.Name, "csi-controller-") || strings.Contains(part.Name, ".") {
			continue
		}
		text, err := os.ReadFile(part.Log)
		check(t, err)
		for line := range strings.Lines(string(text)) {
			if !slices.ContainsFunc(words, func(word string) bool { return !strings.Contains(line, word) }) {
				return true
			}
		}
	}
	return false
}
