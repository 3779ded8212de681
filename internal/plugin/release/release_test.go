package release

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// decide plays csi-controller: it answers a request for a release.
func decide(t *testing.T, api client.Client, answer func(v *v1alpha1.CacheVolume)) {
	t.Helper()
	go func() {
		for t.Context().Err() == nil {
			v := &v1alpha1.CacheVolume{}
			if err := api.Get(t.Context(), client.ObjectKey{Name: "pvc-1"}, v); err == nil && v.Spec.Release {
				answer(v)
				return
			}
			time.Sleep(time.Millisecond)
		}
	}()
}

func TestReleasePrintsHowToGoOn(t *testing.T) {
	api := plugintest.Cluster(t, plugintest.User("done", corev1.PodSucceeded))
	v := &v1alpha1.CacheVolume{}
	if err := api.Get(t.Context(), client.ObjectKey{Name: "pvc-1"}, v); err != nil {
		t.Fatal(err)
	}
	v.Spec.ClusterID, v.Spec.Pool, v.Spec.Image, v.Spec.SizeBytes = "fsid", "fast", "escache-PVC_1", 1<<30
	if err := api.Update(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	decide(t, api, func(v *v1alpha1.CacheVolume) { _ = api.Delete(t.Context(), v) })
	c, out := plugintest.Output()
	if err := runRelease(t.Context(), c, api, options{claim: "user/static", timeout: time.Minute, cephCSI: cephCSI{driver: "rbd.csi.ceph.com"}}); err == nil ||
		!strings.Contains(err.Error(), "no PersistentVolumeClaim") {
		t.Fatalf("a claim that is not there: %v", err)
	}
	f := options{volume: "pvc-1", timeout: time.Minute, cephCSI: cephCSI{driver: "rbd.csi.ceph.com", secret: "s", secretNamespace: "n"}}
	if err := runRelease(t.Context(), c, api, f); err != nil {
		t.Fatal(err)
	}
	onlyAfterRelease(t, "# after the release\n"+out.String())
	for _, want := range []string{
		"kubectl delete pvc -n user static", "kubectl delete pv again", "rbd map fast/escache-PVC_1", "name: escache-pvc-1\n",
		"volumeHandle: escache-PVC_1", `staticVolume: "true"`, "imageFeatures: layering,exclusive-lock,deep-flatten", "storage: 1Gi", "pool: fast",
		"clusterID: fsid", "persistentVolumeReclaimPolicy: Retain",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	pv := &corev1.PersistentVolume{}
	if err := api.Get(t.Context(), client.ObjectKey{Name: "again"}, pv); err != nil ||
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("the reclaim policy is %s, %v", pv.Spec.PersistentVolumeReclaimPolicy, err)
	}
}

func TestReleaseChangesNothingWhereItIsRefused(t *testing.T) {
	foreign := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "lab", Name: "b"}}
	foreign.Spec.VolumeName = "again" // which user/static has
	for name, tc := range map[string]struct {
		more   []client.Object
		status func(*v1alpha1.CacheVolumeStatus)
		flags  options
		says   string
	}{
		"a pod uses it":  {more: []client.Object{plugintest.User("app", corev1.PodRunning)}, says: "user/app"},
		"attached":       {status: func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode, s.Epoch = "n1", 1 }, says: "attached to node n1"},
		"a dry run":      {flags: options{dryRun: true}},
		"nothing to end": {flags: options{cancel: true}, says: "nobody has asked"},
		"of another claim": {more: []client.Object{foreign}, flags: options{claim: "lab/b"},
			says: "belongs to claim user/static"},
	} {
		t.Run(name, func(t *testing.T) {
			api := plugintest.Cluster(t, tc.more...)
			c, _ := plugintest.Output()
			v := &v1alpha1.CacheVolume{}
			key := client.ObjectKey{Name: "pvc-1"}
			if err := api.Get(t.Context(), key, v); err != nil {
				t.Fatal(err)
			}
			if tc.status != nil {
				tc.status(&v.Status)
				if err := api.Update(t.Context(), v); err != nil {
					t.Fatal(err)
				}
			}
			tc.flags.timeout = time.Minute
			if tc.flags.claim == "" {
				tc.flags.volume = "pvc-1"
			}
			decide(t, api, func(v *v1alpha1.CacheVolume) { _ = api.Delete(t.Context(), v) })
			err := runRelease(t.Context(), c, api, tc.flags)
			if (err == nil) != (tc.says == "") || err != nil && !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v", err)
			}
			now, pv := &v1alpha1.CacheVolume{}, &corev1.PersistentVolume{}
			if err := errors.Join(api.Get(t.Context(), key, now), api.Get(t.Context(), client.ObjectKey{Name: "again"}, pv)); err != nil {
				t.Fatal(err)
			}
			if now.ResourceVersion != v.ResourceVersion || pv.Spec.PersistentVolumeReclaimPolicy != "" {
				t.Errorf("changed: %+v, policy %q", now.Spec, pv.Spec.PersistentVolumeReclaimPolicy)
			}
		})
	}
}

