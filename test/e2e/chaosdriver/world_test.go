//go:build e2e

package chaosdriver

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

const (
	namespace = "e2e-chaos"
	group     = "e2e-chaos"
	class     = "e2e-chaos"

	outOfService = "node.kubernetes.io/out-of-service"
	serviceDir   = "/run/lab/services/"

	// podTime bounds getting a pod to run, or to go, on emulated hosts that share two processors
	// with everything else.
	podTime     = 5 * time.Minute
	commandTime = 2 * time.Minute
	goOnTime    = 2 * time.Minute
	bootTime    = 6 * time.Minute
)

type cacheVolume = v1alpha1.CacheVolume

// world is the lab and what is in its Kubernetes.
type world struct {
	lab    *labtest.Lab
	client *labclient.Client
	api    *kube.Client
	rows   int // how many were begun; it makes names unique
	// deleted is a host that is off and has no Node any more, and that nobody boots or asks until its row is over. It may be empty.
	deleted string
	// fenced are clients on Ceph's blocklist that may be there although no record names them.
	fenced []string
}

func open(t *testing.T) *world {
	t.Helper()
	client, err := labclient.Inside()
	check(t, err)
	config, err := clientcmd.BuildConfigFromFlags("", os.Getenv("KUBECONFIG"))
	check(t, err)
	api, err := kube.New(config)
	check(t, err)
	w := &world{lab: labtest.Open(t), client: client, api: api}
	nodes := w.names()
	// A node is in one group only, and another suite may have left its own.
	_, err = w.try(t.Context(), "", "delete", "nodegroups", "--field-selector=metadata.name!="+group, "--timeout=120s")
	check(t, err)
	w.apply(t, fmt.Sprintf(`
apiVersion: v1
kind: Namespace
metadata: {name: %s}
---%s
---
apiVersion: snapshot.storage.k8s.io/v1
kind: VolumeSnapshotClass
metadata: {name: %s}
driver: csi.escache.io
deletionPolicy: Delete
`, namespace, storageClass(class, "32Mi"), class))
	w.groupOf(t, nodes)
	for _, n := range nodes {
		labtest.WaitForCommand(t, "the kubelet of "+n+" knows its group", commandTime, func(ctx context.Context) error {
			got, err := w.try(ctx, "", "get", "node", n, "-o", `jsonpath={.metadata.labels.topology\.escache\.io/group}`)
			if err == nil && got != group {
				err = fmt.Errorf("it has group %q", got)
			}
			return err
		})
	}
	w.ready(t)
	w.fenced, err = fencedForYears(t.Context())
	check(t, err)
	return w
}

// storageClass is one whose volumes have caches of this size.
func storageClass(name, cacheSize string) string {
	return fmt.Sprintf(`
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: %s}
provisioner: csi.escache.io
allowVolumeExpansion: true
volumeBindingMode: Immediate
parameters: {clusterID: %q, pool: rbd, cacheSize: %s, cacheEngine: %s}
`, name, os.Getenv("LAB_CEPH_FSID"), cacheSize, labtest.ClassEngine())
}

// names are those of all hosts.
func (w *world) names() (nodes []string) {
	for _, h := range w.lab.Hosts {
		nodes = append(nodes, h.Name)
	}
	return nodes
}

// groupOf makes the NodeGroup one of these nodes, also while the test is cleaned up.
func (w *world) groupOf(t labtest.T, nodes []string) {
	t.Helper()
	_, err := w.try(context.WithoutCancel(t.Context()), fmt.Sprintf(`
apiVersion: escache.io/v1alpha1
kind: NodeGroup
metadata: {name: %s}
spec: {nodes: [%s]}
`, group, strings.Join(nodes, ", ")), "apply", "-f", "-")
	check(t, err)
}

// ready waits until volumes can be placed on all hosts.
func (w *world) ready(t labtest.T) {
	t.Helper()
	w.allReady(t, len(w.lab.Hosts))
}

// allReady waits until the group has so many hosts, and volumes can be placed on all of them.
func (w *world) allReady(t labtest.T, hosts int) {
	t.Helper()
	labtest.WaitForCommand(t, fmt.Sprintf("all %d hosts of the group are ready", hosts), podTime, func(ctx context.Context) error {
		got, err := w.try(ctx, "", "get", "nodegroup", group, "-o", "jsonpath={.status.summary.ready}")
		if want := fmt.Sprintf("%d/%[1]d", hosts); err == nil && got != want {
			err = fmt.Errorf("%q are", got)
		}
		return err
	})
}

