package node

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/topology"
)

// Probe reports whether volumes can be staged here.
func (s *Service) Probe(ctx context.Context, _ *csi.ProbeRequest) (*csi.ProbeResponse, error) {
	return &csi.ProbeResponse{Ready: wrapperspb.Bool(s.Ready == nil || len(s.Ready(ctx)) == 0)}, nil
}

// NodeGetCapabilities lists the optional calls that the service supports.
func (s *Service) NodeGetCapabilities(context.Context, *csi.NodeGetCapabilitiesRequest) (*csi.NodeGetCapabilitiesResponse, error) {
	out := &csi.NodeGetCapabilitiesResponse{}
	for _, t := range []csi.NodeServiceCapability_RPC_Type{
		csi.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME,
		csi.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csi.NodeServiceCapability_RPC_EXPAND_VOLUME,
		csi.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
		csi.NodeServiceCapability_RPC_GET_VOLUME_HEALTH,
		csi.NodeServiceCapability_RPC_GET_STORAGE_HEALTH,
	} {
		out.Capabilities = append(out.Capabilities, &csi.NodeServiceCapability{
			Type: &csi.NodeServiceCapability_Rpc{Rpc: &csi.NodeServiceCapability_RPC{Type: t}},
		})
	}
	return out, nil
}

// nodeInfo holds escached's volume limit, so that a registration with the kubelet does not fail
// while escached restarts, and what NodeGetInfo last returned.
type nodeInfo struct {
	mu       sync.Mutex
	limit    int64
	reported *topology.Info
}

// infoTime bounds pending escached for its limit.
const infoTime = 5 * time.Second

// Info reads the node's group from the Kubernetes API, and the volume limit from escached; if
// escached does not answer, it returns the last known limit.
func (s *Service) Info(ctx context.Context) (topology.Info, error) {
	groups, err := s.Kube.Groups(ctx)
	if err != nil {
		return topology.Info{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, infoTime)
	defer cancel()
	host, err := s.Cache.Node(ctx)
	s.info.mu.Lock()
	defer s.info.mu.Unlock()
	if err == nil {
		s.info.limit = int64(max(host.MaxVolumes, 0))
	}
	return topology.Info{Group: groupOf(groups, s.Node), MaxVolumes: s.info.limit}, nil
}

// groupOf returns the name of the oldest group that names the node; "" if none does.
func groupOf(groups []v1alpha1.NodeGroup, node string) string {
	groups = slices.DeleteFunc(slices.Clone(groups), func(g v1alpha1.NodeGroup) bool { return !slices.Contains(g.Spec.Nodes, node) })
	if len(groups) == 0 {
		return ""
	}
	oldest := slices.MinFunc(groups, func(a, b v1alpha1.NodeGroup) int {
		if c := a.CreationTimestamp.Compare(b.CreationTimestamp.Time); c != 0 {
			return c
		}
		return strings.Compare(a.Name, b.Name)
	})
	return oldest.Name
}

// Reported returns what NodeGetInfo last returned; false if the kubelet has not called it yet.
func (s *Service) Reported() (topology.Info, bool) {
	s.info.mu.Lock()
	defer s.info.mu.Unlock()
	if s.info.reported == nil {
		return topology.Info{}, false
	}
	return *s.info.reported, true
}

// NodeGetInfo returns the node's name, group and volume limit.
//
// https://github.com/container-storage-interface/spec/blob/v1.13.0/spec.md#nodegetinfo
func (s *Service) NodeGetInfo(ctx context.Context, _ *csi.NodeGetInfoRequest) (*csi.NodeGetInfoResponse, error) {
	info, err := s.Info(ctx)
	if err != nil {
		return nil, fmt.Errorf("find the group of node %s: %w", s.Node, errors.Join(ErrUnavailable, err))
	}
	answer := &csi.NodeGetInfoResponse{NodeId: s.Node, MaxVolumesPerNode: info.MaxVolumes, AccessibleTopology: &csi.Topology{}}
	if info.Group != "" {
		answer.AccessibleTopology.Segments = map[string]string{v1alpha1.TopologyKey: info.Group}
	}
	s.info.mu.Lock()
	defer s.info.mu.Unlock()
	s.info.reported = &info
	return answer, nil
}
