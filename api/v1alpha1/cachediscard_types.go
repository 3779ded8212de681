package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CacheDiscard gives up the dirty data of a volume whose current copies are all lost. The volume
// then has the data that Ceph has. It is a kind of its own so that the right to create one can be
// granted separately. It stays as a record of who gave up what and when: the driver never deletes
// it.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cd
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="By",type=string,JSONPath=`.spec.requestedBy`
// +kubebuilder:printcolumn:name="At-Stake",type=string,JSONPath=`.status.summary.atStake`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.summary.nodes`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CacheDiscard struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a CacheDiscard cannot be changed: create another"
	Spec   CacheDiscardSpec   `json:"spec"`
	Status CacheDiscardStatus `json:"status,omitempty"`
}

// CacheDiscardSpec says which volume's dirty data to give up, and who decided that.
//
// +kubebuilder:validation:XValidation:rule="self.confirm == self.volume",message="confirm must repeat the volume's name"
type CacheDiscardSpec struct {
	// Volume is the name of the CacheVolume.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume"`

	// Confirm is the volume's name once more, typed by a person.
	//
	// +required
	// +kubebuilder:validation:MaxLength=253
	Confirm string `json:"confirm"`

	// Epoch is the CacheVolume's status.epoch when the decision was made. The discard is refused if
	// it differs now: the volume was attached in between.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`

	// RequestedBy is the Kubernetes user who creates this object. The chart's
	// ValidatingAdmissionPolicy refuses any other name.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	RequestedBy string `json:"requestedBy"`

	// Reason is a note for people who read this object later.
	//
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
}

// DiscardPhase is how far a CacheDiscard is.
type DiscardPhase string

// Phases of a CacheDiscard. An empty phase is Pending.
const (
	DiscardPending   DiscardPhase = "Pending"   // not decided yet, or something does not answer: csi-controller tries again
	DiscardDone      DiscardPhase = "Discarded" // authority is Ceph now
	DiscardRefused   DiscardPhase = "Refused"   // nothing was changed and nothing will be; the message says why
	DiscardCondition              = "Complete"  // true once the phase is final
)

// CacheDiscardStatus is the result of a CacheDiscard.
type CacheDiscardStatus struct {
	Phase   DiscardPhase `json:"phase,omitempty"`
	Message string       `json:"message,omitempty"`

	// Nodes held the only current copies. These copies are wiped when their hosts return.
	//
	// +listType=atomic
	Nodes []string `json:"nodes,omitempty"`
	// BytesAtStake is the dirty data in bytes when it was last reported. More may have been written
	// afterwards.
	BytesAtStake int64 `json:"bytesAtStake,omitempty"`

	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	Summary CacheDiscardSummary `json:"summary,omitempty"`
}

// DiscardedCache is a loss of acknowledged writes that was accepted by a CacheDiscard.
type DiscardedCache struct {
	// Request is the UID of the CacheDiscard, RequestedBy the user who created it.
	Request     string `json:"request"`
	RequestedBy string `json:"requestedBy"`
	// Nodes held the only current copies. BytesAtStake is their dirty data in bytes when it was
	// last reported.
	//
	// +listType=atomic
	Nodes        []string    `json:"nodes,omitempty"`
	BytesAtStake int64       `json:"bytesAtStake"`
	Epoch        int64       `json:"epoch"`
	Time         metav1.Time `json:"time"`
}

// CacheDiscardSummary is shown by `kubectl get`. No program reads it.
type CacheDiscardSummary struct {
	AtStake string `json:"atStake,omitempty"`
	// Nodes are status.nodes: a column cannot show a list but as JSON.
	Nodes string `json:"nodes,omitempty"`
}

// CacheDiscardList is a list of CacheDiscards.
//
// +kubebuilder:object:root=true
type CacheDiscardList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CacheDiscard `json:"items"`
}
