package adoption

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
)

// answerAdoptions plays csi-controller: it grants every adoption, or refuses each.
func answerAdoptions(t *testing.T, api client.Client, refusal string) {
	t.Helper()
	go func() {
		for ; t.Context().Err() == nil; time.Sleep(time.Millisecond) {
			all := &v1alpha1.CacheAdoptionList{}
			if err := api.List(t.Context(), all); err != nil {
				return
			}
			for i := range all.Items {
				a := &all.Items[i]
				switch {
				case a.Status.Phase != "":
					continue
				case refusal != "":
					a.Status = v1alpha1.CacheAdoptionStatus{Phase: v1alpha1.AdoptionRefused, Message: refusal}
				case a.Spec.DryRun:
					a.Status = v1alpha1.CacheAdoptionStatus{Phase: v1alpha1.AdoptionChecked, SizeBytes: 2 << 30, CacheBytes: 1 << 30}
				default:
					a.Status = v1alpha1.CacheAdoptionStatus{Phase: v1alpha1.AdoptionDone, SizeBytes: 2 << 30, Volume: "adopted-1", Group: "g1"}
				}
				_ = api.Update(t.Context(), a)
			}
		}
	}()
}

// theirs is a PersistentVolume of ceph-csi, with its claim shop/data.
func theirs(change func(*corev1.PersistentVolume)) (*corev1.PersistentVolume, *corev1.PersistentVolumeClaim) {
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "pvc-theirs"}}
	pv.Spec.AccessModes = []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce}
	pv.Spec.PersistentVolumeReclaimPolicy = corev1.PersistentVolumeReclaimDelete
	pv.Spec.ClaimRef = &corev1.ObjectReference{Namespace: "shop", Name: "data"}
	pv.Spec.CSI = &corev1.CSIPersistentVolumeSource{
		Driver: "rook-ceph.rbd.csi.ceph.com", VolumeHandle: "0001-0009-rook-ceph-1", FSType: "xfs",
		VolumeAttributes: map[string]string{"pool": "rbd", "imageName": "csi-vol-1"},
	}
	if change != nil {
		change(pv)
	}
	pvc := &corev1.PersistentVolumeClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "data"}}
	pvc.Spec.VolumeName = pv.Name
	return pv, pvc
}

func flagsOf(change func(*options)) options {
	f := options{pool: "rbd", image: "volume-1", fsType: "ext4", mode: "Filesystem", timeout: time.Minute}
	change(&f)
	return f
}

func TestAdoptMakesVolumeAndClaim(t *testing.T) {
	api := plugintest.Cluster(t, plugintest.Class())
	c, out := plugintest.Output()
	answerAdoptions(t, api, "")
	f := flagsOf(func(f *options) { f.claim, f.class = "shop/new", "escache" })
	if err := runAdopt(t.Context(), c, api, f); err != nil {
		t.Fatal(err)
	}
	key := client.ObjectKey{Name: "adopted-1"}
	if err := api.Get(t.Context(), key, &corev1.PersistentVolume{}); !apierrors.IsNotFound(err) || !strings.Contains(out.String(), "can be adopted") {
		t.Errorf("a dry run: %v\n%s", err, out.String())
	}
	f.apply = true
	if err := runAdopt(t.Context(), c, api, f); err != nil {
		t.Fatal(err)
	}
	pv, pvc := &corev1.PersistentVolume{}, &corev1.PersistentVolumeClaim{}
	if err := api.Get(t.Context(), key, pv); err != nil {
		t.Fatal(err)
	}
	if err := api.Get(t.Context(), client.ObjectKey{Namespace: "shop", Name: "new"}, pvc); err != nil {
		t.Fatal(err)
	}
	group := pv.Spec.NodeAffinity.Required.NodeSelectorTerms[0].MatchExpressions[0]
	if pv.Spec.CSI.VolumeHandle != "adopted-1" || pv.Spec.CSI.Driver != v1alpha1.DriverName || pv.Spec.CSI.FSType != "ext4" ||
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain || pv.Spec.ClaimRef.Name != "new" ||
		pv.Spec.Capacity.Storage().Value() != 2<<30 || group.Key != v1alpha1.TopologyKey || group.Values[0] != "g1" {
		t.Errorf("PersistentVolume %+v", pv.Spec)
	}
	plugintest.Says(t, out.String(), "persistentvolume adopted-1 is made", "persistentvolumeclaim new is made")
	if pvc.Spec.VolumeName != "adopted-1" || *pvc.Spec.StorageClassName != "escache" {
		t.Errorf("claim %+v", pvc.Spec)
	}
	left := &v1alpha1.CacheAdoptionList{}
	if err := api.List(t.Context(), left); err != nil || len(left.Items) > 0 {
		t.Errorf("requests left: %+v, %v", left.Items, err)
	}
}

