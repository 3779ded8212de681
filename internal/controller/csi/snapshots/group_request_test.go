package snapshots_test

import (
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

func TestBadRequestsForGroupSnapshotsChangeNothing(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	far := w.Create("far")
	far.Spec.ClusterID = "another"
	csitest.Must(t, w.API.Update(t.Context(), far))
	w.Images.Taking = func(r volumes.SnapshotRef) { t.Errorf("%s is taken", r) }
	var many []string
	for n := range v1alpha1.MaxSnapshotGroup + 1 {
		many = append(many, fmt.Sprint("v", n))
	}
	class := func(parameters map[string]string) *csi.CreateVolumeGroupSnapshotRequest {
		r := csitest.GroupRequest("g", "a", "b")
		r.Parameters = parameters
		return r
	}
	for _, c := range []struct {
		name  string
		ask   *csi.CreateVolumeGroupSnapshotRequest
		code  codes.Code
		words []string
	}{
		{"no name", csitest.GroupRequest("", "a"), codes.InvalidArgument, []string{"name"}},
		{"no volumes", csitest.GroupRequest("g"), codes.InvalidArgument, []string{"source volume ids"}},
		{"an empty id", csitest.GroupRequest("g", "a", ""), codes.InvalidArgument, []string{"source volume id"}},
		{"a volume twice", csitest.GroupRequest("g", "a", "b", "a"), codes.InvalidArgument, []string{"volume a", "twice"}},
		{"too many volumes", csitest.GroupRequest("g", many...), codes.InvalidArgument, []string{"65", "64"}},
		{"another parameter", class(map[string]string{"pool": "x"}), codes.InvalidArgument, []string{`"pool"`, "maxSeconds"}},
		{"no number", class(map[string]string{"maxSeconds": "5s"}), codes.InvalidArgument, []string{"maxSeconds", "5 to 40"}},
		{"too short", class(map[string]string{"maxSeconds": "4"}), codes.InvalidArgument, []string{"maxSeconds", "5 to 40"}},
		{"too long", class(map[string]string{"maxSeconds": "41"}), codes.InvalidArgument, []string{"maxSeconds", "5 to 40"}},
		{"an unknown volume", csitest.GroupRequest("g", "a", "nothing"), codes.NotFound, []string{"nothing"}},
		{"of two Ceph clusters", csitest.GroupRequest("g", "a", "far"), codes.FailedPrecondition,
			[]string{"volume far", "another", "volume a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.Service.CreateVolumeGroupSnapshot(t.Context(), c.ask)
			csitest.Wants(t, err, c.code, c.words...)
			w.noneOf(held)
		})
	}
	_, err := w.Service.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{})
	csitest.Wants(t, err, codes.InvalidArgument, "group snapshot id")
	_, err = w.Service.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{})
	csitest.Wants(t, err, codes.InvalidArgument, "group snapshot id")
	_, err = w.Service.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "../x"})
	csitest.Wants(t, err, codes.NotFound, "../x")
}
