package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// CacheFlush writes the dirty data of one or more volumes back to Ceph, or gives their free space back to Ceph.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,path=cacheflushes,shortName=cf
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Phase",type=string,JSONPath=`.status.phase`
// +kubebuilder:printcolumn:name="Percent",type=integer,JSONPath=`.status.percent`
// +kubebuilder:printcolumn:name="Left",type=string,JSONPath=`.status.summary.left`
// +kubebuilder:printcolumn:name="Rate",type=string,priority=1,JSONPath=`.status.summary.rate`
// +kubebuilder:printcolumn:name="Remaining",type=string,priority=1,JSONPath=`.status.summary.remaining`
// +kubebuilder:printcolumn:name="Volumes",type=string,JSONPath=`.status.summary.volumes`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Complete")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type CacheFlush struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="a CacheFlush cannot be changed: delete it and create another"
	Spec   CacheFlushSpec   `json:"spec"`
	Status CacheFlushStatus `json:"status,omitempty"`
}

// FlushMode says what is brought to Ceph.
//
// +kubebuilder:validation:Enum=Flush;Drain;Trim
type FlushMode string

// Modes of a CacheFlush.
const (
	// FlushModeFlush writes back the data that is dirty now.
	FlushModeFlush FlushMode = "Flush"
	// FlushModeDrain also sends new writes straight to Ceph, until the volume moves or the
	// CacheFlush is deleted.
	FlushModeDrain FlushMode = "Drain"
	// FlushModeTrim has the filesystem of one volume give its free space back to Ceph, after what is dirty. It is for
	// a volume that no pod has, and for one whose device takes discards where it is attached.
	FlushModeTrim FlushMode = "Trim"
)

