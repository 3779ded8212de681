package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// MoveTarget says where a volume is to go.
type MoveTarget struct {
	// Group is the NodeGroup that is to have the volume.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group"`
}

// VolumeMove describes a move to another group that has begun. The place in that group is taken.
type VolumeMove struct {
	// Group, Replicas, Port and Minor are what the spec gets.
	//
	// +required
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group"`
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MaxItems=2
	// +kubebuilder:validation:items:MaxLength=253
	Replicas []string `json:"replicas"`
	Port     int32    `json:"port"`
	Minor    int32    `json:"minor"`
	// Cleared is set once the replicas in the former group are removed, or on that group's list of those
	// that its hosts have to remove. Until then the move can be cancelled.
	Cleared bool `json:"cleared,omitempty"`
	// PersistentVolume is the PersistentVolume, as JSON, that has to be re-created because Kubernetes
	// does not let its node affinity change, and PersistentVolumeUID is the UID of the one before. Both
	// are empty if nothing has to be re-created.
	PersistentVolume    string `json:"persistentVolume,omitempty"`
	PersistentVolumeUID string `json:"persistentVolumeUID,omitempty"`
	// Since is when the move began.
	Since metav1.Time `json:"since"`
}
