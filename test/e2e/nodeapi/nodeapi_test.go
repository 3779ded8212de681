//go:build e2e

// Package nodeapi shows csi-node's way to the Kubernetes API on a real API server with the
// project's CRDs: records, conditions, Events, the arbiter's compare-and-swap, and what an idle
// csi-node costs.
package nodeapi

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/arbiter"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/test/kubetest"
)

const checkout = "../../.."

type world struct {
	kube    *kubetest.ControlPlane
	account kubetest.Account // that the chart gives csi-node
	client  *kube.Client
}

func TestNodeAPI(t *testing.T) {
	w := &world{kube: kubetest.StartAudited(t)}
	w.account = w.kube.ChartAccount(t, checkout, "node")
	config, err := clientcmd.BuildConfigFromFlags("", w.account.Kubeconfig)
	check(t, err)
	w.client, err = kube.New(config)
	check(t, err)
	if groups, err := w.client.Groups(t.Context()); err != nil || len(groups) != 0 {
		t.Errorf("groups before the CRDs are there: %v %v", groups, err)
	}
	w.kubectl(t, "", "apply", "-f", filepath.Join(checkout, "charts/escache-csi/crds"))
	w.kubectl(t, "", "wait", "--for=condition=Established", "--timeout=60s", "crd/cachevolumes.escache.io", "crd/nodegroups.escache.io")
	for _, test := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"records and status by compare-and-swap", records},
		{"an image that is not named after its record is looked for in all records", otherName},
		{"the record of a read-only volume is read", readOnly},
		{"a repeated grant changes the object", repeatedGrant},
		{"of two rivals at most one goes on", rivals},
		{"an Event is shown by kubectl describe", event},
		{"the label of an earlier group is taken off", label},
		{"the DaemonSet is deleted", deleted},
		{"a host gets its own certificate, and no other host's", ownCertificate},
		{"an idle csi-node", idle},
	} {
		t.Run(test.name, func(t *testing.T) { test.run(t, w) })
	}
	w.kube.CheckRights(t, w.account)
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (w *world) kubectl(t *testing.T, in string, args ...string) string {
	t.Helper()
	cmd := exec.Command(w.kube.Kubectl(), append([]string{"--kubeconfig", w.kube.Kubeconfig()}, args...)...)
	cmd.Stdin = strings.NewReader(in)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("kubectl %s: %v: %s", strings.Join(args, " "), err, out)
	}
	return strings.TrimSpace(string(out))
}

// volume makes a CacheVolume that is attached to n1 in epoch 3.
func (w *world) volume(t *testing.T, name string) *v1alpha1.CacheVolume {
	t.Helper()
	w.kubectl(t, fmt.Sprintf(`{"apiVersion":"escache.io/v1alpha1","kind":"CacheVolume","metadata":{"name":%q,"annotations":{"escache.io/claim":"default/data"}},`+
		`"spec":{"clusterID":"lab","pool":"rbd","image":"escache-%s","sizeBytes":1073741824,"cacheBytes":67108864,"cacheMode":"writeback","group":"g1",`+
		`"replicas":["n1","n2"],"port":7800,"minor":100}}`, name, name), "apply", "-f", "-")
	v, err := w.client.Volume(t.Context(), name)
	check(t, err)
	v, err = w.client.PatchStatus(t.Context(), v, map[string]any{"attachedNode": "n1", "epoch": 3, "authority": "Cache", "phase": "Ready"})
	check(t, err)
	return v
}

