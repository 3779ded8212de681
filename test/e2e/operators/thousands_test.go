//go:build e2e

package operators

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/kubetest"
)

// What `status` may need for 10,000 volumes in 100 groups.
const (
	statusTime   = 15 * time.Second // of a processor: this does not depend on what else the machine does
	statusMemory = 160              // MiB, all that the process has: the program itself, too
	statusLimit  = 5 * time.Minute
	fillTime     = 30 * time.Minute
)

// TestStatusOfThousands fills a real API server, and measures kubectl-escache as the process that an operator starts.
func TestStatusOfThousands(t *testing.T) {
	if os.Getenv("ESCACHE_E2E_THOUSANDS") == "" {
		t.Skip("it takes minutes to fill the API server: `make e2e-thousands` runs it")
	}
	w := &world{kube: kubetest.Start(t)}
	w.kubectl(t, "apply", "-f", filepath.Join(checkout, "charts/escache-csi/crds"))
	w.kubectl(t, "wait", "--for=condition=Established", "--timeout=60s", "crd/cachevolumes.escache.io", "crd/nodegroups.escache.io")
	begin := time.Now()
	w.fillWith(t, newManyRecords(10_000))
	t.Logf("100 groups, 10,000 volumes and their PersistentVolumes were created in %s", time.Since(begin).Round(time.Second))
	program := w.plugin(t)
	for name, c := range map[string]struct {
		args []string
		says string
	}{
		"all":      {[]string{"status"}, "Volumes:  10000, 10000 attached"},
		"problems": {[]string{"status", "--problems"}, "50 volumes"},
		"a group":  {[]string{"status", "--group=rack-007", "-o", "name"}, "cachevolume.escache.io/pvc-00007"},
		"one":      {[]string{"explain", "--volume", "pvc-04711"}, "rack-011"},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), statusLimit)
			defer cancel()
			cmd := exec.CommandContext(ctx, program, append(c.args, "--kubeconfig", w.kube.Kubeconfig())...)
			cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			begin := time.Now()
			must(t, cmd.Start())
			most := mostMemory(cmd.Process.Pid)
			err := cmd.Wait()
			took, mostMiB := time.Since(begin), <-most
			if err != nil || !strings.Contains(out.String(), c.says) {
				t.Fatalf("after %s: %v, and it does not say %q:\n%.4000s", took, err, c.says, out.String())
			}
			busy := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
			t.Logf("%s: %.1f s, of which a processor was busy %.1f s, %d MiB, %d bytes of text",
				strings.Join(c.args, " "), took.Seconds(), busy.Seconds(), mostMiB, out.Len())
			if busy > statusTime {
				t.Errorf("it keeps a processor busy for %s; %s should do", busy, statusTime)
			}
			if mostMiB == 0 {
				t.Error("nobody has seen how much memory it needs")
			}
			if mostMiB > statusMemory {
				t.Errorf("it needs %d MiB of memory; %d MiB should do", mostMiB, statusMemory)
			}
		})
	}
}

// mostMemory tells, when a process has ended, how many MiB of memory it had at most. What wait(2) says of
// that is of no use: it begins with the memory of this process, of which the other one was a copy.
func mostMemory(pid int) <-chan int {
	most := make(chan int, 1)
	go func() {
		highest := 0
		for {
			text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
			found := memoryLine.FindSubmatch(text)
			if err != nil || found == nil { // it has ended
				most <- highest
				return
			}
			if kib, err := strconv.Atoi(string(found[1])); err == nil {
				highest = max(highest, kib>>10)
			}
			time.Sleep(10 * time.Millisecond)
		}
	}()
	return most
}

var memoryLine = regexp.MustCompile(`(?m)^VmHWM:\s+(\d+) kB$`)

// fillWith creates records, each volume with its PersistentVolume.
func (w *world) fillWith(t *testing.T, records *manyRecords) {
	t.Helper()
	scheme := runtime.NewScheme()
	must(t, clientgoscheme.AddToScheme(scheme))
	must(t, v1alpha1.AddToScheme(scheme))
	config, err := clientcmd.BuildConfigFromFlags("", w.kube.Kubeconfig())
	must(t, err)
	config.QPS = -1 // nobody else asks
	api, err := client.New(config, client.Options{Scheme: scheme})
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), fillTime)
	defer cancel()
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(16)
	for i := range records.groups {
		group.Go(func() error { return createWhole(ctx, api, &records.groups[i]) })
	}
	for i := range records.volumes {
		group.Go(func() error {
			v := &records.volumes[i]
			if err := createWhole(ctx, api, v); err != nil {
				return err
			}
			namespace, claim, _ := strings.Cut(v.Annotations[v1alpha1.AnnotationClaim], "/")
			return api.Create(ctx, &corev1.PersistentVolume{
				ObjectMeta: metav1.ObjectMeta{Name: v.Name},
				Spec: corev1.PersistentVolumeSpec{
					Capacity:    corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(v.Spec.SizeBytes, resource.BinarySI)},
					AccessModes: []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
					ClaimRef:    &corev1.ObjectReference{Kind: "PersistentVolumeClaim", Namespace: namespace, Name: claim},
					PersistentVolumeSource: corev1.PersistentVolumeSource{
						CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: v.Name},
					},
				},
			})
		})
	}
	must(t, group.Wait())
}

// createWhole creates an object with its status.
func createWhole(ctx context.Context, api client.Client, o client.Object) error {
	whole, ok := o.DeepCopyObject().(client.Object)
	if !ok {
		return nil
	}
	o.SetResourceVersion("")
	if err := api.Create(ctx, o); err != nil {
		return err
	}
	whole.SetResourceVersion(o.GetResourceVersion())
	whole.SetUID(o.GetUID())
	return api.Status().Update(ctx, whole)
}
