package csitest

import (
	"fmt"
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

// FromVolume asks for a clone of a volume.
func FromVolume(name, source string) *csi.CreateVolumeRequest {
	r := CreateRequest(name)
	r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{
		Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: source},
	}}
	return r
}

// ImageNamed is the image of a volume.
func ImageNamed(volume string) volumes.ImageRef {
	return volumes.ImageRef{ClusterID: "ceph", Pool: "rbd", Image: "escache-" + volume}
}

// GroupRequest asks for a group snapshot.
func GroupRequest(name string, ids ...string) *csi.CreateVolumeGroupSnapshotRequest {
	return &csi.CreateVolumeGroupSnapshotRequest{Name: name, SourceVolumeIds: ids}
}

// FromSnapshot asks for a volume of a snapshot.
func FromSnapshot(name, snapshot string) *csi.CreateVolumeRequest {
	r := CreateRequest(name)
	r.VolumeContentSource = &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Snapshot{
		Snapshot: &csi.VolumeContentSource_SnapshotSource{SnapshotId: snapshot},
	}}
	return r
}

// Other is the node of the group g1 that has no replica.
func Other(v *v1alpha1.CacheVolume) string {
	for _, n := range []string{"n1", "n2", "n3"} {
		if !v.Spec.HasReplica(n) {
			return n
		}
	}
	return ""
}

// Ref is the volume as its hosts know it.
func Ref(v *v1alpha1.CacheVolume) escache.VolumeRef {
	return cachevolume.Ref(v)
}

// Capability is that of a volume with a filesystem for one node.
func Capability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
	}
}

// CreateRequest asks for a volume of 1 GiB with a cache of 64 MiB.
func CreateRequest(name string) *csi.CreateVolumeRequest {
	return &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: GiB}, VolumeCapabilities: []*csi.VolumeCapability{Capability()},
		Parameters: map[string]string{"clusterID": "ceph", "pool": "rbd", "cacheSize": "64Mi"},
	}
}

// Must ends the test if there is an error.
func Must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Wants fails unless the error has the code and its text all of the words.
func Wants(t *testing.T, err error, code codes.Code, words ...string) {
	t.Helper()
	if got := volumes.Code(err); got != code {
		t.Fatalf("got %s, want %s: %v", got, code, err)
	}
	for _, word := range words {
		if !strings.Contains(fmt.Sprint(err), word) {
			t.Errorf("the error does not say %q: %v", word, err)
		}
	}
}
