// Package v1alpha1 holds the Kubernetes types of escache.io: NodeGroup, CacheVolume, CacheSnapshot, CacheFlush and CacheDiscard, all
// cluster-scoped.
//
// Sizes are bytes. The deepcopy functions and the CRDs in charts/escache-csi/crds are generated from here: `go generate ./api/v1alpha1`.
//
// +kubebuilder:object:generate=true
// +groupName=escache.io
package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:generate go tool -modfile=../../hack/tools/controller-gen/go.mod controller-gen object paths=. crd output:crd:dir=../../charts/escache-csi/crds

// GroupName is the API group of every type here.
const GroupName = "escache.io"

// DriverName is the CSI driver's name, as StorageClasses and CSINode objects carry it.
const DriverName = "csi.escache.io"

// TopologyKey is the CSI topology key; its value is the name of the node's group.
const TopologyKey = "topology.escache.io/group"

// AnnotationReplicationAddress on a Node is the IP address of its replication link, where that is not its InternalIP.
const AnnotationReplicationAddress = "escache.io/replication-address"

// AnnotationClaim on a CacheVolume is the "namespace/name" of the PersistentVolumeClaim it was made for. For people only.
const AnnotationClaim = "escache.io/claim"

// Finalizer keeps a CacheVolume until its image and replicas are gone.
const Finalizer = "escache.io/volume"

// SnapshotFinalizer keeps a CacheSnapshot until Ceph's snapshot is gone.
const SnapshotFinalizer = "escache.io/snapshot"

// GroupVersion returns the group and version of the types here.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}
}

// AddToScheme makes the types here known to a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(),
		&NodeGroup{}, &NodeGroupList{}, &CacheVolume{}, &CacheVolumeList{}, &CacheFlush{}, &CacheFlushList{},
		&CacheDiscard{}, &CacheDiscardList{}, &CacheSnapshot{}, &CacheSnapshotList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}
