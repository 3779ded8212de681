package adoption

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// imagesTaken plays a csi-controller that lets one volume have an image: it makes the CacheVolume, and refuses
// all that ask for the same image later.
func imagesTaken(t *testing.T, api client.Client) {
	t.Helper()
	go func() {
		for ; t.Context().Err() == nil; time.Sleep(time.Millisecond) {
			asked, taken := &v1alpha1.CacheAdoptionList{}, &v1alpha1.CacheVolumeList{}
			if api.List(t.Context(), asked) != nil || api.List(t.Context(), taken) != nil {
				return
			}
			for i := range asked.Items {
				if a := &asked.Items[i]; a.Status.Phase == "" {
					_ = takeImage(t.Context(), api, a, taken.Items)
					break // with the list of volumes as it is now
				}
			}
		}
	}()
}

func takeImage(ctx context.Context, api client.Client, a *v1alpha1.CacheAdoption, taken []v1alpha1.CacheVolume) error {
	for _, v := range taken {
		if v.Spec.Image == a.Spec.Image {
			a.Status.Phase, a.Status.Message = v1alpha1.AdoptionRefused, "the image is adopted already: volume "+v.Name+" has it"
			return api.Update(ctx, a)
		}
	}
	a.Status = v1alpha1.CacheAdoptionStatus{Phase: v1alpha1.AdoptionChecked, SizeBytes: 2 << 30, CacheBytes: 1 << 30}
	if !a.Spec.DryRun {
		v := adopted("adopted-"+a.Name, a.Spec.Image)
		v.Spec.Adoption.FormatIfBlank = a.Spec.FormatIfBlank
		if err := api.Create(ctx, v); err != nil {
			return err
		}
		a.Status.Phase, a.Status.Volume, a.Status.Group = v1alpha1.AdoptionDone, v.Name, v.Spec.Group
	}
	return api.Update(ctx, a)
}

// adopted is the volume of an image that csi-controller has adopted.
func adopted(name, image string) *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{ObjectMeta: metav1.ObjectMeta{Name: name}}
	v.Spec = v1alpha1.CacheVolumeSpec{
		ClusterID: "fsid", Pool: "rbd", Image: image, SizeBytes: 2 << 30, CacheBytes: 1 << 30, CacheMode: v1alpha1.CacheModeWriteback, Group: "g1",
		Adoption: &v1alpha1.Adoption{Request: "uid-of-" + name},
	}
	v.Status.Phase = v1alpha1.VolumeReady
	return v
}

// endsBefore is a client whose process ends before it has made an object of that kind.
func endsBefore(api client.WithWatch, kind string) client.Client {
	return interceptor.NewClient(api, interceptor.Funcs{
		Create: func(ctx context.Context, below client.WithWatch, o client.Object, options ...client.CreateOption) error {
			if fmt.Sprintf("%T", o) == "*v1."+kind {
				return errors.New("killed")
			}
			return below.Create(ctx, o, options...)
		},
	})
}

func pvsOf(t *testing.T, api client.Client) []corev1.PersistentVolume {
	t.Helper()
	all := &corev1.PersistentVolumeList{}
	plugintest.Must(t, api.List(t.Context(), all))
	var out []corev1.PersistentVolume
	for _, pv := range all.Items {
		if pv.Spec.CSI != nil && strings.HasPrefix(pv.Spec.CSI.VolumeHandle, "adopted-") {
			out = append(out, pv)
		}
	}
	return out
}

