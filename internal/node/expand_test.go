package node

import (
	"cmp"
	"context"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/mounts"
	"github.com/escache/escache-csi/internal/node/topology"
)

func TestExpand(t *testing.T) {
	rows := []struct {
		name   string
		change func(h *host, r *csi.NodeExpandVolumeRequest)
		code   codes.Code
		did    []string
		size   int64 // 0: what is on record
	}{
		{"the device is larger than the record", func(h *host, _ *csi.NodeExpandVolumeRequest) {
			h.escached.Change(refOf("v"), func(s *escache.VolumeStatus) { s.SizeBytes = 3 << 30 })
		},
			codes.OK, []string{"read", "status", "resize", "grow"}, 3 << 30},
		{"mounted", func(*host, *csi.NodeExpandVolumeRequest) {}, codes.OK, []string{"read", "status", "resize", "grow"}, 0},
		{"by the staging path", func(_ *host, r *csi.NodeExpandVolumeRequest) {
			r.StagingTargetPath, r.VolumePath = r.GetVolumePath(), "/pod"
		},
			codes.OK, []string{"read", "status", "resize", "grow"}, 0},
		{"block", func(h *host, r *csi.NodeExpandVolumeRequest) {
			r.VolumeCapability = blockCapability()
			h.take(r.GetVolumePath())
		},
			codes.OK, []string{"read", "status", "resize"}, 0},
		{"no path", func(_ *host, r *csi.NodeExpandVolumeRequest) { r.VolumePath = "" }, codes.InvalidArgument, nil, 0},
		{"unknown volume", func(_ *host, r *csi.NodeExpandVolumeRequest) { r.VolumeId = "other" }, codes.NotFound, []string{"read"}, 0},
		{"not there", func(_ *host, r *csi.NodeExpandVolumeRequest) { r.VolumePath = "/other" }, codes.NotFound, []string{"read", "status"}, 0},
		{"another device there", func(h *host, _ *csi.NodeExpandVolumeRequest) { h.table[0].Device = blockdev.Number{Major: 8} },
			codes.NotFound, []string{"read", "status"}, 0},
		{"not grown in Ceph yet", func(_ *host, r *csi.NodeExpandVolumeRequest) { r.CapacityRange.RequiredBytes = 3 << 30 },
			codes.FailedPrecondition, []string{"read", "status"}, 0},
		{"above the limit", func(_ *host, r *csi.NodeExpandVolumeRequest) {
			r.CapacityRange = &csi.CapacityRange{LimitBytes: 1 << 30}
		},
			codes.OutOfRange, []string{"read", "status"}, 0},
		{"escached silent", func(h *host, _ *csi.NodeExpandVolumeRequest) { h.failures["resize"] = escacheclient.ErrUnreachable },
			codes.Unavailable, []string{"read", "status", "resize"}, 0},
	}
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			h, dir := staged(t)
			h.volumes["v"].Spec.SizeBytes = 2 << 30
			r := &csi.NodeExpandVolumeRequest{VolumeId: "v", VolumePath: dir, CapacityRange: &csi.CapacityRange{RequiredBytes: 2 << 30}}
			row.change(h, r)
			answer, err := h.service().NodeExpandVolume(t.Context(), r)
			if Code(err) != row.code || !slices.Equal(h.did, row.did) {
				t.Fatalf("%v; did %q, want %s and %q", err, h.did, row.code, row.did)
			}
			if err == nil && answer.GetCapacityBytes() != cmp.Or(row.size, 2<<30) {
				t.Errorf("%d bytes", answer.GetCapacityBytes())
			}
		})
	}
}

func TestStats(t *testing.T) {
	h, dir := staged(t)
	s := h.service()
	answer, err := s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: dir})
	if err != nil || len(answer.GetUsage()) != 2 {
		t.Fatalf("%v %v", answer, err)
	}
	bytes, inodes := answer.GetUsage()[0], answer.GetUsage()[1]
	if bytes.GetTotal() != 1000 || bytes.GetUsed() != 400 || bytes.GetAvailable() != 500 || inodes.GetTotal() != 100 || inodes.GetUsed() != 10 {
		t.Errorf("%v %v", bytes, inodes)
	}
	if slices.Contains(h.did, "read") || slices.Contains(h.did, "status") {
		t.Errorf("statistics asked others: %q", h.did)
	}
	h.table = append(h.table, mounts.Entry{Path: "/block", Device: h.table[0].Device, Node: true})
	answer, err = s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/block"})
	if err != nil || len(answer.GetUsage()) != 1 || answer.GetUsage()[0].GetTotal() != 1<<30 {
		t.Errorf("block: %v %v", answer, err)
	}
	if _, err = s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: "/nowhere"}); Code(err) != codes.NotFound {
		t.Errorf("nowhere: %v", err)
	}
	h.dead[h.table[0].Device] = true
	if _, err = s.NodeGetVolumeStats(t.Context(), &csi.NodeGetVolumeStatsRequest{VolumeId: "v", VolumePath: dir}); Code(err) != codes.Unavailable {
		t.Errorf("dead: %v", err)
	}
}

