//go:build e2e

package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

// goneCluster marks an image of a Kubernetes cluster that is gone.
const goneCluster = "11111111-2222-3333-4444-555555555555"

// rebuildLife loses all records, PersistentVolumes and claims while a volume is clean, one is dirty, the copies of one
// differ, and a host of one does not answer; and makes them again with kubectl escache.
func rebuildLife(t *testing.T, w *world) {
	plugin := filepath.Join(t.TempDir(), "kubectl-escache")
	build := exec.Command("go", "build", "-o", plugin, "./cmd/kubectl-escache")
	build.Dir = checkout
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build kubectl-escache: %v\n%s", err, out)
	}
	d := leader(t, time.Minute, w.launch(t, "before", soon...))
	before := map[string]*v1alpha1.CacheVolume{}
	for name, dirty := range map[string]int64{"rb-clean": 0, "rb-dirty": 4 << 20, "rb-differ": 4 << 20, "rb-silent": 0} {
		before[name] = w.usedBy(t, d, name, dirty)
	}
	until(t, func() error { return d.create(t.Context(), "rb-new") })
	for n, node := range before["rb-differ"].Spec.Replicas {
		w.fleet.Hosts[node].See(refTo("rb-differ"), before["rb-differ"].Spec.Replicas[1-n], escache.LinkStandAlone, escache.DiskUnknown)
	}
	d.bury()
	w.wipe(t)
	w.rbd(t, "image-meta", "set", "rbd/escache-rb-dirty", "escache.io/kubernetes-cluster", goneCluster)
	d = leader(t, time.Minute, w.launch(t, "after", soon...))

	silent := before["rb-silent"].Spec.Replicas[1]
	w.fleet.Hosts[silent].Stop()
	for volume, line := range w.adoptAll(t, plugin, 1, "--apply") {
		want := v1alpha1.RebuildDone
		switch has := before[volume]; {
		case volume == "rb-dirty":
			want = v1alpha1.RebuildRefused
		case has != nil && has.Spec.HasReplica(silent):
			want = v1alpha1.RebuildWaits
		case volume == "rb-differ":
			want = v1alpha1.RebuildConflict
		}
		if line.Outcome != want {
			t.Errorf("while %s is silent, volume %s: %s, not %s: %s", silent, volume, line.Outcome, want, line.Message)
		}
	}
	w.fleet.Hosts[silent].Restart(t)
	asked := w.adoptAll(t, plugin, 1, "--dry-run", "--from-kubernetes-cluster", goneCluster)
	if found := asked["rb-dirty"]; found.Outcome != v1alpha1.RebuildProposed || found.Authority != v1alpha1.AuthorityCache || *found.DirtyBytes != 4<<20 {
		t.Errorf("before it is made: %+v", found)
	}
	for range 2 {
		lines := w.adoptAll(t, plugin, 1, "--apply", "--from-kubernetes-cluster", goneCluster)
		if found := lines["rb-differ"]; found.Outcome != v1alpha1.RebuildConflict || !strings.Contains(found.Message, "StandAlone") || len(lines) != 5 {
			t.Errorf("%d volumes; the one whose copies differ: %+v", len(lines), found)
		}
	}
	w.rebuiltRight(t, before)
	stopped := before["rb-differ"]
	wants(t, d.publish(t.Context(), "rb-differ", stopped.Spec.Replicas[0]), []codes.Code{codes.FailedPrecondition}, "nothing proves which copy")
	w.adoptAll(t, plugin, 0, "--apply", "--image", stopped.Spec.Image, "--use-copy", stopped.Spec.Replicas[0])
	for _, name := range []string{"rb-clean", "rb-dirty", "rb-differ", "rb-silent", "rb-new"} {
		v := w.recordOf(t, name)
		until(t, func() error { return d.publish(t.Context(), name, v.Spec.Replicas[0]) })
		if s := w.fleet.Hosts[v.Spec.Replicas[0]].Status(refTo(name)); name == "rb-dirty" && (s.DirtyBytes == nil || *s.DirtyBytes != 4<<20) {
			t.Errorf("what was dirty is not there any more: %+v", s)
		}
	}
	w.endRebuilt(t, d)
}

