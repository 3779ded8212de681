package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CacheDiscard accepts the loss of what only the cache of a volume has, when every current copy is lost. The volume is then
// what Ceph has of it. It is a kind of its own so that the right to make one is given by itself, and so that it stays as the
// record of who lost what, when: it is never removed by the driver.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=cd
// +kubebuilder:printcolumn:name="Volume",type=string,JSONPath=`.spec.volume`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="By",type=string,JSONPath=`.spec.requestedBy`
// +kubebuilder:printcolumn:name="At-Stake",type=string,JSONPath=`.status.summary.atStake`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.nodes`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CacheDiscard struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a CacheDiscard cannot be changed: make another"
	Spec   CacheDiscardSpec   `json:"spec"`
	Status CacheDiscardStatus `json:"status,omitempty"`
}

// CacheDiscardSpec is the decision.
//
// +kubebuilder:validation:XValidation:rule="self.confirm == self.volume",message="confirm is the volume's name, typed once more"
type CacheDiscardSpec struct {
	// Volume is the name of the CacheVolume.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume"`

	// Confirm is the volume's name as a person has typed it.
	//
	// +required
	// +kubebuilder:validation:MaxLength=253
	Confirm string `json:"confirm"`

	// Epoch is the CacheVolume's status.epoch that the decision was made by. With another one the discard is refused: the
	// volume has been attached since.
	//
	// +required
	// +kubebuilder:validation:Minimum=1
	Epoch int64 `json:"epoch"`

	// RequestedBy is the Kubernetes user who makes this object. The chart's ValidatingAdmissionPolicy holds it to the truth.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=512
	RequestedBy string `json:"requestedBy"`

	// Reason is for those who read this later.
	//
	// +kubebuilder:validation:MaxLength=1024
	Reason string `json:"reason,omitempty"`
}

// DiscardPhase is what became of a CacheDiscard.
type DiscardPhase string

// Phases of a CacheDiscard. An empty phase is Pending.
const (
	DiscardPending   DiscardPhase = "Pending"   // not decided, or something does not answer: it is tried again
	DiscardDone      DiscardPhase = "Discarded" // the truth is in Ceph now
	DiscardRefused   DiscardPhase = "Refused"   // nothing was changed, and nothing will be; the message says why
	DiscardCondition              = "Complete"  // true once the phase is final
)

// CacheDiscardStatus is what became of it.
type CacheDiscardStatus struct {
	Phase   DiscardPhase `json:"phase,omitempty"`
	Message string       `json:"message,omitempty"`

	// Nodes had the only current copies. They are wiped when their hosts are back.
	//
	// +listType=atomic
	Nodes []string `json:"nodes,omitempty"`
	// BytesAtStake were dirty when that was last reported; more may have been written after that.
	BytesAtStake int64 `json:"bytesAtStake,omitempty"`

	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	Summary CacheDiscardSummary `json:"summary,omitempty"`
}

// CacheDiscardSummary is for people who read `kubectl get`; nothing decides by it.
type CacheDiscardSummary struct {
	AtStake string `json:"atStake,omitempty"`
}

// CacheDiscardList is a list of CacheDiscards.
//
// +kubebuilder:object:root=true
type CacheDiscardList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CacheDiscard `json:"items"`
}
