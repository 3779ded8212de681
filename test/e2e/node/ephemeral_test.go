//go:build e2e

package node

import (
	"fmt"
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/labtest"
)

// ephemeral is a pod whose volume is made with it and goes with it.
func ephemeral(t *testing.T, w *world) {
	steps := labtest.NewTimeline()
	for n, node := range []string{w.nodes[0], w.nodes[1]} { // a second one of that name begins empty
		w.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: scratch, namespace: %s}
spec:
  restartPolicy: Never
  terminationGracePeriodSeconds: 1
  hostNetwork: true
  automountServiceAccountToken: false
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
  - name: c
    image: %s
    imagePullPolicy: Never
    command: [sh, -c, %s]
    volumeMounts: [{name: data, mountPath: /data}]
  volumes:
  - name: data
    ephemeral:
      volumeClaimTemplate:
        spec: {accessModes: [ReadWriteOnce], storageClassName: e2e-node-ext4, resources: {requests: {storage: 512Mi}}}
`, namespace, node, image, forever))
		w.running(t, "scratch")
		steps.Mark(fmt.Sprintf("pod %d runs", n+1))
		if has := w.in(t, "scratch", "ls /data"); has != "lost+found" {
			t.Errorf("pod %d begins with %q", n+1, has)
		}
		w.same(t, "scratch", w.fill(t, "scratch"))
		volume := w.volumeOf(t, "scratch-data")
		if images := w.rbd(t, "ls", "rbd"); !strings.Contains(images, w.volume(t, volume).Spec.Image) {
			t.Errorf("images: %q", images)
		}
		w.kubectl(t, "delete", "pod", "scratch", "--wait=true", "--timeout=240s")
		w.nothingLeft(t)
		if left := w.kubectl(t, "get", "pvc", "-o", "name"); left != "" {
			t.Errorf("claims are left: %s", left)
		}
		steps.Mark(fmt.Sprintf("pod %d is gone, and claim, volume and image with it", n+1))
	}
	steps.Print(t)
	w.refusesInline(t)
}

// refusesInline shows that the kubelet refuses a CSI inline volume, and asks no driver: the CSIDriver does not list them.
func (w *world) refusesInline(t *testing.T) {
	t.Helper()
	w.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Pod
metadata: {name: inline, namespace: %s}
spec:
  restartPolicy: Never
  hostNetwork: true
  automountServiceAccountToken: false
  nodeSelector: {kubernetes.io/hostname: %s}
  containers: [{name: c, image: %s, imagePullPolicy: Never, command: [sh, -c, %s], volumeMounts: [{name: data, mountPath: /data}]}]
  volumes: [{name: data, csi: {driver: csi.escache.io}}]
`, namespace, w.nodes[0], image, forever))
	w.waitForEvent(t, "Pod", "inline", "FailedMount", `volume mode "Ephemeral" not supported by driver csi.escache.io`)
	w.kubectl(t, "delete", "pod", "inline", "--wait=true", "--timeout=240s")
}