// CacheFlushSpec names what to flush: exactly one of volume, persistentVolumeClaim, node and
// nodeGroup.
//
// +kubebuilder:validation:ExactlyOneOf=volume;persistentVolumeClaim;node;nodeGroup
// +kubebuilder:validation:XValidation:rule="self.mode != 'Trim' || has(self.volume) || has(self.persistentVolumeClaim)",message="Trim is for one volume"
// +kubebuilder:validation:XValidation:rule="!has(self.secondCopies) || !self.secondCopies || has(self.node)",message="name the node"
// +kubebuilder:validation:XValidation:rule="!has(self.secondCopies) || !self.secondCopies || self.mode == 'Drain'",message="only for Drain"
// +kubebuilder:validation:XValidation:rule="!has(self.moveSecondCopies) || !self.moveSecondCopies || has(self.secondCopies) && self.secondCopies",message="only with secondCopies"
type CacheFlushSpec struct {
	// Volume is the name of a CacheVolume.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Volume string `json:"volume,omitempty"`

	PersistentVolumeClaim *ClaimReference `json:"persistentVolumeClaim,omitempty"`

	// Node selects every volume attached to this node, and every dirty volume that no pod has and that
	// has a current copy there.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node,omitempty"`

	// SecondCopies selects also the volumes that have a replica on the node and are attached elsewhere.
	// They write through, so that they survive the loss of their host while this node is away. After
	// the deletion of the CacheFlush each of them writes back again once its copy here is current.
	SecondCopies bool `json:"secondCopies,omitempty"`

	// MoveSecondCopies gives those volumes another second copy, on another host of the group. Each of them
	// writes through until that copy is current, and then writes back again. If no other host can take the
	// copy, the volume goes on writing through. A csi-controller that does so says it in the condition
	// MovesSecondCopies.
	MoveSecondCopies bool `json:"moveSecondCopies,omitempty"`

	// NodeGroup selects every volume of this group that is attached, and every dirty one that no pod has.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	NodeGroup string `json:"nodeGroup,omitempty"`

	// +kubebuilder:default=Flush
	Mode FlushMode `json:"mode,omitempty"`

	// Parallel is how many volumes of one node are written back at once.
	//
	// +kubebuilder:default=2
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=16
	Parallel int32 `json:"parallel,omitempty"`

	// BytesPerSecond limits the average write-back rate of each node. The next volume starts only
	// when the average is below the limit; a volume that has started is written back as fast as
	// Ceph allows. 0 means no limit.
	//
	// +kubebuilder:validation:Minimum=0
	BytesPerSecond int64 `json:"bytesPerSecond,omitempty"`

	// TimeoutSeconds is how long a Flush or a Trim tries. Volumes that are not clean by then, for example
	// because a pod keeps writing, count as failed. A Drain goes on until it is deleted.
	//
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=1
	TimeoutSeconds int32 `json:"timeoutSeconds,omitempty"`

	// TTLSecondsAfterFinished is how long a finished Flush or Trim is kept. A Drain stays until it is
	// deleted.
	//
	// +kubebuilder:default=3600
	// +kubebuilder:validation:Minimum=0
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// ClaimReference names a PersistentVolumeClaim.
type ClaimReference struct {
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=63
	Namespace string `json:"namespace"`
	// +required
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	Name string `json:"name"`
}

// FlushPhase is how far a CacheFlush is.
type FlushPhase string

// Phases of a CacheFlush.
const (
	FlushPending  FlushPhase = "Pending"
	FlushRunning  FlushPhase = "Running"
	FlushDrained  FlushPhase = "Drained"  // clean, and new writes go to Ceph
	FlushComplete FlushPhase = "Complete" // everything that was dirty is in Ceph, or everything is trimmed
	FlushFailed   FlushPhase = "Failed"   // some volumes could not be flushed; the message names them
)

// FlushConditionComplete is true once every selected volume is clean. Until then its message says
// what the CacheFlush waits for.
const FlushConditionComplete = "Complete"

// FlushConditionMoves is true once csi-controller has taken up what moveSecondCopies asks for. An older
// csi-controller does not know that field, and never writes this condition.
const FlushConditionMoves = "MovesSecondCopies"

// CacheFlushStatus is the progress of a CacheFlush.
type CacheFlushStatus struct {
	Phase FlushPhase `json:"phase,omitempty"`
	// TotalBytes were dirty at the start, LeftBytes are dirty now. Of a Trim they are what is to be looked through.
	TotalBytes int64 `json:"totalBytes,omitempty"`
	LeftBytes  int64 `json:"leftBytes,omitempty"`
	Percent    int32 `json:"percent,omitempty"`
	// BytesPerSecond is the current write-back rate; RemainingSeconds is the time left at this
	// rate.
	BytesPerSecond   int64 `json:"bytesPerSecond,omitempty"`
	RemainingSeconds int64 `json:"remainingSeconds,omitempty"`

	// +listType=map
	// +listMapKey=name
	Volumes []FlushedVolume `json:"volumes,omitempty"`

	StartTime      *metav1.Time `json:"startTime,omitempty"`
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	Summary CacheFlushSummary `json:"summary,omitempty"`
}

// FlushedVolume is one volume's progress.
type FlushedVolume struct {
	// +required
	Name string `json:"name"`
	// Claim is the "namespace/name" of the volume's PersistentVolumeClaim, for people only.
	Claim      string     `json:"claim,omitempty"`
	Node       string     `json:"node,omitempty"`
	Phase      FlushPhase `json:"phase,omitempty"`
	TotalBytes int64      `json:"totalBytes,omitempty"`
	LeftBytes  int64      `json:"leftBytes,omitempty"`
	// TrimmedBytes is what the filesystem has discarded since a Trim began. Ceph gives back whole objects only, and
	// what was discarded may have been free there already.
	TrimmedBytes *int64 `json:"trimmedBytes,omitempty"`
	// Message says why a volume could not be flushed, or what it waits for.
	Message string `json:"message,omitempty"`
}

// CacheFlushSummary is shown by `kubectl get`. No program reads it.
type CacheFlushSummary struct {
	Left      string `json:"left,omitempty"`
	Rate      string `json:"rate,omitempty"`
	Remaining string `json:"remaining,omitempty"`
	// Volumes is how many volumes are done, of how many.
	Volumes string `json:"volumes,omitempty"`
}

// FlushFinalizer keeps a CacheFlush until write-back is restored on the volumes that it drained, and no host has a
// volume any more to trim it.
const FlushFinalizer = "escache.io/flush"

// FlushOwner returns the owner that a CacheFlush uses for its write-through claim on a CacheVolume.
func FlushOwner(name string) string { return flushOwnerPrefix + name }

// FlushOfOwner returns the name of the CacheFlush that made a write-through claim. ok is false if
// something else made it.
func FlushOfOwner(owner string) (name string, ok bool) {
	return strings.CutPrefix(owner, flushOwnerPrefix)
}

const flushOwnerPrefix = "cacheflush/"

// CacheFlushList is a list of CacheFlushes.
//
// +kubebuilder:object:root=true
type CacheFlushList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []CacheFlush `json:"items"`
}
