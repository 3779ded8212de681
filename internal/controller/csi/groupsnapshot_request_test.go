package csi_test

import (
	"fmt"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

func TestBadRequestsForGroupSnapshotsChangeNothing(t *testing.T) {
	w := newWorld(t)
	held := w.three()
	far := w.create("far")
	far.Spec.ClusterID = "another"
	must(t, w.api.Update(t.Context(), far))
	log, _ := w.connected("log")
	log.Spec.CacheEngine = v1alpha1.CacheEngineLog
	must(t, w.api.Update(t.Context(), log))
	w.images.taking = func(r volumes.SnapshotRef) { t.Errorf("%s is taken", r) }
	var many []string
	for n := range v1alpha1.MaxSnapshotGroup + 1 {
		many = append(many, fmt.Sprint("v", n))
	}
	class := func(parameters map[string]string) *csi.CreateVolumeGroupSnapshotRequest {
		r := groupRequest("g", "a", "b")
		r.Parameters = parameters
		return r
	}
	for _, c := range []struct {
		name  string
		ask   *csi.CreateVolumeGroupSnapshotRequest
		code  codes.Code
		words []string
	}{
		{"no name", groupRequest("", "a"), codes.InvalidArgument, []string{"name"}},
		{"no volumes", groupRequest("g"), codes.InvalidArgument, []string{"source volume ids"}},
		{"an empty id", groupRequest("g", "a", ""), codes.InvalidArgument, []string{"source volume id"}},
		{"a volume twice", groupRequest("g", "a", "b", "a"), codes.InvalidArgument, []string{"volume a", "twice"}},
		{"too many volumes", groupRequest("g", many...), codes.InvalidArgument, []string{"65", "64"}},
		{"another parameter", class(map[string]string{"pool": "x"}), codes.InvalidArgument, []string{`"pool"`, "maxSeconds"}},
		{"no number", class(map[string]string{"maxSeconds": "5s"}), codes.InvalidArgument, []string{"maxSeconds", "5 to 40"}},
		{"too short", class(map[string]string{"maxSeconds": "4"}), codes.InvalidArgument, []string{"maxSeconds", "5 to 40"}},
		{"too long", class(map[string]string{"maxSeconds": "41"}), codes.InvalidArgument, []string{"maxSeconds", "5 to 40"}},
		{"an unknown volume", groupRequest("g", "a", "nothing"), codes.NotFound, []string{"nothing"}},
		{"of two Ceph clusters", groupRequest("g", "a", "far"), codes.FailedPrecondition, []string{"volume far", "another", "volume a"}},
		{"the log engine", groupRequest("g", "a", "log"), codes.FailedPrecondition, []string{"volume log", "cacheEngine"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := w.service.CreateVolumeGroupSnapshot(t.Context(), c.ask)
			wants(t, err, c.code, c.words...)
			w.noneOf(held)
		})
	}
	_, err := w.service.DeleteVolumeGroupSnapshot(t.Context(), &csi.DeleteVolumeGroupSnapshotRequest{})
	wants(t, err, codes.InvalidArgument, "group snapshot id")
	_, err = w.service.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{})
	wants(t, err, codes.InvalidArgument, "group snapshot id")
	_, err = w.service.GetVolumeGroupSnapshot(t.Context(), &csi.GetVolumeGroupSnapshotRequest{GroupSnapshotId: "../x"})
	wants(t, err, codes.NotFound, "../x")
}
