package adoption

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/manifest"
)

// twin is the PersistentVolume, and perhaps the claim, for an image that is adopted.
type twin struct {
	clusterID, pool, image string
	class                  string
	namespace, claim       string // "" if nobody has claimed it
	// claimExists: the claim is that of the source, and has to go before it can be re-created.
	claimExists bool
	fsType      string
	mode        corev1.PersistentVolumeMode
	options     []string
	access      corev1.PersistentVolumeAccessMode
	source      *corev1.PersistentVolume // of ceph-csi, or nil

	// volume and placed are empty before it is adopted. name is that of the PersistentVolume, if it is there
	// or is not the volume's.
	volume, placed, name string
	sizeBytes            int64
}

// newTwin finds out what to make, and refuses what cannot be made.
func newTwin(ctx context.Context, c *console.Console, api client.Reader, f options) (*twin, error) {
	t := &twin{
		pool: f.pool, image: f.image, class: f.class,
		fsType: f.fsType, mode: corev1.PersistentVolumeMode(f.mode), access: corev1.ReadWriteOnce,
	}
	var err error
	if t.clusterID, err = findCluster(ctx, api, f); err != nil {
		return nil, err
	}
	if f.claim != "" {
		if t.namespace, t.claim, err = c.ClaimName(f.claim); err != nil {
			return nil, err
		}
	}
	if f.persistentVolume != "" {
		err = t.follow(ctx, api, f)
	} else {
		err = t.unnamed(ctx, api)
	}
	if err != nil {
		return nil, err
	}
	return t, t.checkClaim(ctx, api)
}

// follow takes what a PersistentVolume of ceph-csi says of its image and its use.
func (t *twin) follow(ctx context.Context, api client.Reader, f options) error {
	pv := &corev1.PersistentVolume{}
	err := api.Get(ctx, client.ObjectKey{Name: f.persistentVolume}, pv)
	if apierrors.IsNotFound(err) {
		return fmt.Errorf("there is no PersistentVolume %s", f.persistentVolume)
	}
	if err != nil {
		return err
	}
	if t.pool, t.image, err = imageOf(pv); err != nil {
		return err
	}
	if err := errors.Join(claims.WithoutPods(ctx, api, pv.Spec.ClaimRef), detached(ctx, api, pv.Name)); err != nil {
		return err
	}
	modes := pv.Spec.AccessModes
	at := slices.IndexFunc(modes, func(m corev1.PersistentVolumeAccessMode) bool {
		return m == corev1.ReadWriteOnce || m == corev1.ReadWriteOncePod
	})
	if at < 0 {
		return fmt.Errorf("PersistentVolume %s has the access modes %v; a volume of this driver has ReadWriteOnce or "+
			"ReadWriteOncePod only", pv.Name, modes)
	}
	t.source, t.access, t.options = pv, modes[at], pv.Spec.MountOptions
	if pv.Spec.VolumeMode != nil {
		t.mode = *pv.Spec.VolumeMode
	}
	if !f.fsTypeWasChosen {
		t.fsType = cmp.Or(pv.Spec.CSI.FSType, t.fsType)
	}
	if claim := pv.Spec.ClaimRef; claim != nil && t.claim == "" {
		t.namespace, t.claim = claim.Namespace, claim.Name
	}
	return nil
}

// cephCSIDriver ends the names of ceph-csi's drivers for RBD. Rook puts its namespace in front.
const cephCSIDriver = "rbd.csi.ceph.com"

// imageOf returns the image of a PersistentVolume of ceph-csi.
func imageOf(pv *corev1.PersistentVolume) (pool, image string, err error) {
	if pv.Spec.CSI == nil || !strings.HasSuffix(pv.Spec.CSI.Driver, cephCSIDriver) {
		return "", "", fmt.Errorf("PersistentVolume %s is not one of ceph-csi's driver for RBD; name --pool and --image", pv.Name)
	}
	attributes := pv.Spec.CSI.VolumeAttributes
	pool, image = attributes["pool"], attributes["imageName"]
	if attributes["staticVolume"] == "true" {
		image = pv.Spec.CSI.VolumeHandle
	}
	switch {
	case attributes["encrypted"] == "true":
		return "", "", fmt.Errorf("PersistentVolume %s is encrypted, and this driver has no key: copy its data into a new volume", pv.Name)
	case pool == "" || image == "":
		return "", "", fmt.Errorf("PersistentVolume %s does not say what its pool and image are; name --pool and --image", pv.Name)
	}
	return pool, image, nil
}

// detached refuses a PersistentVolume that is attached to a node, or about to be.
func detached(ctx context.Context, api client.Reader, pv string) error {
	all := &storagev1.VolumeAttachmentList{}
	if err := api.List(ctx, all); err != nil {
		return err
	}
	for _, a := range all.Items {
		if name := a.Spec.Source.PersistentVolumeName; name != nil && *name == pv {
			return fmt.Errorf("PersistentVolume %s is attached to node %s; wait until it is detached", pv, a.Spec.NodeName)
		}
	}
	return nil
}

// unnamed refuses an image that a PersistentVolume of ceph-csi names: deleting that one would delete
// the image.
func (t *twin) unnamed(ctx context.Context, api client.Reader) error {
	all := &corev1.PersistentVolumeList{}
	if err := api.List(ctx, all); err != nil {
		return err
	}
	for i := range all.Items {
		pool, image, err := imageOf(&all.Items[i])
		if err == nil && pool == t.pool && image == t.image {
			return fmt.Errorf("image %s/%s is that of PersistentVolume %s: name it with --persistent-volume, so that it is "+
				"checked and kept from deleting the image", pool, image, all.Items[i].Name)
		}
	}
	return nil
}

