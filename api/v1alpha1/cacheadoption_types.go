package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CacheAdoption asks csi-controller to make a volume of an RBD image that exists, without copying it.
// csi-controller checks the image, places the volume and makes its CacheVolume. With spec.rebuild it
// re-creates the lost records of a pool's volumes instead. Whoever has made the object deletes it once
// its phase is final.
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
//
// +kubebuilder:validation:XValidation:rule="has(self.image) || has(self.rebuild)",message="image is required"
// +kubebuilder:validation:XValidation:rule="!has(self.rebuild) || !has(self.storageClass)",message="rebuild goes without storageClass"
// +kubebuilder:validation:XValidation:rule="!has(self.rebuild) || !has(self.group)",message="rebuild goes without group"
// +kubebuilder:validation:XValidation:rule="!has(self.rebuild) || !has(self.claim)",message="rebuild goes without claim"
// +kubebuilder:validation:XValidation:rule="!has(self.rebuild) || !has(self.formatIfBlank)",message="rebuild formats nothing"
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

	// Image is the RBD image's name. With rebuild it may be left out: then it is all images of the pool.
	//
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[^/@]+$`
	Image string `json:"image,omitempty"`

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

	// Rebuild asks for the lost records of volumes, instead of a new volume.
	Rebuild *Rebuild `json:"rebuild,omitempty"`

	// DryRun: check only.
	DryRun bool `json:"dryRun,omitempty"`
}

// Rebuild asks csi-controller to re-create the CacheVolumes of a pool's images, after Kubernetes has
// lost them: from what the images' metadata says and from what the hosts answer. A volume of which
// these do not prove where its data is gets none that can be attached. A record that knows less than
// these, because an older etcd was restored, is brought up to date.
//
// +kubebuilder:validation:XValidation:rule="!has(self.useCopy) || !has(self.after)",message="useCopy is for one image"
type Rebuild struct {
	// FromKubernetesCluster is the mark of another Kubernetes cluster, whose images are taken over:
	// the UID of its namespace kube-system. That cluster must be gone for good.
	//
	// +kubebuilder:validation:MaxLength=63
	FromKubernetesCluster string `json:"fromKubernetesCluster,omitempty"`

	// UseCopy is the node whose copy counts, by a person's decision, where nothing proves which one is
	// current. It needs image.
	//
	// +kubebuilder:validation:MaxLength=253
	UseCopy string `json:"useCopy,omitempty"`

	// After leaves out the images up to this name. A request looks at no more than a hundred images;
	// status.next is the value for the next request.
	//
	// +kubebuilder:validation:MaxLength=253
	After string `json:"after,omitempty"`
}

// RebuildOutcome says what became, or would become, of one image's volume.
type RebuildOutcome string

// Outcomes of a rebuild.
const (
	// RebuildProposed: the record can be made. This was a dry run.
	RebuildProposed RebuildOutcome = "Proposed"
	// RebuildDone: the record is made.
	RebuildDone RebuildOutcome = "Rebuilt"
	// RebuildRecorded: there is a record, and image and hosts know of no later attachment.
	RebuildRecorded RebuildOutcome = "Recorded"
	// RebuildWaits: a host has to answer first, or somebody still uses the image. No record is made.
	RebuildWaits RebuildOutcome = "Waits"
	// RebuildConflict: everybody has answered, and nothing proves which copy is current. The record has
	// the phase Conflict.
	RebuildConflict RebuildOutcome = "Conflict"
	// RebuildRefused: no record can be made of what is known.
	RebuildRefused RebuildOutcome = "Refused"
)

// RebuiltVolume is one image, and the record that was or would be made for it.
type RebuiltVolume struct {
	Image   string         `json:"image"`
	Outcome RebuildOutcome `json:"outcome"`
	// Message says why no record is made or why it cannot be attached, and what helps; or what is to be
	// known about a record.
	Message string `json:"message,omitempty"`

	Volume string `json:"volume,omitempty"`
	// Kubernetes is the cluster with which the image is marked.
	Kubernetes string `json:"kubernetes,omitempty"`

	Group     string    `json:"group,omitempty"`
	SizeBytes int64     `json:"sizeBytes,omitempty"`
	Authority Authority `json:"authority,omitempty"`
	Epoch     int64     `json:"epoch,omitempty"`
	// Replicas are the nodes with the cache, and Outdated those of them whose copy does not count.
	//
	// +listType=atomic
	Replicas []string `json:"replicas,omitempty"`
	// +listType=atomic
	Outdated []string `json:"outdated,omitempty"`
	// DirtyBytes is the most that a host says to be dirty; not set if none knows.
	DirtyBytes *int64 `json:"dirtyBytes,omitempty"`

	// Claim (NAMESPACE/NAME) and what follows is what the image knows of the volume's use in Kubernetes, as
	// of its last attachment.
	Claim            string `json:"claim,omitempty"`
	PersistentVolume string `json:"persistentVolume,omitempty"`
	StorageClass     string `json:"storageClass,omitempty"`
	FSType           string `json:"fsType,omitempty"`
	// VolumeMode and AccessMode are those of the PersistentVolume; not set if a version wrote the note
	// that did not note them.
	VolumeMode string `json:"volumeMode,omitempty"`
	AccessMode string `json:"accessMode,omitempty"`
	// +listType=atomic
	MountOptions []string `json:"mountOptions,omitempty"`
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

	// Images are the results of a rebuild, sorted by name. The phase is Adopted also if some of them
	// were not rebuilt.
	//
	// +listType=map
	// +listMapKey=image
	Images []RebuiltVolume `json:"images,omitempty"`
	// Next is the value of spec.rebuild.after for the images that follow; empty if there are none.
	Next string `json:"next,omitempty"`
	// OtherPools are pools other than spec.pool of which hosts have replicas.
	//
	// +listType=set
	OtherPools []string `json:"otherPools,omitempty"`
	// SilentNodes are hosts of NodeGroups that did not answer. They may have copies of which no image says
	// anything.
	//
	// +listType=set
	SilentNodes []string `json:"silentNodes,omitempty"`
}

// Adoption says how a volume came to an image that was there before. A record that was set back by a restore of etcd, and
// brought up to date, gets one that only forbids to make a filesystem.
type Adoption struct {
	// Request is the UID of the CacheAdoption; empty if the volume was not made by one.
	//
	// +required
	// +kubebuilder:validation:MaxLength=63
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="request is immutable"
	Request string `json:"request"`
	// FormatIfBlank lets csi-node make a filesystem if the image reads as zeros. Otherwise it never
	// makes one: a blank image is an error then.
	FormatIfBlank bool `json:"formatIfBlank,omitempty"`
	// Rebuilt: the volume was there before, too, and its record was lost and re-created.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="rebuilt is immutable"
	Rebuilt bool `json:"rebuilt,omitempty"`
}

// CacheAdoptionList is a list of CacheAdoptions.
//
// +kubebuilder:object:root=true
type CacheAdoptionList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CacheAdoption `json:"items"`
}