func TestAdoptOfACephCSIVolumeMakesItsTwin(t *testing.T) {
	pv, pvc := theirs(nil)
	api := plugintest.Cluster(t, plugintest.Class(), pv, pvc)
	c, out := plugintest.Output()
	answerAdoptions(t, api, "")
	f := flagsOf(func(f *options) { f.pool, f.image, f.persistentVolume, f.apply = "", "", "pvc-theirs", true })
	if err := runAdopt(t.Context(), c, api, f); err != nil {
		t.Fatal(err)
	}
	twin := &corev1.PersistentVolume{}
	if err := api.Get(t.Context(), client.ObjectKey{Name: "adopted-1"}, twin); err != nil || twin.Spec.CSI.FSType != "xfs" || twin.Spec.ClaimRef.Name != "data" {
		t.Errorf("twin %+v, %v", twin.Spec, err)
	}
	if err := api.Get(t.Context(), client.ObjectKey{Name: "pvc-theirs"}, pv); err != nil ||
		pv.Spec.PersistentVolumeReclaimPolicy != corev1.PersistentVolumeReclaimRetain {
		t.Errorf("its reclaim policy is %s, %v", pv.Spec.PersistentVolumeReclaimPolicy, err)
	}
	for _, want := range []string{"kubectl delete pvc -n shop data", "kubectl delete pv pvc-theirs", "kind: PersistentVolumeClaim", "volumeName: adopted-1"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not say %q:\n%s", want, out.String())
		}
	}
}

func TestAdoptRefusesBeforeItChangesAnything(t *testing.T) {
	byPV := func(f *options) { f.pool, f.image, f.persistentVolume = "", "", "pvc-theirs" }
	node, pvName := "n1", "pvc-theirs"
	shopPod := plugintest.User("app", corev1.PodRunning)
	shopPod.Namespace, shopPod.Spec.Volumes[0].PersistentVolumeClaim.ClaimName = "shop", "data"
	for name, tc := range map[string]struct {
		flags   func(*options)
		change  func(*corev1.PersistentVolume)
		more    []client.Object
		refusal string
		says    string
	}{
		"the driver refuses":  {flags: byPV, refusal: "it is in use: client.4 at 10.0.0.1 has it open", says: "client.4 at 10.0.0.1"},
		"a pod uses it":       {flags: byPV, more: []client.Object{shopPod}, says: "pods use claim shop/data: shop/app"},
		"attached":            {flags: byPV, more: []client.Object{&storagev1.VolumeAttachment{ObjectMeta: metav1.ObjectMeta{Name: "va"}, Spec: storagev1.VolumeAttachmentSpec{NodeName: node, Source: storagev1.VolumeAttachmentSource{PersistentVolumeName: &pvName}}}}, says: "attached to node n1"},
		"encrypted":           {flags: byPV, change: func(pv *corev1.PersistentVolume) { pv.Spec.CSI.VolumeAttributes["encrypted"] = "true" }, says: "encrypted"},
		"shared":              {flags: byPV, change: func(pv *corev1.PersistentVolume) { pv.Spec.AccessModes[0] = corev1.ReadWriteMany }, says: "ReadWriteOnce"},
		"of another driver":   {flags: byPV, change: func(pv *corev1.PersistentVolume) { pv.Spec.CSI.Driver = "nfs" }, says: "not one of ceph-csi"},
		"no such volume":      {flags: func(f *options) { f.pool, f.image, f.persistentVolume = "", "", "none" }, says: "there is no PersistentVolume none"},
		"named by another PV": {flags: func(f *options) { f.image = "csi-vol-1" }, says: "--persistent-volume"},
		"claim exists":        {flags: func(f *options) { f.claim = "shop/data" }, says: "exists already"},
		"no such class":       {flags: func(f *options) { f.class = "none" }, says: "no StorageClass none"},
	} {
		t.Run(name, func(t *testing.T) {
			pv, pvc := theirs(tc.change)
			api := plugintest.Cluster(t, append(tc.more, plugintest.Class(), pv, pvc)...)
			c, _ := plugintest.Output()
			answerAdoptions(t, api, tc.refusal)
			err := runAdopt(t.Context(), c, api, flagsOf(func(f *options) { f.apply = true; tc.flags(f) }))
			if err == nil || !strings.Contains(err.Error(), tc.says) {
				t.Errorf("got %v", err)
			}
			now := &corev1.PersistentVolume{}
			if err := api.Get(t.Context(), client.ObjectKeyFromObject(pv), now); err != nil || now.ResourceVersion != pv.ResourceVersion {
				t.Errorf("its PersistentVolume was changed: %+v, %v", now.Spec, err)
			}
		})
	}
}

func TestAdoptKnowsAWrongCommandLine(t *testing.T) {
	for name, change := range map[string]func(*options){
		"nothing":        func(f *options) { f.pool, f.image = "", "" },
		"half":           func(f *options) { f.image = "" },
		"both":           func(f *options) { f.persistentVolume = "pv" },
		"half and PV":    func(f *options) { f.image, f.persistentVolume = "", "pv" },
		"a slash":        func(f *options) { f.image = "namespace/image" },
		"an odd mode":    func(f *options) { f.mode = "block" },
		"an odd fs-type": func(f *options) { f.fsType = "btrfs" },
	} {
		f := flagsOf(change)
		if err := f.validate(); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
	if f := flagsOf(func(*options) {}); f.validate() != nil {
		t.Errorf("a good one is refused: %v", f.validate())
	}
}