func refTo(volume string) escache.VolumeRef {
	return escache.VolumeRef{Pool: "rbd", Image: "escache-" + volume}
}

func (w *world) recordOf(t *testing.T, name string) *v1alpha1.CacheVolume {
	t.Helper()
	v := &v1alpha1.CacheVolume{}
	must(t, w.api.Get(context.Background(), client.ObjectKey{Name: name}, v))
	return v
}

// usedBy makes a volume with PersistentVolume and claim, has it attached once, and leaves so many dirty bytes in equal
// copies.
func (w *world) usedBy(t *testing.T, d *driver, name string, dirty int64) *v1alpha1.CacheVolume {
	t.Helper()
	until(t, func() error { return d.create(t.Context(), name) })
	v := w.recordOf(t, name)
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	pv.Spec.Capacity = corev1.ResourceList{corev1.ResourceStorage: *resource.NewQuantity(v.Spec.SizeBytes, resource.BinarySI)}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOncePod}
	pv.Spec.StorageClassName, pv.Spec.PersistentVolumeReclaimPolicy = "of-then", corev1.PersistentVolumeReclaimRetain
	pv.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: "default", Name: "claim-of-" + name}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: name, FSType: "xfs"}
	must(t, w.api.Create(t.Context(), pv))
	// The controller sees the PersistentVolume a little later; each repeated call notes what it knows.
	eventually(t, time.Minute, func() bool {
		until(t, func() error { return d.publish(t.Context(), name, v.Spec.Replicas[0]) })
		return strings.Contains(w.rbd(t, "image-meta", "get", "rbd/"+v.Spec.Image, "escache.io/record"), "claim-of-"+name)
	}, func() string { return "the image does not know its PersistentVolume" })
	for n, node := range v.Spec.Replicas {
		w.fleet.Hosts[node].See(refTo(name), v.Spec.Replicas[1-n], escache.LinkConnected, escache.DiskUpToDate)
		w.fleet.Hosts[node].Write(refTo(name), dirty)
	}
	return w.recordOf(t, name)
}