// onlyAfterRelease fails the test for each step that a user could take before the release: the claim's deletion can
// delete the image, and the image can lack what the cache has. What is printed has to be YAML that kubectl apply takes.
func onlyAfterRelease(t *testing.T, printed string) {
	t.Helper()
	said := false
	for line := range strings.Lines(printed) {
		said = said || strings.Contains(line, "after the release")
		if !said && (strings.Contains(line, "kubectl delete") || strings.Contains(line, "rbd map")) {
			t.Errorf("nothing says that this comes only after the release: %s", line)
		}
	}
	plugintest.Says(t, printed, "kubectl delete pvc -n user static", "kubectl delete pv again", "rbd map ")
	fields := map[string]any{} // apiVersion, kind, metadata, spec
	if err := yaml.Unmarshal([]byte(printed), &fields); err != nil || fields["kind"] != "PersistentVolume" || len(fields) != 4 {
		t.Errorf("it is no PersistentVolume: %v\n%s", err, printed)
	}
}

func TestADryRunSaysThatNothingWasReleased(t *testing.T) {
	c, out := plugintest.Output()
	plugintest.Must(t, runRelease(t.Context(), c, plugintest.Cluster(t), options{volume: "pvc-1", dryRun: true}))
	onlyAfterRelease(t, out.String())
	if !strings.HasPrefix(out.String(), "# Dry run: nothing was released") {
		t.Errorf("it begins with something else:\n%s", out)
	}
}

// TestARefusedReleaseIsCalledOff: what csi-controller refuses, it would do as soon as the reason is
// gone.
func TestARefusedReleaseIsCalledOff(t *testing.T) {
	api := plugintest.Cluster(t)
	c, out := plugintest.Output()
	decide(t, api, func(v *v1alpha1.CacheVolume) {
		refuse(v, "it has snapshots")
		_ = api.Update(t.Context(), v)
	})
	err := runRelease(t.Context(), c, api, options{volume: "pvc-1", timeout: time.Minute})
	if err == nil || !strings.Contains(err.Error(), "refused, nothing was changed") || !strings.Contains(err.Error(), "it has snapshots") ||
		out.Len() > 0 {
		t.Errorf("got %v, and it prints:\n%s", err, out)
	}
	v := &v1alpha1.CacheVolume{}
	if err := api.Get(t.Context(), client.ObjectKey{Name: "pvc-1"}, v); err != nil || v.Spec.Release {
		t.Errorf("it is still asked for: %v", err)
	}
}

func TestAReleaseThatWaitsCanBeCalledOff(t *testing.T) {
	api := plugintest.Cluster(t)
	c, _ := plugintest.Output()
	err := runRelease(t.Context(), c, api, options{volume: "pvc-1", timeout: 50 * time.Millisecond})
	if !errors.Is(err, failure.ErrTimeUp) || !strings.Contains(err.Error(), "--cancel --volume pvc-1") {
		t.Errorf("got %v", err)
	}
	if err := runRelease(t.Context(), c, api, options{volume: "pvc-1", cancel: true}); err != nil {
		t.Error(err)
	}
	v := &v1alpha1.CacheVolume{}
	if err := api.Get(t.Context(), client.ObjectKey{Name: "pvc-1"}, v); err != nil || v.Spec.Release {
		t.Errorf("it is still asked for: %v", err)
	}
	v.Spec.Release, v.Status.Phase = true, v1alpha1.VolumeReleasing
	if err := api.Update(t.Context(), v); err != nil {
		t.Fatal(err)
	}
	if err := runRelease(t.Context(), c, api, options{volume: "pvc-1", cancel: true}); !errors.Is(err, errReleasing) {
		t.Errorf("it is being released already: %v", err)
	}
}

// refuse puts on record that csi-controller refuses the release.
func refuse(v *v1alpha1.CacheVolume, why string) {
	meta.SetStatusCondition(&v.Status.Conditions, metav1.Condition{
		Type: v1alpha1.ConditionReleased, Status: metav1.ConditionFalse, Reason: v1alpha1.ReasonReleaseRefused, Message: why,
	})
}

// TestARefusalThatHasPassedIsNoRelease: csi-controller has looked again and begun, after the command has read that it refuses.
func TestARefusalThatHasPassedIsNoRelease(t *testing.T) {
	api := interceptor.NewClient(plugintest.Cluster(t), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, o, opts...)
			if v, ok := o.(*v1alpha1.CacheVolume); ok && err == nil && v.Spec.Release && v.Status.Phase == v1alpha1.VolumeReady {
				begun := v.DeepCopy()
				begun.Status.Phase = v1alpha1.VolumeReleasing
				plugintest.Must(t, c.Update(ctx, begun))
				refuse(v, "it had snapshots")
			}
			return err
		},
	})
	c, out := plugintest.Output()
	err := runRelease(t.Context(), c, api, options{volume: "pvc-1", timeout: 100 * time.Millisecond})
	if !errors.Is(err, failure.ErrTimeUp) || strings.Contains(out.String(), "released:") {
		t.Errorf("got %v, and the volume is still there:\n%s", err, out)
	}
}

