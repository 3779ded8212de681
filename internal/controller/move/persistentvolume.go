package move

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// finalizers of a PersistentVolume that others set again by themselves: Kubernetes, external-provisioner and
// external-attacher. While there is another one, the PersistentVolume is not re-created.
func finalizers() []string {
	return []string{
		"kubernetes.io/pv-protection", "external-provisioner.volume.kubernetes.io/finalizer",
		"external-attacher/csi-escache-io",
	}
}

// foreign returns the finalizers of a PersistentVolume that are not known.
func foreign(pv *corev1.PersistentVolume) []string {
	return slices.DeleteFunc(slices.Clone(pv.Finalizers), func(f string) bool { return slices.Contains(finalizers(), f) })
}

// names reports whether the PersistentVolume stands for the volume.
func names(pv *corev1.PersistentVolume, volume string) bool {
	return pv.Spec.CSI != nil && pv.Spec.CSI.Driver == v1alpha1.DriverName && pv.Spec.CSI.VolumeHandle == volume
}

// retarget makes the node affinity allow the nodes of another group. It reports whether it changed
// anything. It changes nothing if there is no affinity, or if it allows that group already.
func retarget(pv *corev1.PersistentVolume, group string) (changed bool) {
	if pv.Spec.NodeAffinity == nil || pv.Spec.NodeAffinity.Required == nil {
		return false
	}
	terms := pv.Spec.NodeAffinity.Required.NodeSelectorTerms
	for i := range terms {
		for j := range terms[i].MatchExpressions {
			e := &terms[i].MatchExpressions[j]
			if of, is := v1alpha1.UncachedKeyOf(e.Key); is && of != group {
				e.Key, changed = v1alpha1.UncachedKey(group), true
			}
			if e.Key == v1alpha1.TopologyKey && e.Operator == corev1.NodeSelectorOpIn && !slices.Contains(e.Values, group) {
				e.Values, changed = []string{group}, true
			}
		}
	}
	return changed
}

// retainedByMove is an annotation of a PersistentVolume whose reclaim policy a move has set to Retain for a while. It
// is set with the policy, in one write. A Retain without it is what somebody else wants.
const retainedByMove = "escache.io/retained-by-move"

// finalPolicy is the reclaim policy that the PersistentVolume is to have after the move. The record has the one that it
// had before; somebody may have changed it since.
func finalPolicy(pv, kept *corev1.PersistentVolume) corev1.PersistentVolumeReclaimPolicy {
	if policy := pv.Spec.PersistentVolumeReclaimPolicy; policy != retain || pv.Annotations[retainedByMove] == "" {
		return policy
	}
	return kept.Spec.PersistentVolumeReclaimPolicy
}

// anew returns the PersistentVolume as it is to be re-created for the group. It has nothing that the API
// server and the controllers of Kubernetes set by themselves.
func anew(pv *corev1.PersistentVolume, group string) (fresh *corev1.PersistentVolume, needed bool) {
	fresh = &corev1.PersistentVolume{
		ObjectMeta: metav1.ObjectMeta{
			Name: pv.Name, Labels: pv.Labels, Annotations: maps.Clone(pv.Annotations), OwnerReferences: pv.OwnerReferences,
		},
		Spec: *pv.Spec.DeepCopy(),
	}
	delete(fresh.Annotations, retainedByMove)
	if fresh.Spec.ClaimRef != nil {
		fresh.Spec.ClaimRef.ResourceVersion = ""
	}
	return fresh, retarget(fresh, group)
}

// encode returns the PersistentVolume as it is kept on record, with the reclaim policy that it is to have in
// the end.
func encode(pv *corev1.PersistentVolume, policy corev1.PersistentVolumeReclaimPolicy) (string, error) {
	kept := pv.DeepCopy()
	kept.Spec.PersistentVolumeReclaimPolicy = policy
	text, err := json.Marshal(kept)
	if err != nil {
		return "", fmt.Errorf("write down PersistentVolume %s: %w", pv.Name, err)
	}
	return string(text), nil
}

// decode is the other way round.
func decode(text string) (*corev1.PersistentVolume, error) {
	pv := &corev1.PersistentVolume{}
	if err := json.Unmarshal([]byte(text), pv); err != nil {
		return nil, fmt.Errorf("read the PersistentVolume that the record of the move has: %w", err)
	}
	return pv, nil
}
