package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CacheAdoption asks csi-controller to make a volume of an RBD image that exists, without copying it.
// csi-controller checks the image, places the volume and makes its CacheVolume. Whoever has made the
// object deletes it once its phase is final.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ca
// +kubebuilder:printcolumn:name="Pool",type=string,JSONPath=`.spec.pool`
// +kubebuilder:printcolumn:name="Image",type=string,JSONPath=`.spec.image`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.status.volume`
// +kubebuilder:printcolumn:name="Message",type=string,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CacheAdoption struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a CacheAdoption cannot be changed: create another"
	Spec   CacheAdoptionSpec   `json:"spec"`
	Status CacheAdoptionStatus `json:"status,omitempty"`
}

// CacheAdoptionSpec names the image, and says what kind of volume to make of it.
type CacheAdoptionSpec struct {
	// ClusterID names the Ceph cluster.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	ClusterID string `json:"clusterID"`

	// Pool holds the image. RADOS namespaces are not supported.
	//
	// +required
	// +kubebuilder:validation:MaxLength=128
	// +kubebuilder:validation:Pattern=`^[^/@]+$`
	Pool string `json:"pool"`

	// Image is the RBD image's name.
	//
	// +required
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[^/@]+$`
	Image string `json:"image"`

	// StorageClass is a StorageClass of this driver, whose parameters for the cache and whose groups
	// count. Not set: the defaults count.
	//
	// +kubebuilder:validation:MaxLength=253
	StorageClass string `json:"storageClass,omitempty"`

	// Group is the only NodeGroup that the volume may be placed in. Not set: any.
	//
	// +kubebuilder:validation:MaxLength=253
	Group string `json:"group,omitempty"`

	// Claim is the claim that will get the volume.
	Claim *ClaimReference `json:"claim,omitempty"`

	// FormatIfBlank lets csi-node make a filesystem if the image reads as zeros.
	FormatIfBlank bool `json:"formatIfBlank,omitempty"`

	// DryRun: check only.
	DryRun bool `json:"dryRun,omitempty"`
}

// AdoptionPhase is how far a CacheAdoption is.
type AdoptionPhase string

// Phases of a CacheAdoption. An empty phase is Pending.
const (
	AdoptionPending AdoptionPhase = "Pending" // something does not answer: csi-controller tries again
	AdoptionChecked AdoptionPhase = "Checked" // a dry run, and the image can be adopted
	AdoptionDone    AdoptionPhase = "Adopted" // the CacheVolume is there
	AdoptionRefused AdoptionPhase = "Refused" // nothing was changed and nothing will be; the message says why
)

// CacheAdoptionStatus is the result of a CacheAdoption.
type CacheAdoptionStatus struct {
	Phase   AdoptionPhase `json:"phase,omitempty"`
	Message string        `json:"message,omitempty"`
	// Volume is the CacheVolume, and Group where it was placed. Not set after a dry run.
	Volume string `json:"volume,omitempty"`
	Group  string `json:"group,omitempty"`
	// SizeBytes is the size of the image, and CacheBytes that of the cache on each of two hosts.
	SizeBytes  int64 `json:"sizeBytes,omitempty"`
	CacheBytes int64 `json:"cacheBytes,omitempty"`
}

// Adoption says how a volume came to an image that was there before.
type Adoption struct {
	// Request is the UID of the CacheAdoption.
	//
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="request is immutable"
	Request string `json:"request"`
	// FormatIfBlank lets csi-node make a filesystem if the image reads as zeros. Otherwise it never
	// makes one: a blank image is an error then.
	FormatIfBlank bool `json:"formatIfBlank,omitempty"`
}

// CacheAdoptionList is a list of CacheAdoptions.
//
// +kubebuilder:object:root=true
type CacheAdoptionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CacheAdoption `json:"items"`
}
