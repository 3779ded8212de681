package v1alpha1

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// NodeGroup is a set of 3 to 16 NVMe hosts. A volume of the group has its two replicas on two of
// them.
//
// +kubebuilder:object:root=true
// +kubebuilder:subresource:status
// +kubebuilder:resource:scope=Cluster,shortName=ng
// +kubebuilder:printcolumn:name="Ready",type=string,JSONPath=`.status.summary.ready`
// +kubebuilder:printcolumn:name="Degraded",type=string,JSONPath=`.status.conditions[?(@.type=="Degraded")].status`
// +kubebuilder:printcolumn:name="Cordoned",type=boolean,JSONPath=`.spec.cordoned`
// +kubebuilder:printcolumn:name="Volumes",type=integer,JSONPath=`.status.volumes`
// +kubebuilder:printcolumn:name="Cache",type=string,JSONPath=`.status.summary.cache`
// +kubebuilder:printcolumn:name="Dirty",type=string,JSONPath=`.status.summary.dirty`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.summary.nodes`
// +kubebuilder:printcolumn:name="Message",type=string,priority=1,JSONPath=`.status.conditions[?(@.type=="Ready")].message`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type NodeGroup struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// +required
	Spec   NodeGroupSpec   `json:"spec"`
	Status NodeGroupStatus `json:"status,omitempty"`
}

// NodeGroupSpec says which nodes belong together.
type NodeGroupSpec struct {
	// Nodes are the names of 3 to 16 different Kubernetes nodes. If several groups name a node, it
	// belongs to the oldest. One change may add nodes, and take away or replace one.
	//
	// +required
	// +listType=atomic
	// +kubebuilder:validation:MinItems=3
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	// +kubebuilder:validation:XValidation:rule="self.all(x, self.exists_one(y, x == y))",message="the nodes of a group are different ones"
	// +kubebuilder:validation:XValidation:rule="oldSelf.filter(x,!(x in self)).size()<=1",message="take away or replace one node at a time"
	Nodes []string `json:"nodes"`

	// Cordoned keeps new volumes off this group. Existing volumes stay and work.
	Cordoned bool `json:"cordoned,omitempty"`

	// CordonedNodes keeps new replicas off these members, for example while a host is evacuated.
	// Existing replicas stay and work.
	//
	// +listType=set
	// +kubebuilder:validation:MaxItems=16
	// +kubebuilder:validation:items:MinLength=1
	// +kubebuilder:validation:items:MaxLength=253
	CordonedNodes []string `json:"cordonedNodes,omitempty"`
}

// NodeGroupStatus is the group as csi-controller last saw it.
type NodeGroupStatus struct {
	// +listType=map
	// +listMapKey=type
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// +listType=map
	// +listMapKey=name
	Members []NodeGroupMember `json:"members,omitempty"`

	// StaleReplicas are replicas that no volume needs any more, on nodes that could not be reached
	// at that time. They are removed when the node answers. They are forgotten if the node is in no group
	// and Kubernetes does not know it any more. While the node is in the group, their port, minor number
	// and space stay reserved.
	//
	// +listType=atomic
	StaleReplicas []StaleReplica `json:"staleReplicas,omitempty"`

	// LeftFences are fenced Ceph clients of volumes whose records are gone. Each leaves Ceph's blocklist when
	// its host answers that the map is gone.
	//
	// +listType=atomic
	LeftFences []LeftFence `json:"leftFences,omitempty"`

	// Volumes is the number of CacheVolumes in this group.
	Volumes int32 `json:"volumes,omitempty"`

	Summary NodeGroupSummary `json:"summary,omitempty"`
}

