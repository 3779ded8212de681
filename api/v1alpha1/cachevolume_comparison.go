package v1alpha1

// RecordComparison is a question of the node that has the volume, and csi-controller's answer: is the record as
// new as the image's metadata? The node asks right before it connects the device. Every question is a new
// one, so an answer that a restored etcd brings back is none.
type RecordComparison struct {
	// Question is a text that the node has made up.
	//
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=64
	Question string `json:"question"`
	// Answered is the question that csi-controller has answered.
	Answered string `json:"answered,omitempty"`
	// Behind says why the node may not connect the device: the image's metadata is newer. If it is empty, the
	// node may.
	Behind string `json:"behind,omitempty"`
}

// Waits reports whether the node waits for an answer. A volume of which nobody has asked has nil.
func (c *RecordComparison) Waits() bool { return c != nil && c.Question != c.Answered }