func check(t labtest.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatalf("%v", err)
	}
}

// try runs kubectl as the administrator, for podTime where the context has no end of its own.
func (w *world) try(ctx context.Context, in string, args ...string) (string, error) {
	if _, ends := ctx.Deadline(); !ends {
		bounded, cancel := context.WithTimeout(ctx, podTime)
		defer cancel()
		ctx = bounded
	}
	cmd := exec.CommandContext(ctx, filepath.Join(os.Getenv(labclient.EnvBin), "kubectl"), args...)
	cmd.Stdin = strings.NewReader(in)
	return labtest.Output(cmd)
}

func (w *world) kubectl(t labtest.T, args ...string) string {
	t.Helper()
	out, err := w.try(t.Context(), "", append([]string{"-n", namespace}, args...)...)
	check(t, err)
	return out
}

func (w *world) apply(t labtest.T, objects string) {
	t.Helper()
	_, err := w.try(t.Context(), objects, "apply", "-f", "-")
	check(t, err)
}

// get reads objects.
func (w *world) get(ctx context.Context, into any, args ...string) error {
	text, err := w.try(ctx, "", append([]string{"get", "-o", "json"}, args...)...)
	if err != nil {
		return err
	}
	return json.Unmarshal([]byte(text), into)
}

// said is what Events tell of an object: messages by reason.
func (w *world) said(ctx context.Context, kind, name string) (map[string]string, error) {
	var list struct {
		Items []struct{ Reason, Message string } `json:"items"`
	}
	err := w.get(ctx, &list, "events", "--all-namespaces", "--field-selector", "involvedObject.kind="+kind+",involvedObject.name="+name)
	told := map[string]string{}
	for _, e := range list.Items {
		told[e.Reason] += e.Message + "\n"
	}
	return told, err
}

// taint says to Kubernetes what an operator says of a host that is lost.
func (w *world) taint(t labtest.T, node string) {
	t.Helper()
	w.kubectl(t, "taint", "node", node, outOfService+"=nodeshutdown:NoExecute", "--overwrite")
}

// mend gives back what rows take away, and returns when all hosts are in use again but one that is deleted.
func (w *world) mend(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, bootTime)
	defer cancel()
	failed := []error{w.client.ResumeCeph(ctx), w.client.Heal(ctx), w.client.StartAPIServer(ctx)}
	status, err := w.client.Status(ctx)
	failed = append(failed, err)
	for _, node := range status.Nodes {
		if node.Name == w.deleted {
			continue
		}
		switch node.State {
		case labclient.NodeOff:
			failed = append(failed, w.client.PowerOn(ctx, node.Name))
		case labclient.NodeFrozen:
			failed = append(failed, w.client.Thaw(ctx, node.Name))
		case labclient.NodeBooting, labclient.NodeUp:
		}
		if node.DiskFailed && node.State == labclient.NodeUp {
			failed = append(failed, w.client.FailDisk(ctx, node.Name, true))
		}
		// One of them may just be starting again.
		_, err := w.client.Shell(ctx, node.Name, "cd "+serviceDir+"; rm -f *.stop; kill -CONT $(cat *.pid) || true")
		failed = append(failed, err)
		_, _ = w.try(ctx, "", "taint", "node", node.Name, outOfService+"-") // a host that had none stays as it is
	}
	_, err = w.try(ctx, "", "wait", "--for=condition=Ready", "node", "--all", "--timeout=240s")
	return errors.Join(append(failed, err)...)
}

// cleanUp removes what a row has made. After a failure it keeps the logs, and takes away by force
// what does not go: the next row shall say something, too.
func (w *world) cleanUp(t *testing.T) {
	ctx := context.WithoutCancel(t.Context())
	if t.Failed() {
		labtest.SaveLogs(t, w.client)
	}
	if err := w.mend(ctx); err != nil {
		t.Errorf("mend the lab: %v", err)
	}
	_, err := w.try(ctx, "", "-n", namespace, "delete", "pod,pvc,volumesnapshot", "--all", "--timeout=180s")
	if err == nil {
		err = w.waitForNothing(ctx)
	}
	if err != nil {
		t.Errorf("what is left of the row: %v", err)
		labtest.SaveLogs(t, w.client)
		w.wipe(ctx, t)
	}
}