func records(t *testing.T, w *world) {
	v := w.volume(t, "records")
	annotated, err := w.client.Annotate(t.Context(), v, v1alpha1.AnnotationFilesystem, `{"state":"formatting"}`)
	check(t, err)
	if annotated.Status.AttachedNode != "n1" || annotated.Annotations[v1alpha1.AnnotationClaim] != "default/data" {
		t.Errorf("the record took something else along: %+v", annotated)
	}
	if _, err := w.client.Annotate(t.Context(), v, "k", "old"); !errors.Is(err, kube.ErrConflict) {
		t.Errorf("an annotation decided on an older object: %v", err)
	}
	if _, err := w.client.PatchStatus(t.Context(), v, map[string]any{"dirtyBytes": 1}); !errors.Is(err, kube.ErrConflict) {
		t.Errorf("a status decided on an older object: %v", err)
	}
	conditions := []metav1.Condition{{Type: v1alpha1.ConditionRedundant, Status: metav1.ConditionFalse, Reason: "PeerLost", Message: "m", LastTransitionTime: metav1.Now()}}
	changed, err := w.client.PatchStatus(t.Context(), annotated, map[string]any{
		"conditions": conditions, "clientAddress": "10.0.0.1:0/7", "dirtyBytes": int64(4096), "lastFlushTime": metav1.Now(),
		"summary": map[string]any{"dirty": "4Ki"}, "outdated": []string{"n2"},
	})
	check(t, err)
	s := changed.Status
	if s.ClientAddress != "10.0.0.1:0/7" || s.DirtyBytes != 4096 || s.LastFlushTime == nil || s.Summary.Dirty != "4Ki" || !s.IsOutdated("n2") ||
		s.AttachedNode != "n1" || !meta.IsStatusConditionFalse(s.Conditions, v1alpha1.ConditionRedundant) {
		t.Errorf("status %+v", s)
	}
	cleared, err := w.client.PatchStatus(t.Context(), changed, map[string]any{"outdated": []string{}})
	check(t, err)
	if len(cleared.Status.Outdated) != 0 {
		t.Errorf("outdated %q", cleared.Status.Outdated)
	}
	answered, err := w.client.PatchStatus(t.Context(), cleared, map[string]any{
		"comparison": map[string]any{"question": "q1", "answered": "q1", "behind": "epoch 4"},
	})
	check(t, err)
	asked, err := w.client.PatchStatus(t.Context(), answered, map[string]any{
		"comparison": map[string]any{"question": "q2", "answered": nil, "behind": nil},
	})
	check(t, err)
	if c := asked.Status.Comparison; c == nil || *c != (v1alpha1.RecordComparison{Question: "q2"}) {
		t.Errorf("a new question is %+v", c)
	}
	found, err := w.client.VolumeOf(t.Context(), escache.VolumeRef{Pool: "rbd", Image: "escache-records"})
	if err != nil || found.Name != "records" {
		t.Errorf("by image: %v %v", found, err)
	}
	if _, err := w.client.Volume(t.Context(), "nowhere"); !errors.Is(err, kube.ErrNotFound) {
		t.Errorf("%v", err)
	}
}

func readOnly(t *testing.T, w *world) {
	if _, err := w.client.ReadOnlyVolume(t.Context(), "nowhere"); !errors.Is(err, kube.ErrNotFound) {
		t.Errorf("%v", err)
	}
	w.kubectl(t, `{"apiVersion":"escache.io/v1alpha1","kind":"ReadOnlyVolume","metadata":{"name":"reports"},`+
		`"spec":{"clusterID":"lab","pool":"rbd","image":"escache-reports","sizeBytes":1073741824,"snapshot":"snapshot-1"}}`, "apply", "-f", "-")
	v, err := w.client.ReadOnlyVolume(t.Context(), "reports")
	check(t, err)
	if v.Spec.Pool != "rbd" || v.Spec.Snapshot != "snapshot-1" || v.CopyOn("n1") != nil {
		t.Errorf("record %+v", v)
	}
}