// wipe removes every object of every volume, as a new etcd does.
func (w *world) wipe(t *testing.T) {
	t.Helper()
	claims, pvs, records := &corev1.PersistentVolumeClaimList{}, &corev1.PersistentVolumeList{}, &v1alpha1.CacheVolumeList{}
	for _, list := range []client.ObjectList{claims, pvs, records} {
		must(t, w.api.List(t.Context(), list))
	}
	var all []client.Object
	for i := range claims.Items {
		all = append(all, &claims.Items[i])
	}
	for i := range pvs.Items {
		all = append(all, &pvs.Items[i])
	}
	for i := range records.Items {
		all = append(all, &records.Items[i])
	}
	for _, o := range all {
		must(t, client.IgnoreNotFound(w.api.Delete(t.Context(), o)))
		err := w.api.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`)))
		must(t, client.IgnoreNotFound(err))
	}
}

// adoptAll runs kubectl escache adopt --all, and returns its results by volume.
func (w *world) adoptAll(t *testing.T, plugin string, exit int, args ...string) map[string]v1alpha1.RebuiltVolume {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	command := exec.CommandContext(ctx, plugin, append([]string{
		"--kubeconfig", w.kube.Kubeconfig(), "adopt", "--all", "--pool", "rbd", "--cluster-id", clusterID, "-o", "json",
	}, args...)...)
	var out, complaints bytes.Buffer
	command.Stdout, command.Stderr = &out, &complaints
	err := command.Run()
	var ended *exec.ExitError
	if code := command.ProcessState.ExitCode(); code != exit || err != nil && !errors.As(err, &ended) {
		t.Errorf("adopt --all %v: exit code %d, not %d: %v\n%s%s", args, code, exit, err, out.String(), complaints.String())
	}
	var found struct {
		Volumes []v1alpha1.RebuiltVolume `json:"volumes"`
	}
	must(t, json.Unmarshal(out.Bytes(), &found))
	lines := map[string]v1alpha1.RebuiltVolume{}
	for _, line := range found.Volumes {
		lines[line.Volume] = line
	}
	return lines
}

// rebuiltRight compares the records with those that were lost, and waits until the claims are bound again.
func (w *world) rebuiltRight(t *testing.T, before map[string]*v1alpha1.CacheVolume) {
	t.Helper()
	uid := strings.TrimSpace(w.kubectl(t, "", "get", "namespace", "kube-system", "-o", "jsonpath={.metadata.uid}"))
	for name, was := range before {
		v := w.recordOf(t, name)
		slices.Sort(v.Spec.Replicas)
		if want := slices.Sorted(slices.Values(was.Spec.Replicas)); !slices.Equal(v.Spec.Replicas, want) || v.Spec.Group != was.Spec.Group ||
			v.Spec.Port != was.Spec.Port || v.Spec.Minor != was.Spec.Minor || v.Spec.CacheBytes != was.Spec.CacheBytes || v.Status.ImageID != was.Status.ImageID {
			t.Errorf("volume %s was %+v and is %+v", name, was.Spec, v.Spec)
		}
		if v.Status.Epoch <= was.Status.Epoch || v.Status.AttachedNode != "" || len(v.Status.Outdated) > 0 {
			t.Errorf("volume %s was %+v and is %+v", name, was.Status, v.Status)
		}
		if name == "rb-differ" {
			if v.Status.Phase != v1alpha1.VolumeConflict {
				t.Errorf("its copies differ, and its phase is %s", v.Status.Phase)
			}
			continue
		}
		want := v1alpha1.AuthorityCeph
		if name == "rb-dirty" {
			want = v1alpha1.AuthorityCache
		}
		if mark := w.rbd(t, "image-meta", "get", "rbd/"+v.Spec.Image, "escache.io/kubernetes-cluster"); v.Status.Phase != v1alpha1.VolumeReady ||
			v.Status.Authority != want || strings.TrimSpace(mark) != uid {
			t.Errorf("volume %s: %+v; its image is of cluster %s", name, v.Status, mark)
		}
		pvc, pv := &corev1.PersistentVolumeClaim{}, &corev1.PersistentVolume{}
		eventually(t, time.Minute, func() bool {
			err := w.api.Get(t.Context(), client.ObjectKey{Namespace: "default", Name: "claim-of-" + name}, pvc)
			return err == nil && pvc.Status.Phase == corev1.ClaimBound && pvc.Spec.VolumeName == name
		}, func() string { return "the claim is not bound: " + pvc.String() })
		must(t, w.api.Get(t.Context(), client.ObjectKey{Name: name}, pv))
		if s := pv.Spec; s.CSI.VolumeHandle != name || s.CSI.FSType != "xfs" || s.AccessModes[0] != corev1.ReadWriteOncePod || s.StorageClassName != "of-then" ||
			s.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
			t.Errorf("PersistentVolume %+v", s)
		}
	}
	if v := w.recordOf(t, "rb-new"); v.Status.Authority != v1alpha1.AuthorityCeph || !v.Spec.Adoption.FormatIfBlank {
		t.Errorf("the volume that nobody had used: %+v %+v", v.Spec, v.Status)
	}
}

// endRebuilt deletes everything of the volumes.
func (w *world) endRebuilt(t *testing.T, d *driver) {
	t.Helper()
	for _, v := range w.volumes(t) {
		for _, node := range v.Spec.Replicas {
			w.fleet.Hosts[node].Write(escache.VolumeRef{Pool: v.Spec.Pool, Image: v.Spec.Image}, 0)
		}
		until(t, func() error { return d.unpublish(t.Context(), v.Name, "") })
		until(t, func() error { return d.delete(t.Context(), v.Name) })
	}
	w.wipe(t)
}

// rebuildScenes lose the record of a volume that was used once, or set it back to before that.
func rebuildScenes() []scene {
	of := func(name string, lose func(t *testing.T, w *world)) scene {
		return scene{
			name: name,
			prepare: func(t *testing.T, w *world, d *driver) {
				leaveDirty(t, w, d)
				v := w.one(t)
				for n, node := range v.Spec.Replicas {
					w.fleet.Hosts[node].See(imageRef(), v.Spec.Replicas[1-n], escache.LinkConnected, escache.DiskUpToDate)
				}
				lose(t, w)
			},
			call: func(t *testing.T, w *world, d *driver) error { return w.askRebuild(t.Context(), d) },
			check: func(t *testing.T, w *world) {
				if v := w.one(t); v.Status.Phase != v1alpha1.VolumeReady || v.Status.Authority != v1alpha1.AuthorityCache ||
					v.Status.Epoch < 2 || len(v.Status.Outdated) > 0 || v.Status.AttachedNode != "" {
					t.Errorf("status %+v", v.Status)
				}
			},
			clean: func(t *testing.T, w *world, d *driver) {
				w.withdraw(t, "crash-rebuild")
				until(t, func() error { return d.delete(t.Context(), crashed) })
			},
		}
	}
	fencing := of("rebuild of a lost record, while a dead client has the image's lock", func(t *testing.T, w *world) {
		t.Helper()
		w.deadClient(t, w.one(t).Spec.Image)
		w.wipe(t)
	})
	fencing.points = []string{"rebuild/fence_recorded", "rebuild/fenced"}
	return []scene{
		fencing,
		of("rebuild of a lost record", func(t *testing.T, w *world) { t.Helper(); w.wipe(t) }),
		of("rebuild of a record that was set back", func(t *testing.T, w *world) { t.Helper(); w.setBack(t, w.one(t)) }),
	}
}

// setBack has the record say what it said before the volume was attached for the first time, as a restored etcd does. It
// knows of a node that gets it, and of nothing dirty.
func (w *world) setBack(t *testing.T, v *v1alpha1.CacheVolume) {
	t.Helper()
	v.Status.Epoch, v.Status.Authority, v.Status.AttachedNode, v.Status.ImageID = 0, v1alpha1.AuthorityCeph, v.Spec.Replicas[1], ""
	v.Status.SetDirtyBytes(0)
	must(t, w.api.Status().Update(t.Context(), v))
}

// askRebuild asks for the lost records of the pool under a fixed name, and waits until that has ended or the leader is
// dead.
func (w *world) askRebuild(ctx context.Context, d *driver) error {
	a := &v1alpha1.CacheAdoption{ObjectMeta: metav1.ObjectMeta{Name: "crash-rebuild"}}
	a.Spec = v1alpha1.CacheAdoptionSpec{ClusterID: clusterID, Pool: "rbd", Rebuild: &v1alpha1.Rebuild{}}
	if err := w.api.Create(ctx, a); err != nil && !apierrors.IsAlreadyExists(err) {
		return err
	}
	return d.asked(ctx, func() (bool, error) {
		err := w.api.Get(ctx, client.ObjectKeyFromObject(a), a)
		if a.Status.Phase == v1alpha1.AdoptionRefused {
			return true, status.Error(codes.FailedPrecondition, a.Status.Message)
		}
		for _, line := range a.Status.Images {
			if line.Outcome == v1alpha1.RebuildWaits { // for another of the leader's tasks: the command is given again
				return true, errors.Join(w.api.Delete(ctx, a), status.Errorf(codes.Aborted, "%+v", line))
			}
			if line.Outcome != v1alpha1.RebuildDone && line.Outcome != v1alpha1.RebuildRecorded && a.Status.Phase == v1alpha1.AdoptionDone {
				return true, status.Errorf(codes.FailedPrecondition, "%+v", line)
			}
		}
		return a.Status.Phase == v1alpha1.AdoptionDone, err
	})
}