// waitForNothing waits until neither Kubernetes nor Ceph nor a host has anything of a volume, but fences that are on record.
func (w *world) waitForNothing(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, podTime)
	defer cancel()
	var last error // of a look that came to its end
	for {
		err := w.anything(ctx)
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return cmp.Or(last, err)
		}
		last = err
		time.Sleep(2 * time.Second)
	}
}

func (w *world) anything(ctx context.Context) error {
	objects, err := w.try(ctx, "", "get", "cachevolumes,cachesnapshots,volumeattachments,pv", "-o", "name")
	if err := nothing("Kubernetes", objects, err); err != nil {
		return err
	}
	for _, args := range [][]string{{"ls", "rbd"}, {"trash", "ls", "rbd"}} {
		out, err := labtest.Output(exec.CommandContext(ctx, "rbd", args...))
		if err := nothing("rbd "+strings.Join(args, " "), out, err); err != nil {
			return err
		}
	}
	for _, h := range w.lab.Hosts {
		if h.Name == w.deleted {
			continue
		}
		left, err := h.Residue(ctx)
		if err := nothing(h.Name, strings.Join(left, "\n"), err); err != nil {
			return err
		}
	}
	return w.fencesOnRecord(ctx)
}

// fencesOnRecord returns an error for clients that stay on Ceph's blocklist for years, because no record names them any more. While
// there is no volume, that is the record of the group. Those which it names leave the blocklist, some minutes later.
func (w *world) fencesOnRecord(ctx context.Context) error {
	fenced, err := fencedForYears(ctx)
	if err != nil {
		return err
	}
	var g v1alpha1.NodeGroup
	err = w.get(ctx, &g, "nodegroup", group)
	unknown := slices.DeleteFunc(fenced, func(client string) bool {
		return slices.Contains(w.fenced, client) ||
			slices.ContainsFunc(g.Status.LeftFences, func(l v1alpha1.LeftFence) bool { return l.Client.Address == client })
	})
	return nothing("the blocklist, and no record,", strings.Join(unknown, " "), err)
}

// fencedForYears are the clients on Ceph's blocklist whose entries are the driver's.
func fencedForYears(ctx context.Context) ([]string, error) {
	list, err := blocklist(ctx)
	if err != nil {
		return nil, err
	}
	return labtest.FencedForYears(list, time.Now())
}

func nothing(where, has string, err error) error {
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", where, err)
	case has != "":
		return fmt.Errorf("%s has %q", where, has)
	}
	return nil
}

// wipe is for what a failed row has left, whatever the driver says: records without their
// finalizers, hosts booted with empty disks, images removed.
func (w *world) wipe(ctx context.Context, t *testing.T) {
	t.Helper()
	try := func(what string, err error) {
		if err != nil {
			t.Logf("wipe: %s: %v", what, err)
		}
	}
	_, err := w.try(ctx, "", "-n", namespace, "delete", "pod,pvc,volumesnapshot", "--all", "--force", "--grace-period=0", "--wait=false")
	try("delete", err)
	for _, kind := range []string{"volumeattachments", "cachevolumes", "cachesnapshots", "pv"} {
		names, err := w.try(ctx, "", "get", kind, "-o", "name")
		try("list "+kind, err)
		for name := range strings.FieldsSeq(names) {
			_, err := w.try(ctx, "", "patch", name, "--type=merge", "-p", `{"metadata":{"finalizers":null}}`)
			try(name, err)
			_, err = w.try(ctx, "", "delete", name, "--wait=false", "--ignore-not-found")
			try(name, err)
		}
	}
	for _, h := range w.lab.Hosts {
		try(h.Name, errors.Join(w.client.PowerOff(ctx, h.Name), w.client.NewDisk(ctx, h.Name), w.client.PowerOn(ctx, h.Name)))
	}
	out, err := labtest.Output(exec.CommandContext(ctx, "rbd", "ls", "rbd"))
	try("images", err)
	for image := range strings.FieldsSeq(out) {
		_, err := labtest.Output(exec.CommandContext(ctx, "rbd", "--no-progress", "snap", "purge", "rbd/"+image))
		try(image, err)
		_, err = labtest.Output(exec.CommandContext(ctx, "rbd", "--no-progress", "rm", "rbd/"+image))
		try(image, err)
	}
	try("hosts", w.mend(ctx))
	w.fenced, err = fencedForYears(ctx) // the records that named them are wiped
	try("blocklist", err)
}
