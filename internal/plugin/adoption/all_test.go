package adoption

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// answerRebuilds plays csi-controller: it has these images, one on each page, and makes what can be made. It
// returns what it was asked for.
func answerRebuilds(t *testing.T, api client.Client, images ...v1alpha1.RebuiltVolume) *[]v1alpha1.CacheAdoptionSpec {
	t.Helper()
	asked := &[]v1alpha1.CacheAdoptionSpec{}
	go func() {
		for ; t.Context().Err() == nil; time.Sleep(time.Millisecond) {
			all := &v1alpha1.CacheAdoptionList{}
			if err := api.List(t.Context(), all); err != nil {
				return
			}
			for i := range all.Items {
				a := &all.Items[i]
				if a.Status.Phase != "" {
					continue
				}
				*asked = append(*asked, a.Spec)
				a.Status.Phase = v1alpha1.AdoptionDone
				a.Status.SilentNodes, a.Status.OtherPools = []string{"n9"}, []string{"fast"}
				at := 0
				for images[at].Image <= a.Spec.Rebuild.After {
					at++
				}
				line := images[at]
				if at+1 < len(images) {
					a.Status.Next = line.Image
				}
				if line.Outcome == v1alpha1.RebuildProposed && !a.Spec.DryRun {
					line.Outcome = v1alpha1.RebuildDone
				}
				a.Status.Images = []v1alpha1.RebuiltVolume{line}
				_ = api.Update(t.Context(), a)
			}
		}
	}()
	return asked
}

// remains are three volumes: one with a claim, one that waits, and one whose claim's namespace is gone.
func remains() []v1alpha1.RebuiltVolume {
	dirty := int64(5 << 20)
	return []v1alpha1.RebuiltVolume{
		{
			Image: "escache-pvc-a", Outcome: v1alpha1.RebuildProposed, Volume: "pvc-a", Group: "g", SizeBytes: 1 << 30, Authority: v1alpha1.AuthorityCache,
			Epoch: 5, Replicas: []string{"n1", "n2"}, Outdated: []string{"n2"}, DirtyBytes: &dirty, Claim: "shop/data", PersistentVolume: "named",
			StorageClass: "escache", FSType: "xfs", VolumeMode: "Filesystem", AccessMode: "ReadWriteOncePod", MountOptions: []string{"noatime"},
		},
		{Image: "escache-pvc-b", Outcome: v1alpha1.RebuildWaits, Volume: "pvc-b", Message: "node n9 does not answer", Claim: "shop/waits"},
		{
			Image: "escache-pvc-c", Outcome: v1alpha1.RebuildProposed, Volume: "pvc-c", Group: "g", SizeBytes: 1 << 30, Authority: v1alpha1.AuthorityCeph,
			Epoch: 2, Replicas: []string{"n1", "n2"}, Claim: "gone/data",
		},
	}
}

func shop() *corev1.Namespace { return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}} }

func allFlags(change func(*options)) options {
	f := options{all: true, fsType: "ext4", mode: "Filesystem", timeout: time.Minute}
	if change != nil {
		change(&f)
	}
	return f
}

func TestAdoptAllMakesWhatUsedTheVolumes(t *testing.T) {
	api := plugintest.Cluster(t, plugintest.Class(), shop())
	c, out := plugintest.Output()
	asked := answerRebuilds(t, api, remains()...)
	err := runAdoptAll(t.Context(), c, api, allFlags(nil))
	if err == nil || !strings.Contains(err.Error(), "2 of 3 volumes") {
		t.Errorf("a dry run: %v", err)
	}
	plugintest.Golden(t, "adopt.all.dryrun", out.String())
	pv, pvc := &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}
	name, claim := client.ObjectKey{Name: "named"}, client.ObjectKey{Namespace: "shop", Name: "data"}
	if api.Get(t.Context(), name, pv) == nil || api.Get(t.Context(), claim, pvc) == nil {
		t.Error("a dry run has made something")
	}
	for range 2 { // the first one may have been interrupted
		c, out = plugintest.Output()
		apply := allFlags(func(f *options) { f.apply, f.fromCluster = true, "uid-of-them" })
		if err := runAdoptAll(t.Context(), c, api, apply); err == nil || !strings.Contains(err.Error(), "2 of 3 volumes") {
			t.Errorf("%v", err)
		}
	}
	for _, want := range []string{"left to do: there is no namespace gone for claim data", "node n9 does not answer", "do not answer: n9"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
	if err := api.Get(t.Context(), name, pv); err != nil {
		t.Fatal(err)
	}
	if err := api.Get(t.Context(), claim, pvc); err != nil {
		t.Fatal(err)
	}
	if s := pv.Spec; s.CSI.VolumeHandle != "pvc-a" || s.CSI.FSType != "xfs" || s.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain ||
		s.ClaimRef.Name != "data" || s.AccessModes[0] != corev1.ReadWriteOncePod || s.MountOptions[0] != "noatime" || s.StorageClassName != "escache" ||
		s.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0].Values[0] != "g" || s.Capacity.Storage().Value() != 1<<30 {
		t.Errorf("PersistentVolume %+v", s)
	}
	if pvc.Spec.VolumeName != "named" {
		t.Errorf("claim %+v", pvc.Spec)
	}
	later := &corev1.PersistentVolume{}
	if err := api.Get(t.Context(), client.ObjectKey{Name: "pvc-c"}, later); err != nil || later.Spec.CSI.FSType != "ext4" {
		t.Errorf("what has no namespace yet: %+v, %v", later.Spec, err)
	}
	waiting := &corev1.PersistentVolume{}
	if api.Get(t.Context(), client.ObjectKey{Name: "pvc-b"}, waiting) == nil {
		t.Error("a volume without a record has a PersistentVolume")
	}
	for n, spec := range *asked {
		if spec.DryRun != (n < 3) || spec.Pool != "fast" || spec.ClusterID != "fsid" || (spec.Rebuild.FromKubernetesCluster == "") != (n < 3) {
			t.Errorf("request %d: %+v", n, spec)
		}
	}
	if len(*asked) != 9 {
		t.Errorf("%d requests", len(*asked))
	}
}