func TestVolumeHealth(t *testing.T) {
	h, _ := staged(t)
	s := h.service()
	ask := func() []*csi.VolumeHealth_VolumeHealthEntry {
		t.Helper()
		answer, err := s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "v"})
		if err != nil || answer.GetVolumeHealth().GetVolumeId() != "v" {
			t.Fatalf("%v %v", answer, err)
		}
		return answer.GetVolumeHealth().GetHealthStatuses()
	}
	h.change("v", func(s *escache.VolumeStatus) {
		s.DiskState, s.SyncedPercent = escache.DiskUpToDate, 100
		s.Peers = []escache.Peer{{Name: "n2", ConnectionState: escache.LinkConnected, DiskState: escache.DiskUpToDate}}
	})
	if got := ask(); len(got) != 0 {
		t.Errorf("healthy: %v", got)
	}
	h.change("v", frozen)
	if got := ask(); len(got) != 1 || got[0].GetStatus() != csi.VolumeHealthErrorType_INACCESSIBLE || got[0].GetReason() != "IOFrozen" {
		t.Errorf("frozen: %v", got)
	}
	h.change("v", func(s *escache.VolumeStatus) { s.IOSuspended = false })
	h.table[0].TurnedReadOnly = true
	if got := ask(); len(got) != 1 || got[0].GetReason() != "FilesystemReadOnly" {
		t.Errorf("read-only: %v", got)
	}
	h.failures["status"] = escacheclient.ErrUnreachable
	if got := ask(); len(got) != 1 || got[0].GetReason() != "EscachedSilent" {
		t.Errorf("silent: %v", got)
	}
	if _, err := s.NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "other"}); Code(err) != codes.NotFound {
		t.Errorf("unknown: %v", err)
	}
}

func TestNodeInfoNamesTheOldestGroupAndTheLimit(t *testing.T) {
	h := newHost()
	group := func(name string, age time.Duration, nodes ...string) v1alpha1.NodeGroup {
		g := v1alpha1.NodeGroup{}
		g.Name, g.CreationTimestamp, g.Spec.Nodes = name, metav1.NewTime(time.Now().Add(-age)), nodes
		return g
	}
	h.groups = []v1alpha1.NodeGroup{
		group("young", time.Minute, "n1", "n2", "n3"), group("old", time.Hour, "n1", "n4", "n5"), group("other", 2*time.Hour, "n6", "n7", "n8"),
	}
	s := h.service()
	ask := func() (*csi.NodeGetInfoResponse, error) {
		return s.NodeGetInfo(context.Background(), &csi.NodeGetInfoRequest{})
	}
	if reported, asked := s.Reported(); asked {
		t.Errorf("reported %+v before it was asked", reported)
	}
	info, err := ask()
	if err != nil || info.GetNodeId() != "n1" || info.GetMaxVolumesPerNode() != 64 ||
		info.GetAccessibleTopology().GetSegments()[v1alpha1.TopologyKey] != "old" {
		t.Errorf("%v %v", info, err)
	}
	if reported, asked := s.Reported(); !asked || reported != (topology.Info{Group: "old", MaxVolumes: 64}) {
		t.Errorf("reported %+v %v", reported, asked)
	}
	// While escached restarts, the kubelet must not lose the driver.
	h.failures["node"] = escacheclient.ErrUnreachable
	if info, err = ask(); err != nil || info.GetMaxVolumesPerNode() != 64 {
		t.Errorf("escached silent: %v %v", info, err)
	}
	h.groups = nil
	if info, err = ask(); err != nil || info.GetAccessibleTopology() == nil || len(info.GetAccessibleTopology().GetSegments()) != 0 {
		t.Errorf("no group: %v %v", info, err)
	}
}