// NodeGroupMember is one node of the group as its escached last reported it.
type NodeGroupMember struct {
	// +required
	Name string `json:"name"`
	// Ready is true while new replicas can be placed here.
	Ready bool `json:"ready"`
	// Message says why the member is not ready.
	Message string `json:"message,omitempty"`
	// Version is the version of escached on the node.
	Version             string `json:"version,omitempty"`
	CacheCapacityBytes  int64  `json:"cacheCapacityBytes,omitempty"`
	CacheAllocatedBytes int64  `json:"cacheAllocatedBytes,omitempty"`
	// ConnectedBytes is the size of the caches that are connected on the node. CacheMemoryBytes is what
	// they take of its memory.
	ConnectedBytes   int64 `json:"connectedBytes,omitempty"`
	CacheMemoryBytes int64 `json:"cacheMemoryBytes,omitempty"`
	// ConnectableBytes is the size of the caches for which the node has memory if they are connected at the
	// same time. It goes up and down with what else runs there, and is updated together with other
	// fields, at the latest after a minute. Absent means that the node sets no limit.
	ConnectableBytes *int64 `json:"connectableBytes,omitempty"`
	// Engines are the cache engines that the node can run, beside writecache, which every node has. A
	// volume of another engine is placed on nodes that have it.
	//
	// +listType=atomic
	Engines []string `json:"engines,omitempty"`
	// CertificateEnd is when the certificate ends that escached shows on the node.
	CertificateEnd *metav1.Time `json:"certificateEnd,omitempty"`
	// DirtyBytes is updated at most every 10 s. The metrics have the current value.
	DirtyBytes int64 `json:"dirtyBytes,omitempty"`
	// Volumes is the number of replicas on the node. Primaries is how many of them are connected
	// there.
	Volumes   int32 `json:"volumes,omitempty"`
	Primaries int32 `json:"primaries,omitempty"`
	// LastSeen is when escached last answered. It is updated every minute, and whenever another
	// field changes, also when escached stops answering.
	LastSeen *metav1.Time `json:"lastSeen,omitempty"`
}

// StaleReplica is a replica that no volume needs any more.
type StaleReplica struct {
	Node string `json:"node"`
	// Volume is the name of the CacheVolume it belonged to, which may be gone.
	Volume string `json:"volume"`
	// ClusterID names the Ceph cluster of its image. It is empty in entries of earlier versions.
	ClusterID string `json:"clusterID,omitempty"`
	Pool      string `json:"pool"`
	Image     string `json:"image"`
	// CacheBytes, Port and Minor stay reserved until the replica is gone.
	CacheBytes int64 `json:"cacheBytes"`
	Port       int32 `json:"port"`
	Minor      int32 `json:"minor"`
	// Epoch is the newest attachment of which the replica was given up. If its host has seen a later
	// one, the replica stays.
	Epoch int64 `json:"epoch,omitempty"`
	// Since is when the replica was given up.
	Since metav1.Time `json:"since"`
}

// LeftFence is a fenced Ceph client of a volume whose record is gone.
type LeftFence struct {
	// Volume is the name of the CacheVolume that the client was fenced for.
	Volume    string       `json:"volume"`
	ClusterID string       `json:"clusterID"`
	Pool      string       `json:"pool"`
	Image     string       `json:"image"`
	Client    FencedClient `json:"client"`
}

// NodeGroupSummary is shown by `kubectl get`. No program reads it.
type NodeGroupSummary struct {
	Ready string `json:"ready,omitempty"`
	Cache string `json:"cache,omitempty"`
	Dirty string `json:"dirty,omitempty"`
	// Nodes are the members: a column cannot show a list but as JSON.
	Nodes string `json:"nodes,omitempty"`
}

// Condition types of a NodeGroup.
const (
	// GroupReady is true while new volumes can be placed: at least two members are ready and the
	// group is not cordoned.
	GroupReady = "Ready"
	// GroupDegraded is true while any member is not ready. The message says which ones and why.
	GroupDegraded = "Degraded"
	// GroupRedundant is false while volumes lack their second replica because a member has been
	// gone for long. The message says which member, and how far the repair is.
	GroupRedundant = "Redundant"
	// GroupDeletionBlocked is there, and true, while somebody has deleted the group and something needs
	// it. The message says what, and what to do. Nothing new is placed in the group; what is there
	// works.
	GroupDeletionBlocked = "DeletionBlocked"
	// GroupFormerMembers is there, and true, while hosts that are not in the group any more have
	// replicas of its volumes. The message says which, and what follows.
	GroupFormerMembers = "FormerMembersHaveReplicas"
)

// Reasons of GroupDeletionBlocked.
const (
	// ReasonVolumesLeft: volumes are in the group.
	ReasonVolumesLeft = "VolumesLeft"
	// ReasonReplicasLeft: no volume is, and hosts have replicas that wait to be removed.
	ReasonReplicasLeft = "ReplicasLeft"
)

// ReasonReplicasOutside is the reason of GroupFormerMembers.
const ReasonReplicasOutside = "ReplicasOutsideTheGroup"

// Closed reports whether nothing new may be placed in the group.
func (g *NodeGroup) Closed() bool { return g.Spec.Cordoned || !g.DeletionTimestamp.IsZero() }

// NodeGroupList is a list of NodeGroups.
//
// +kubebuilder:object:root=true
type NodeGroupList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []NodeGroup `json:"items"`
}