func TestAdoptAllLeavesObjectsOfOthersAlone(t *testing.T) {
	foreign := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "named"}}
	taken := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}}
	taken.Spec.VolumeName = "another"
	for says, object := range map[string]client.Object{
		"persistentvolume named exists, and is not this volume's": foreign, "persistentvolumeclaim shop/data exists, and is not this volume's": taken,
	} {
		api := plugintest.Cluster(t, plugintest.Class(), shop(), object)
		c, out := plugintest.Output()
		answerRebuilds(t, api, remains()[0])
		err := runAdoptAll(t.Context(), c, api, allFlags(func(f *options) { f.apply, f.output = true, "json" }))
		if err == nil {
			t.Error("all is well")
		}
		var result survey
		if err := json.Unmarshal(out.Bytes(), &result); err != nil || !strings.Contains(strings.Join(result.Volumes[0].Left, " "), says) {
			t.Errorf("%v\n%s", err, out.String())
		}
	}
}

// Somebody has deleted the claim and kept the PersistentVolume. A new claim of that name would wait for ever.
func TestAdoptAllMakesNoClaimThatWouldNotBeBound(t *testing.T) {
	released := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}
	released.Spec.CSI = &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: "pvc-a"}
	released.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data", UID: "of-the-deleted-one"}
	released.Status.Phase = corev1.VolumeReleased
	api := plugintest.Cluster(t, plugintest.Class(), shop(), released)
	c, out := plugintest.Output()
	answerRebuilds(t, api, remains()[0])
	if err := runAdoptAll(t.Context(), c, api, allFlags(func(f *options) { f.apply = true })); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	err := api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "data"}, &corev1.PersistentVolumeClaim{})
	if !apierrors.IsNotFound(err) {
		t.Errorf("the claim: %v", err)
	}
}

// TestAdoptAllIsDoneWhenNothingIsLeft: the exit code tells.
func TestAdoptAllIsDoneWhenNothingIsLeft(t *testing.T) {
	api := plugintest.Cluster(t, plugintest.Class(), shop())
	c, out := plugintest.Output()
	answerRebuilds(t, api, remains()[0])
	if err := runAdoptAll(t.Context(), c, api, allFlags(func(f *options) { f.apply = true })); err != nil {
		t.Errorf("%v\n%s", err, out.String())
	}
	err := runAdoptAll(t.Context(), c, api, allFlags(func(f *options) { f.apply, f.pool = true, "rbd" }))
	if err == nil || !strings.Contains(err.Error(), "--pool for each of fast") {
		t.Errorf("caches in another pool: %v", err)
	}
}

func TestAdoptAllKnowsAWrongCommandLine(t *testing.T) {
	for name, change := range map[string]func(*options){
		"apply and dry run":   func(f *options) { f.apply, f.dryRun = true, true },
		"image without pool":  func(f *options) { f.image = "i" },
		"a choice for all":    func(f *options) { f.pool, f.useCopy = "p", "n1" },
		"a claim":             func(f *options) { f.claim = "a/b" },
		"a class":             func(f *options) { f.class = "c" },
		"a slash":             func(f *options) { f.pool = "a/b" },
		"an odd output":       func(f *options) { f.output = "yaml" },
		"formatting":          func(f *options) { f.formatIfBlank = true },
		"a choice without it": func(f *options) { f.all, f.pool, f.image, f.useCopy = false, "p", "i", "n1" },
	} {
		f := allFlags(change)
		if err := f.validate(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if f := allFlags(func(f *options) { f.pool, f.image, f.useCopy, f.dryRun = "p", "i", "n1", true }); f.validate() != nil {
		t.Errorf("a good one is refused: %v", f.validate())
	}
}
