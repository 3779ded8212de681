// Package binding says whether a claim has a PersistentVolume.
package binding

import corev1 "k8s.io/api/core/v1"

// Has reports whether the PersistentVolume is the claim's, or kept for it. That is what the PersistentVolume says. The
// name in the claim proves nothing: whoever makes a claim can write any name there, and Kubernetes then does not bind it.
func Has(claim *corev1.PersistentVolumeClaim, pv *corev1.PersistentVolume) bool {
	of := pv.Spec.ClaimRef
	return of != nil && of.Namespace == claim.Namespace && of.Name == claim.Name && (of.UID == "" || of.UID == claim.UID)
}
