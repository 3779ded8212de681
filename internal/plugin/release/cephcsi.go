package release

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/manifest"
)

// cephCSI says how ceph-csi is installed, for the PersistentVolume that is printed.
type cephCSI struct{ driver, clusterID, secret, secretNamespace string }

func (o *cephCSI) bind(f *pflag.FlagSet) {
	f.StringVar(&o.driver, "ceph-csi-driver", "rbd.csi.ceph.com", "name of ceph-csi's driver, for the PersistentVolume that is printed")
	f.StringVar(&o.clusterID, "ceph-csi-cluster-id", "", "clusterID in ceph-csi's configuration (default: the volume's)")
	f.StringVar(&o.secret, "ceph-csi-secret", "csi-rbd-secret", "name of the Secret with ceph-csi's Ceph user")
	f.StringVar(&o.secretNamespace, "ceph-csi-secret-namespace", "ceph-csi", "namespace of that Secret")
}

// defaultFeatures are those of an image whose StorageClass names none.
const defaultFeatures = "layering,exclusive-lock,deep-flatten"

// staticVolume returns a PersistentVolume by which ceph-csi uses an image that it has not made. pv is
// the one by which this driver used it, or nil.
//
// https://github.com/ceph/ceph-csi/blob/devel/docs/static-pvc.md
func (o *cephCSI) staticVolume(v *v1alpha1.CacheVolume, pv *corev1.PersistentVolume) *corev1.PersistentVolume {
	features := defaultFeatures
	if v.Spec.Layout != nil && len(v.Spec.Layout.Features) > 0 {
		features = strings.Join(v.Spec.Layout.Features, ",")
	}
	out := &corev1.PersistentVolume{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{Name: objectName(v.Spec.Image)},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes:                   []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce},
			Capacity:                      manifest.Storage(v.Spec.SizeBytes),
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: o.driver, VolumeHandle: v.Spec.Image, FSType: "ext4",
				VolumeAttributes: map[string]string{
					"clusterID": cmp.Or(o.clusterID, v.Spec.ClusterID), "pool": v.Spec.Pool,
					"staticVolume": "true", "imageFeatures": features,
				},
				NodeStageSecretRef: &corev1.SecretReference{Name: o.secret, Namespace: o.secretNamespace},
			}},
		},
	}
	if pv != nil {
		out.Spec.VolumeMode, out.Spec.AccessModes, out.Spec.MountOptions = pv.Spec.VolumeMode, pv.Spec.AccessModes, pv.Spec.MountOptions
		out.Spec.CSI.FSType = cmp.Or(pv.Spec.CSI.FSType, out.Spec.CSI.FSType)
	}
	if mode := out.Spec.VolumeMode; mode != nil && *mode == corev1.PersistentVolumeBlock {
		out.Spec.CSI.FSType = ""
	}
	return out
}

// objectName turns an image's name into one that Kubernetes accepts.
func objectName(image string) string {
	name := strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' || r == '.' {
			return r
		}
		return '-'
	}, strings.ToLower(image))
	return strings.Trim(name, "-.")
}

// deletions are the commands that remove a PersistentVolume and its claim.
func deletions(pv *corev1.PersistentVolume) []string {
	own := "kubectl delete pv " + pv.Name
	if claim := pv.Spec.ClaimRef; claim != nil {
		return []string{fmt.Sprintf("kubectl delete pvc -n %s %s", claim.Namespace, claim.Name), own}
	}
	return []string{own}
}

// printReleased prints what is to be done after the release, and how to go on with the image. kubectl apply takes it.
func printReleased(c *console.Console, v *v1alpha1.CacheVolume, pvs []corev1.PersistentVolume, o cephCSI) {
	var pv *corev1.PersistentVolume
	for i := range pvs {
		pv = &pvs[i]
		c.Printf("#   %s\n", strings.Join(deletions(pv), "\n#   "))
	}
	c.Printf("#   use the image on a host:      rbd map %s/%s\n", v.Spec.Pool, v.Spec.Image)
	for _, f := range v.Status.Fenced {
		if f.Address == "" {
			continue // nothing of it is on the blocklist
		}
		c.Printf("#   once the client of node %q is gone for certain: ceph osd blocklist rm %s\n", f.Node, f.Address)
	}
	c.Printf("#   or with ceph-csi, by this PersistentVolume (check clusterID and Secret) and a claim with volumeName %s:\n",
		objectName(v.Spec.Image))
	text, err := manifest.YAML(o.staticVolume(v, pv))
	if err != nil {
		text = fmt.Sprintf("# it cannot be printed: %v\n", err)
	}
	c.Printf("%s", text)
}