// TestAnAdoptionThatWasInterruptedGoesOn: the image is a volume's already, and nothing stands for that in
// Kubernetes.
func TestAnAdoptionThatWasInterruptedGoesOn(t *testing.T) {
	for _, before := range []string{"PersistentVolume", "PersistentVolumeClaim"} {
		t.Run("before the "+before, func(t *testing.T) {
			api := plugintest.Cluster(t, plugintest.Class())
			imagesTaken(t, api)
			f := flagsOf(func(f *options) { f.claim, f.class, f.apply = "shop/new", "escache", true })
			c, _ := plugintest.Output()
			if err := runAdopt(t.Context(), c, endsBefore(api, before), f); err == nil {
				t.Fatal("it was not interrupted")
			}
			c, out := plugintest.Output()
			if err := runAdopt(t.Context(), c, api, f); err != nil {
				t.Fatalf("the repeated command: %v", err)
			}
			pvs, pvc, volumes := pvsOf(t, api), &corev1.PersistentVolumeClaim{}, &v1alpha1.CacheVolumeList{}
			plugintest.Must(t, api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "new"}, pvc))
			plugintest.Must(t, api.List(t.Context(), volumes))
			if len(pvs) != 1 || pvs[0].Spec.ClaimRef.Name != "new" || pvc.Spec.VolumeName != pvs[0].Name || len(volumes.Items) != 2 {
				t.Errorf("PersistentVolumes %+v, claim %+v, %d volumes", pvs, pvc.Spec, len(volumes.Items))
			}
			plugintest.Says(t, out.String(), "was adopted by an earlier command", "cache of 1Gi")
			c, _ = plugintest.Output()
			if err := runAdopt(t.Context(), c, api, f); err == nil {
				t.Error("an adoption that is complete is repeated")
			}
		})
	}
}

// TestAnAdoptionOfACephCSIVolumeThatWasInterruptedGoesOn also says again what is left to do.
func TestAnAdoptionOfACephCSIVolumeThatWasInterruptedGoesOn(t *testing.T) {
	pv, pvc := theirs(nil)
	api := plugintest.Cluster(t, plugintest.Class(), pv, pvc)
	imagesTaken(t, api)
	f := flagsOf(func(f *options) { f.pool, f.image, f.persistentVolume, f.apply = "", "", "pvc-theirs", true })
	c, _ := plugintest.Output()
	if err := runAdopt(t.Context(), c, endsBefore(api, "PersistentVolume"), f); err == nil {
		t.Fatal("it was not interrupted")
	}
	c, out := plugintest.Output()
	if err := runAdopt(t.Context(), c, api, f); err != nil {
		t.Fatalf("the repeated command: %v", err)
	}
	if pvs := pvsOf(t, api); len(pvs) != 1 || pvs[0].Spec.ClaimRef.Name != "data" {
		t.Errorf("PersistentVolumes %+v", pvs)
	}
	plugintest.Says(t, out.String(), "kubectl delete pvc -n shop data", "kind: PersistentVolumeClaim")
}

// TestWithoutApplyAnInterruptedAdoptionIsShown, and nothing is made.
func TestWithoutApplyAnInterruptedAdoptionIsShown(t *testing.T) {
	api := plugintest.Cluster(t, plugintest.Class(), adopted("adopted-1", "volume-1"))
	imagesTaken(t, api)
	c, out := plugintest.Output()
	if err := runAdopt(t.Context(), c, api, flagsOf(func(*options) {})); err != nil {
		t.Fatal(err)
	}
	plugintest.Says(t, out.String(), "adopted-1", "With --apply", "volumeHandle: adopted-1")
	if pvs := pvsOf(t, api); len(pvs) > 0 {
		t.Errorf("it has made %+v", pvs)
	}
}

