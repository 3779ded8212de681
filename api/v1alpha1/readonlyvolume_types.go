package v1alpha1

import (
	"crypto/sha256"
	"encoding/hex"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// ReadOnlyVolume is the record of a volume that pods on many nodes read at the same time and nobody
// writes to: that of a claim with ReadOnlyMany, made from a snapshot. It has no cache. Its name is the CSI
// volume id.
//
// Each node that has the volume gets an image of its own, a clone of the snapshot. The filesystem of a
// snapshot has a journal to replay, which takes writes: the node's kernel makes them in its own image.
// No two nodes share one, so no node waits for another one. The snapshot cannot be deleted while there is the
// record.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=rov
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.metadata.annotations.escache\.io/claim`
// +kubebuilder:printcolumn:name="Snapshot",type=string,JSONPath=`.spec.snapshot`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.summary.size`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.summary.nodes`
// +kubebuilder:printcolumn:name="Pool",type=string,priority=1,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Image",type=string,priority=1,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type ReadOnlyVolume struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a ReadOnlyVolume cannot be changed: create another"
	Spec   ReadOnlyVolumeSpec   `json:"spec"`
	Status ReadOnlyVolumeStatus `json:"status,omitempty"`
}

// ReadOnlyVolumeSpec names the snapshot, and the place of the nodes' images.
type ReadOnlyVolumeSpec struct {
	// ClusterID names the Ceph cluster.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ClusterID string `json:"clusterID"`

	// Pool holds the images, or only their headers if DataPool is set.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Pool string `json:"pool"`
	// +kubebuilder:validation:MaxLength=128
	DataPool string `json:"dataPool,omitempty"`

	// Image begins the names of the images.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Image string `json:"image"`

	// SizeBytes is the size of the images. It is at least that of the snapshot.
	//
	// +required
	// +kubebuilder:validation:Minimum=1048576
	// +kubebuilder:validation:Maximum=1125899906842624
	SizeBytes int64 `json:"sizeBytes"`

	// Layout of the images in Ceph.
	Layout *ImageLayout `json:"layout,omitempty"`

	// Snapshot is the name of the CacheSnapshot.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Snapshot string `json:"snapshot"`
}

// ReadOnlyVolumeStatus says which nodes have the volume.
type ReadOnlyVolumeStatus struct {
	// Copies are the nodes that have the volume, or are about to get or to lose it. A node is here before
	// its image is created, and until it is deleted.
	//
	// +listType=map
	// +listMapKey=node
	Copies []ReadOnlyCopy `json:"copies,omitempty"`

	Summary ReadOnlyVolumeSummary `json:"summary,omitempty"`
}

// ReadOnlyVolumeSummary is shown by `kubectl get`. No program reads it.
type ReadOnlyVolumeSummary struct {
	Size  string `json:"size,omitempty"`
	Nodes string `json:"nodes,omitempty"`
}

// ReadOnlyCopy is the image of one node.
type ReadOnlyCopy struct {
	Node string `json:"node"`
	// ImageID is Ceph's internal id of the image. While it is empty, the image may be missing or half made,
	// and must not be used.
	ImageID string `json:"imageID,omitempty"`
}

// ReadOnlyVolumeList is a list of ReadOnlyVolumes.
//
// +kubebuilder:object:root=true
type ReadOnlyVolumeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []ReadOnlyVolume `json:"items"`
}

// ImageOn returns the name of a node's image. It follows from the record, so that a node can give back
// what it has after the controller has forgotten the node.
func (v *ReadOnlyVolume) ImageOn(node string) string {
	const bytes = 6
	sum := sha256.Sum256([]byte(node))
	return v.Spec.Image + "-" + hex.EncodeToString(sum[:bytes])
}

// CopyOn returns a node's entry in the status, nil if it has none.
func (v *ReadOnlyVolume) CopyOn(node string) *ReadOnlyCopy {
	for i := range v.Status.Copies {
		if v.Status.Copies[i].Node == node {
			return &v.Status.Copies[i]
		}
	}
	return nil
}