// TestTheRefusalOfAnEarlierReleaseDoesNotCount: it is from before what it speaks of was done. It counts when
// csi-controller had the time to look again.
func TestTheRefusalOfAnEarlierReleaseDoesNotCount(t *testing.T) {
	api := plugintest.Cluster(t)
	v := &v1alpha1.CacheVolume{}
	key := client.ObjectKey{Name: "pvc-1"}
	plugintest.Must(t, api.Get(t.Context(), key, v))
	v.Spec.Release = true
	refuse(v, "it had snapshots")
	plugintest.Must(t, api.Update(t.Context(), v))
	c, _ := plugintest.Output()
	err := runRelease(t.Context(), c, api, options{volume: "pvc-1", timeout: 100 * time.Millisecond})
	plugintest.Must(t, api.Get(t.Context(), key, v))
	if !errors.Is(err, failure.ErrTimeUp) || !v.Spec.Release {
		t.Errorf("got %v, asked for: %t", err, v.Spec.Release)
	}
	now := plugintest.Noon
	c.Now = func() time.Time { now = now.Add(time.Minute); return now }
	err = runRelease(t.Context(), c, api, options{volume: "pvc-1", timeout: time.Minute})
	plugintest.Must(t, api.Get(t.Context(), key, v))
	if err == nil || !strings.Contains(err.Error(), "refused, nothing was changed") || v.Spec.Release {
		t.Errorf("got %v, asked for: %t", err, v.Spec.Release)
	}
}

// TestAReleaseThatEndsAfterItsCommand leaves the user everything that the command would have printed at its end.
func TestAReleaseThatEndsAfterItsCommand(t *testing.T) {
	api := interceptor.NewClient(plugintest.Cluster(t), interceptor.Funcs{
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			err := c.Patch(ctx, o, p, opts...)
			if v, ok := o.DeepCopyObject().(*v1alpha1.CacheVolume); ok && err == nil { // csi-controller fences a client
				v.Status.Fenced = []v1alpha1.FencedClient{{Node: "n1", Address: "10.0.0.1:0/7"}}
				plugintest.Must(t, c.Update(ctx, v))
			}
			return err
		},
	})
	v := &v1alpha1.CacheVolume{}
	plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: "pvc-1"}, v))
	v.Spec.Pool, v.Spec.Image, v.Spec.SizeBytes = "fast", "escache-pvc-1", 1<<30
	plugintest.Must(t, api.Update(t.Context(), v))
	c, out := plugintest.Output()
	f := options{volume: "pvc-1", timeout: 100 * time.Millisecond, cephCSI: cephCSI{driver: "rbd.csi.ceph.com"}}
	if err := runRelease(t.Context(), c, api, f); !errors.Is(err, failure.ErrTimeUp) {
		t.Fatalf("got %v", err)
	}
	onlyAfterRelease(t, out.String())
	plugintest.Says(t, out.String(), "rbd map fast/escache-pvc-1", "volumeHandle: escache-pvc-1", "ceph osd blocklist rm 10.0.0.1:0/7")

	plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Name: "pvc-1"}, v))
	plugintest.Must(t, api.Delete(t.Context(), v))
	c, out = plugintest.Output()
	err := runRelease(t.Context(), c, api, f)
	if err == nil || out.Len() > 0 {
		t.Errorf("got %v; nothing on record proves that it was released:\n%s", err, out)
	}
	plugintest.Says(t, plugintest.ErrorText(err), "no CacheVolume pvc-1", "escache.io/released", "kubectl delete pvc -n user static",
		"kubectl delete pv again", "involvedObject.name=pvc-1", "status.leftFences")
}

// TestAReleaseWhoseCommandLosesTheServer goes on, too.
func TestAReleaseWhoseCommandLosesTheServer(t *testing.T) {
	lost := errors.New("connection reset")
	api := interceptor.NewClient(plugintest.Cluster(t), interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, o, opts...)
			if v, ok := o.(*v1alpha1.CacheVolume); ok && v.Spec.Release {
				return lost
			}
			return err
		},
	})
	c, out := plugintest.Output()
	if err := runRelease(t.Context(), c, api, options{volume: "pvc-1", timeout: time.Minute}); !errors.Is(err, lost) {
		t.Errorf("got %v", err)
	}
	onlyAfterRelease(t, out.String())
}

// TestAVolumeThatNobodyHasReleasedIsOnlyNotThere: its record is lost, or its name is misspelt.
func TestAVolumeThatNobodyHasReleasedIsOnlyNotThere(t *testing.T) {
	api := plugintest.Cluster(t)
	plugintest.Must(t, api.Delete(t.Context(), &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-1"}}))
	for _, name := range []string{"pvc-1", "pvc-2"} { // the reclaim policy of the first is not Retain
		c, _ := plugintest.Output()
		err := runRelease(t.Context(), c, api, options{volume: name, timeout: time.Minute})
		if !errors.Is(err, claims.ErrNoVolume) || strings.Contains(err.Error(), "kubectl delete") {
			t.Errorf("got %v", err)
		}
	}
}