// checkClaim refuses a claim that exists, unless it is the source's.
func (t *twin) checkClaim(ctx context.Context, api client.Reader) error {
	if t.claim == "" {
		return nil
	}
	pvc := &corev1.PersistentVolumeClaim{}
	err := api.Get(ctx, client.ObjectKey{Namespace: t.namespace, Name: t.claim}, pvc)
	switch {
	case apierrors.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case t.source != nil && pvc.Spec.VolumeName == t.source.Name:
		t.claimExists = true
		return nil
	}
	return fmt.Errorf("claim %s/%s exists already; choose another name, or delete it", t.namespace, t.claim)
}

func (t *twin) persistentVolume() *corev1.PersistentVolume {
	name := cmp.Or(t.name, t.volume, "NAME")
	pv := &corev1.PersistentVolume{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolume"},
		ObjectMeta: metav1.ObjectMeta{
			Name: name, Annotations: map[string]string{"pv.kubernetes.io/provisioned-by": v1alpha1.DriverName},
		},
		Spec: corev1.PersistentVolumeSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{t.access}, VolumeMode: &t.mode, MountOptions: t.options,
			StorageClassName:              t.class,
			Capacity:                      manifest.Storage(t.sizeBytes),
			PersistentVolumeReclaimPolicy: corev1.PersistentVolumeReclaimRetain,
			PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{
				Driver: v1alpha1.DriverName, VolumeHandle: cmp.Or(t.volume, "NAME"),
			}},
			NodeAffinity: &corev1.VolumeNodeAffinity{Required: &corev1.NodeSelector{NodeSelectorTerms: []corev1.NodeSelectorTerm{{
				MatchExpressions: []corev1.NodeSelectorRequirement{{
					Key: v1alpha1.TopologyKey, Operator: corev1.NodeSelectorOpIn, Values: []string{cmp.Or(t.placed, "GROUP")},
				}},
			}}}},
		},
	}
	if t.mode == corev1.PersistentVolumeFilesystem {
		pv.Spec.CSI.FSType = t.fsType
	}
	if t.claim != "" {
		pv.Spec.ClaimRef = &corev1.ObjectReference{APIVersion: "v1", Kind: "PersistentVolumeClaim", Namespace: t.namespace, Name: t.claim}
	}
	return pv
}

// persistentVolumeClaim returns the claim, bound to the volume in advance, or nil.
func (t *twin) persistentVolumeClaim() *corev1.PersistentVolumeClaim {
	if t.claim == "" {
		return nil
	}
	return &corev1.PersistentVolumeClaim{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "PersistentVolumeClaim"},
		ObjectMeta: metav1.ObjectMeta{Namespace: t.namespace, Name: t.claim},
		Spec: corev1.PersistentVolumeClaimSpec{
			AccessModes: []corev1.PersistentVolumeAccessMode{t.access}, VolumeMode: &t.mode, StorageClassName: &t.class,
			VolumeName: cmp.Or(t.name, t.volume, "NAME"),
			Resources: corev1.VolumeResourceRequirements{
				Requests: manifest.Storage(t.sizeBytes),
			},
		},
	}
}

// applyTwin makes the objects that are not there. It prints what is left to do.
func applyTwin(ctx context.Context, c *console.Console, api client.Client, t *twin) error {
	var made []client.Object
	if t.name == "" {
		made = append(made, t.persistentVolume())
	}
	if claim := t.persistentVolumeClaim(); claim != nil && !t.claimExists {
		made = append(made, claim)
	}
	for _, o := range made {
		kind := strings.ToLower(o.GetObjectKind().GroupVersionKind().Kind) // not known any more when it is made
		if err := api.Create(ctx, o); err != nil {
			c.Printf("# Volume %s has the image now. What is left to make, also by repeating this command:\n", t.volume)
			return errors.Join(err, printTwin(c, t))
		}
		c.Printf("%s %s is made\n", kind, o.GetName())
	}
	c.Printf("adopted: image %s/%s is volume %s, in group %s\n", t.pool, t.image, t.volume, t.placed)
	if t.source == nil {
		return nil
	}
	c.Printf("\n# Left to do:\n")
	if claim := t.source.Spec.ClaimRef; claim != nil {
		c.Printf("#   kubectl delete pvc -n %s %s\n", claim.Namespace, claim.Name)
	}
	c.Printf("#   kubectl delete pv %s     (its reclaim policy is Retain: the image stays)\n", t.source.Name)
	if !t.claimExists {
		return nil
	}
	c.Printf("#   then apply the claim again:\n")
	text, err := manifest.YAML(t.persistentVolumeClaim())
	c.Printf("%s", text)
	return err
}

// printTwin prints the objects that are not there.
func printTwin(c *console.Console, t *twin) error {
	var texts []string
	if t.name == "" {
		volume, err := manifest.YAML(t.persistentVolume())
		if err != nil {
			return err
		}
		texts = append(texts, volume)
	}
	if claim := t.persistentVolumeClaim(); claim != nil {
		text, err := manifest.YAML(claim)
		if err != nil {
			return err
		}
		if t.claimExists {
			text = fmt.Sprintf("# by you, after claim and PersistentVolume %s are deleted:\n%s", t.source.Name, text)
		}
		texts = append(texts, text)
	}
	c.Printf("%s", strings.Join(texts, "---\n"))
	return nil
}