// TestARequestThatWasLeftIsWaitedFor: the command ended while csi-controller was at it.
func TestARequestThatWasLeftIsWaitedFor(t *testing.T) {
	left := &v1alpha1.CacheAdoption{ObjectMeta: metav1.ObjectMeta{Name: "adopt-left", UID: types.UID("uid-left")}}
	left.Spec = v1alpha1.CacheAdoptionSpec{
		ClusterID: "fsid", Pool: "rbd", Image: "volume-1", StorageClass: "escache", Claim: &v1alpha1.ClaimReference{Namespace: "shop", Name: "new"},
	}
	f := flagsOf(func(f *options) { f.claim, f.class, f.apply = "shop/new", "escache", true })
	for name, change := range map[string]func(*options){
		"the same":      func(*options) {},
		"finished":      func(*options) {},
		"another claim": func(f *options) { f.claim = "shop/other" },
		"another class": func(f *options) { f.class = "" },
	} {
		t.Run(name, func(t *testing.T) {
			api := plugintest.Cluster(t, plugintest.Class(), left.DeepCopy())
			if name == "finished" {
				done := &v1alpha1.CacheAdoption{}
				plugintest.Must(t, api.Get(t.Context(), client.ObjectKeyFromObject(left), done))
				plugintest.Must(t, takeImage(t.Context(), api, done, nil))
			}
			if !strings.HasPrefix(name, "another") { // those find it pending
				imagesTaken(t, api)
			}
			f := f
			change(&f)
			c, _ := plugintest.Output()
			err := runAdopt(t.Context(), c, api, f)
			requests := &v1alpha1.CacheAdoptionList{}
			plugintest.Must(t, api.List(t.Context(), requests))
			if strings.HasPrefix(name, "another") {
				plugintest.Says(t, plugintest.ErrorText(err), "adopt-left", "kubectl delete cacheadoption adopt-left")
				if len(requests.Items) != 1 || len(pvsOf(t, api)) > 0 {
					t.Errorf("requests %+v", requests.Items)
				}
				return
			}
			if pvs := pvsOf(t, api); err != nil || len(pvs) != 1 || pvs[0].Spec.CSI.VolumeHandle != "adopted-adopt-left" {
				t.Errorf("PersistentVolumes %+v, %v", pvs, err)
			}
			if len(requests.Items) > 0 {
				t.Errorf("requests left: %+v", requests.Items)
			}
		})
	}
}

// TestAnInterruptedAdoptionDoesNotGoOnInAnotherWay: what it was adopted with cannot be changed by repeating it.
func TestAnInterruptedAdoptionDoesNotGoOnInAnotherWay(t *testing.T) {
	unbound := func(change func(*corev1.PersistentVolume)) client.Object {
		pv := (&twin{volume: "adopted-1", class: "escache", mode: corev1.PersistentVolumeFilesystem, access: corev1.ReadWriteOnce}).persistentVolume()
		change(pv)
		return pv
	}
	for name, tc := range map[string]struct {
		flags  func(*options)
		volume func(*v1alpha1.CacheVolume)
		more   []client.Object
		says   string
	}{
		"another group":       {flags: func(f *options) { f.group = "g2" }, says: "in group g1, not g2"},
		"formatting":          {flags: func(f *options) { f.formatIfBlank = true }, says: "--format-if-blank"},
		"it is being deleted": {volume: func(v *v1alpha1.CacheVolume) { v.Status.Phase = v1alpha1.VolumeDeleting }, says: "volume adopted-1 has it"},
		"it is released":      {volume: func(v *v1alpha1.CacheVolume) { v.Spec.Release = true }, says: "volume adopted-1 has it"},
		"it was made here":    {volume: func(v *v1alpha1.CacheVolume) { v.Spec.Adoption = nil }, says: "volume adopted-1 has it"},
		"not finished":        {volume: func(v *v1alpha1.CacheVolume) { v.Status.Phase = "" }, says: "volume adopted-1 has it"},
		"it has a PersistentVolume": {
			more: []client.Object{unbound(func(*corev1.PersistentVolume) {})}, says: "volume adopted-1 has it",
		},
		"its PersistentVolume is another claim's": {
			flags: func(f *options) { f.claim = "shop/new" },
			more: []client.Object{unbound(func(pv *corev1.PersistentVolume) {
				pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "other"}
			})},
			says: "volume adopted-1 has it",
		},
		"its PersistentVolume is of another class": {
			flags: func(f *options) { f.claim, f.clusterID = "shop/new", "fsid" },
			more:  []client.Object{unbound(func(*corev1.PersistentVolume) {})}, says: `StorageClass "escache"`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			v := adopted("adopted-1", "volume-1")
			if tc.volume != nil {
				tc.volume(v)
			}
			api := plugintest.Cluster(t, append(tc.more, plugintest.Class(), v)...)
			imagesTaken(t, api)
			c, _ := plugintest.Output()
			had := len(pvsOf(t, api))
			err := runAdopt(t.Context(), c, api, flagsOf(func(f *options) {
				f.apply = true
				if tc.flags != nil {
					tc.flags(f)
				}
			}))
			plugintest.Says(t, plugintest.ErrorText(err), tc.says)
			if now := len(pvsOf(t, api)); now != had {
				t.Errorf("%d PersistentVolumes, %d before", now, had)
			}
		})
	}
}