func deleted(t *testing.T, w *world) {
	const name = "escache-node"
	w.kubectl(t, fmt.Sprintf(`{"apiVersion":"apps/v1","kind":"DaemonSet","metadata":{"name":%q,"namespace":%q},"spec":{"selector":{"matchLabels":{"a":"b"}},`+
		`"template":{"metadata":{"labels":{"a":"b"}},"spec":{"containers":[{"name":"c","image":"i"}]}}}}`, name, w.account.Namespace), "apply", "-f", "-")
	if gone, err := w.client.DaemonSetDeleted(t.Context(), w.account.Namespace, name); gone || err != nil {
		t.Errorf("there: %v, %v", gone, err)
	}
	w.kubectl(t, "", "-n", w.account.Namespace, "delete", "daemonset", name)
	if gone, err := w.client.DaemonSetDeleted(t.Context(), w.account.Namespace, name); !gone || err != nil {
		t.Errorf("deleted: %v, %v", gone, err)
	}
}

// judge is the decision of an arbiter whose csi-node had the record of the attachment compared: no csi-controller runs here.
func judge(ctx context.Context, w *world, q escache.OutdatePeerRequest) error {
	a := arbiter.New(q.Node, w.client, func(*v1alpha1.CacheVolume) {}, func() {}, slog.New(slog.DiscardHandler))
	a.Compared(q.VolumeRef, q.Epoch)
	return a.Decide(ctx, q)
}

func question(image, node, peer string) escache.OutdatePeerRequest {
	return escache.OutdatePeerRequest{VolumeRef: escache.VolumeRef{Pool: "rbd", Image: "escache-" + image}, Node: node, Peer: peer, Epoch: 3}
}

func repeatedGrant(t *testing.T, w *world) {
	w.volume(t, "repeated")
	for range 3 {
		before, err := w.client.Volume(t.Context(), "repeated")
		check(t, err)
		check(t, judge(t.Context(), w, question("repeated", "n1", "n2")))
		// What the cache watch had decided before the grant must not go through after it.
		if _, err := w.client.PatchStatus(t.Context(), before, map[string]any{"outdated": []string{}}); !errors.Is(err, kube.ErrConflict) {
			t.Fatalf("the removal went through: %v", err)
		}
	}
	if v, err := w.client.Volume(t.Context(), "repeated"); err != nil || !slices.Equal(v.Status.Outdated, []string{"n2"}) {
		t.Errorf("%v %v", v, err)
	}
}

// rivals: the attached node asks to go on alone while a take-over by the other node is being
// written.
func rivals(t *testing.T, w *world) {
	both := 0
	for i := range 20 {
		name := fmt.Sprintf("rival-%d", i)
		v := w.volume(t, name)
		granted := make(chan bool, 1)
		go func() { granted <- judge(context.Background(), w, question(name, "n1", "n2")) == nil }()
		_, err := w.client.PatchStatus(t.Context(), v, map[string]any{"attachedNode": "n2", "epoch": 4, "outdated": []string{"n1"}})
		taken := err == nil
		if <-granted && taken {
			both++
		}
	}
	if both > 0 {
		t.Errorf("%d of 20 times both went on", both)
	}
}

func event(t *testing.T, w *world) {
	w.kubectl(t, `{"apiVersion":"v1","kind":"PersistentVolumeClaim","metadata":{"name":"data","namespace":"default"},"spec":{"accessModes":["ReadWriteOnce"],`+
		`"storageClassName":"none","resources":{"requests":{"storage":"1Gi"}}}}`, "apply", "-f", "-")
	v := w.volume(t, "event")
	check(t, w.client.Emit(t.Context(), "n1", v, kube.Event{Warning: true, Reason: "PeerLost", Message: "the replica on n2 does not answer", Time: time.Now()}))
	out := w.kubectl(t, "", "describe", "pvc", "data")
	if !strings.Contains(out, "PeerLost") || !strings.Contains(out, "the replica on n2 does not answer") || !strings.Contains(out, "csi-node") {
		t.Errorf("kubectl describe shows:\n%s", out)
	}
	delete(v.Annotations, v1alpha1.AnnotationClaim)
	check(t, w.client.Emit(t.Context(), "n1", v, kube.Event{Reason: "Recovered", Message: "over", Time: time.Now()}))
	if out := w.kubectl(t, "", "describe", "cachevolume", "event"); !strings.Contains(out, "Recovered") {
		t.Errorf("kubectl describe shows:\n%s", out)
	}
}

