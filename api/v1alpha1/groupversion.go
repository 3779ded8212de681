// Package v1alpha1 holds the Kubernetes types of escache.io: NodeGroup, CacheVolume, CacheSnapshot,
// ReadOnlyVolume, CacheFlush, CacheDiscard and CacheAdoption. All are cluster-scoped.
//
// Sizes are in bytes. `make generate` writes the deepcopy functions and the CRDs in
// charts/escache-csi/crds from these types.
//
// +kubebuilder:object:generate=true
// +groupName=escache.io
package v1alpha1

import (
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

//go:generate go tool -modfile=../../hack/tools/controller-gen/go.mod controller-gen object paths=.
//go:generate go tool -modfile=../../hack/tools/controller-gen/go.mod controller-gen crd paths=. output:dir=../../charts/escache-csi/crds

// GroupName is the API group of every type here.
const GroupName = "escache.io"

// DriverName is the name of the CSI driver in StorageClasses and CSINode objects.
const DriverName = "csi.escache.io"

// TopologyKey is the CSI topology key. Its value is the name of the node's NodeGroup.
const TopologyKey = "topology.escache.io/group"

// uncachedSuffix ends the names of the labels of [UncachedKey].
const uncachedSuffix = ".uncached.escache.io/allowed"

// UncachedKey is the label of Nodes outside a group on which volumes of the group may be attached without
// a cache. csi-controller sets it, with the value "true", while no host of the group takes pods. The
// PersistentVolume of a volume with uncachedFallback allows Nodes that have it.
func UncachedKey(group string) string { return group + uncachedSuffix }

// UncachedKeyOf returns the group of a label's name; false if it is no name of [UncachedKey].
func UncachedKeyOf(key string) (group string, is bool) { return strings.CutSuffix(key, uncachedSuffix) }

// AnnotationReplicationAddress on a Node is the IP address of its replication link, if that is not
// the node's InternalIP.
const AnnotationReplicationAddress = "escache.io/replication-address"

// AnnotationClaim on a CacheVolume is the "namespace/name" of the PersistentVolumeClaim that had it when it was
// last attached, or that it was created for. It is for people only.
const AnnotationClaim = "escache.io/claim"

// AnnotationRepair on a CacheVolume asks csi-controller to repair the volume now, also where it does so
// only later or not at all by itself. The value is who asks, for people only. csi-controller removes it
// when there is nothing left to do.
const AnnotationRepair = "escache.io/repair"

// AnnotationAttempt on a CacheSnapshot counts the repeated calls to take it. Each changes the record by that, so that an earlier
// call's write that the snapshot is taken fails if it comes late.
const AnnotationAttempt = "escache.io/attempt"

// Finalizer keeps a CacheVolume until its image and its replicas are gone.
const Finalizer = "escache.io/volume"

// SnapshotFinalizer keeps a CacheSnapshot until the snapshot in Ceph is gone.
const SnapshotFinalizer = "escache.io/snapshot"

// ReadOnlyFinalizer keeps a ReadOnlyVolume until its images are gone.
const ReadOnlyFinalizer = "escache.io/read-only-volume"

// GroupFinalizer keeps a NodeGroup while a volume is in it, or a host of it has a replica that waits to
// be removed. csi-controller sets it with the first volume and removes it after the last one.
const GroupFinalizer = "escache.io/nodegroup"

// GroupVersion returns the API group and version of these types.
func GroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: "v1alpha1"}
}

// AddToScheme registers these types with a scheme.
func AddToScheme(scheme *runtime.Scheme) error {
	scheme.AddKnownTypes(GroupVersion(),
		&NodeGroup{}, &NodeGroupList{}, &CacheVolume{}, &CacheVolumeList{}, &CacheFlush{}, &CacheFlushList{},
		&CacheDiscard{}, &CacheDiscardList{}, &CacheSnapshot{}, &CacheSnapshotList{},
		&CacheAdoption{}, &CacheAdoptionList{}, &ReadOnlyVolume{}, &ReadOnlyVolumeList{})
	metav1.AddToGroupVersion(scheme, GroupVersion())
	return nil
}
