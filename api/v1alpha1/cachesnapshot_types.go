package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CacheSnapshot is the record of one snapshot of a volume. The snapshot itself is in Ceph, of the
// volume's image. The record is written before the first side effect. Its name is the CSI snapshot
// id.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cs
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Size",type=string,JSONPath=`.status.summary.size`
// +kubebuilder:printcolumn:name="Taken",type=date,JSONPath=`.status.taken`
// +kubebuilder:printcolumn:name="Pool",type=string,priority=1,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Image",type=string,priority=1,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Snapshot",type=string,priority=1,JSONPath=`.spec.snapshot`
// +kubebuilder:printcolumn:name="Group",type=string,priority=1,JSONPath=`.spec.group.name`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CacheSnapshot struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a CacheSnapshot cannot be changed: create another"
	Spec   CacheSnapshotSpec   `json:"spec"`
	Status CacheSnapshotStatus `json:"status,omitempty"`
}

// CacheSnapshotSpec names the volume and the place of the snapshot in Ceph.
type CacheSnapshotSpec struct {
	// Volume is the name of the CacheVolume.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume"`

	// ClusterID names the Ceph cluster.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ClusterID string `json:"clusterID"`

	// Pool holds the volume's image.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=128
	Pool string `json:"pool"`

	// Image is the RBD image's name.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Image string `json:"image"`

	// Snapshot is the name of the image's snapshot.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Snapshot string `json:"snapshot"`

	// Group is set for a snapshot that was taken together with those of other volumes.
	Group *SnapshotGroup `json:"group,omitempty"`
}

// MaxSnapshotGroup is how many volumes one group snapshot may have.
const MaxSnapshotGroup = 64

// LabelSnapshotGroup is a label of the CacheSnapshots of a group snapshot, with the group's name.
const LabelSnapshotGroup = "escache.io/snapshot-group"

// SnapshotGroup is a group snapshot: snapshots of several volumes, all of one moment. Either all of
// them are taken or none is.
type SnapshotGroup struct {
	// Name is the CSI id of the group snapshot.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Name string `json:"name"`

	// Volumes are the names of the CacheVolumes, sorted.
	//
	// +required
	// +listType=set
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:MaxItems=64
	// +kubebuilder:validation:items:MaxLength=253
	Volumes []string `json:"volumes"`
}

// CacheSnapshotStatus describes the snapshot once it is taken.
type CacheSnapshotStatus struct {
	// Taken is the time of the snapshot. If it is not set, there is no snapshot yet, or an
	// interrupted call left one that must not be used.
	Taken *metav1.Time `json:"taken,omitempty"`
	// SizeBytes is the size of the image at that time.
	SizeBytes int64 `json:"sizeBytes,omitempty"`
	// GroupSizesBytes are the sizes of the images of all volumes of a group snapshot, in the order of
	// spec.group.volumes. The record of the first volume has them. Once they are written, all
	// snapshots of the group are taken, also those whose record does not say so yet.
	//
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=64
	GroupSizesBytes []int64 `json:"groupSizesBytes,omitempty"`

	Summary CacheSnapshotSummary `json:"summary,omitempty"`
}

// CacheSnapshotSummary is shown by `kubectl get`. No program reads it.
type CacheSnapshotSummary struct {
	Size string `json:"size,omitempty"`
}

// CacheSnapshotList is a list of CacheSnapshots.
//
// +kubebuilder:object:root=true
type CacheSnapshotList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CacheSnapshot `json:"items"`
}