func label(t *testing.T, w *world) {
	w.kubectl(t, `{"apiVersion":"v1","kind":"Node","metadata":{"name":"n9","labels":{"`+v1alpha1.TopologyKey+`":"old","keep":"me"}}}`, "apply", "-f", "-")
	got, err := w.client.NodeLabel(t.Context(), "n9", v1alpha1.TopologyKey)
	if err != nil || got != "old" {
		t.Errorf("%q %v", got, err)
	}
	check(t, w.client.RemoveNodeLabel(t.Context(), "n9", v1alpha1.TopologyKey))
	if got, err = w.client.NodeLabel(t.Context(), "n9", v1alpha1.TopologyKey); err != nil || got != "" {
		t.Errorf("%q %v", got, err)
	}
	if got, err = w.client.NodeLabel(t.Context(), "n9", "keep"); err != nil || got != "me" {
		t.Errorf("%q %v", got, err)
	}
}

// idle runs the binary beside the API server and a played escached without volumes, and reads what
// it takes.
func idle(t *testing.T, w *world) {
	dir, err := os.MkdirTemp("", "idle") //nolint:usetesting // short: a socket's path is bounded
	check(t, err)
	defer os.RemoveAll(dir)
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "csi-node"), "./cmd/csi-node")
	build.Dir, build.Env = checkout, append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	listener, err := net.Listen("unix", filepath.Join(dir, "escached.sock"))
	check(t, err)
	mux := http.NewServeMux()
	for path, body := range map[string]string{
		escache.PathNode: `{"name":"n9","healthy":true,"maxVolumes":64}`, escache.PathStatus: `{"volumes":[]}`,
	} {
		mux.HandleFunc(path, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			_, _ = w.Write([]byte(body))
		})
	}
	server := &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	go func() { _ = server.Serve(listener) }()
	defer server.Close()
	log, err := os.Create(filepath.Join(dir, "log"))
	check(t, err)
	cmd := exec.Command(filepath.Join(dir, "csi-node"), "--node-name=n9", "--kubelet-dir="+dir, "--escached-socket="+filepath.Join(dir, "escached.sock"),
		"--arbiter-socket="+filepath.Join(dir, "arbiter.sock"), "--metrics-address=127.0.0.1:0", "--kubeconfig="+w.account.Kubeconfig)
	cmd.Stderr = log
	check(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()

	time.Sleep(15 * time.Second)
	before, _ := use(t, cmd.Process.Pid)
	const rest = 60 * time.Second
	time.Sleep(rest)
	after, kib := use(t, cmd.Process.Pid)
	t.Logf("%.1f MiB resident, %d ms CPU in %s", float64(kib)/1024, (after-before)*10, rest)
	if kib > 30<<10 {
		t.Errorf("%d KiB resident, more than 30 MiB", kib)
	}
	if after-before > 60 {
		t.Errorf("%d ms CPU in %s: more than 1 %%", (after-before)*10, rest)
	}
}

// use returns a process's CPU time in hundredths of a second, and its resident memory.
func use(t *testing.T, pid int) (ticks, kib int64) {
	t.Helper()
	out, err := exec.Command("sh", "-c", fmt.Sprintf(`set -- $(sed 's/.*) //' /proc/%d/stat); echo $((${12} + ${13})) `+
		`$(sed -n 's/^VmRSS:[^0-9]*\([0-9]*\).*/\1/p' /proc/%d/status)`, pid, pid)).Output()
	check(t, err)
	_, err = fmt.Sscan(string(out), &ticks, &kib)
	check(t, err)
	return ticks, kib
}

func otherName(t *testing.T, w *world) {
	if v, err := w.client.VolumeOf(t.Context(), escache.VolumeRef{Pool: "nowhere", Image: "escache-nobody"}); !errors.Is(err, kube.ErrNotFound) {
		t.Errorf("an image without a record: %v %v", v, err)
	}
}
