package node

import (
	"context"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/escachetest"
	"github.com/escache/escache-csi/internal/node/mounts"
)

func refOf(name string) escache.VolumeRef { return escache.VolumeRef{Pool: "p", Image: name} }

func (h *host) status(name string) escache.VolumeStatus { return h.escached.Status(refOf(name)) }

// change plays what the kernel and the peer do to a volume.
func (h *host) change(name string, how func(*escache.VolumeStatus)) {
	h.escached.Change(refOf(name), how)
}

func frozen(s *escache.VolumeStatus) { s.IOSuspended = true }

func disconnected(s *escache.VolumeStatus) { s.Device, s.Role = "", escache.RoleSecondary }

// promoted: escached was killed after it had made the replica Primary, and before there was a device.
func promoted(s *escache.VolumeStatus) { s.Device, s.Role = "", escache.RolePrimary }

func withDirty(bytes *int64) func(*escache.VolumeStatus) {
	return func(s *escache.VolumeStatus) { s.DirtyBytes = bytes }
}

func (h *host) Node(context.Context) (*escache.Node, error) {
	return &escache.Node{Name: "n1", Healthy: true, MaxVolumes: 64}, h.step("node", "")
}

func (h *host) VolumeStatus(_ context.Context, ref escache.VolumeRef) (*escache.VolumeStatus, error) {
	if err := h.step("status", ref.Image); err != nil {
		return nil, err
	}
	s := h.escached.Status(ref)
	return &s, nil
}

func (h *host) DevConnect(ctx context.Context, r escache.ConnectRequest) (*escache.ConnectResponse, error) {
	if err := h.step("connect", r.Image); err != nil {
		return nil, err
	}
	answer, err := h.escached.Connect(ctx, r)
	if err != nil {
		return nil, err
	}
	answer.Device = h.device(r.Image)
	h.change(r.Image, func(s *escache.VolumeStatus) { s.Device = answer.Device })
	return answer, nil
}

func (h *host) Flush(ctx context.Context, r escache.FlushRequest) (*escache.FlushResponse, error) {
	if err := h.step("flush", r.Image); err != nil {
		return nil, err
	}
	return h.escached.Flush(ctx, r)
}

func (h *host) Stop(ctx context.Context, r escache.StopRequest) error {
	if err := h.step("stop", r.Image); err != nil {
		return err
	}
	defer h.open(ctx, r.VolumeRef)()
	return h.escached.Stop(ctx, r)
}

// open keeps a mounted volume's device open, as the kernel does, until the returned function is
// called.
func (h *host) open(ctx context.Context, ref escache.VolumeRef) func() {
	h.mu.Lock()
	n, err := h.number(h.device(ref.Image))
	mounted := err == nil && len(mounts.Of(h.table, n)) > 0
	h.mu.Unlock()
	if !mounted {
		return func() {}
	}
	opened, err := h.escached.Open(ctx, escachetest.DevicePath(ref))
	if err != nil {
		return func() {}
	}
	return func() { _ = opened.Close() }
}

func (h *host) Abandon(ctx context.Context, ref escache.VolumeRef, epoch int64) error {
	if err := h.step("abandon", ref.Image); err != nil {
		return err
	}
	h.mu.Lock()
	record := h.volumes[ref.Image].Status
	h.mu.Unlock()
	if record.IsOutdated("n1") || record.AttachedNode == "" && len(record.Fenced) > 0 {
		h.escached.Supersede(ref, record.Epoch)
	}
	defer h.open(ctx, ref)()
	return h.escached.Abandon(ctx, escache.AbandonRequest{VolumeRef: ref, Epoch: epoch})
}

func (h *host) Resize(ctx context.Context, r escache.ResizeRequest) error {
	if err := h.step("resize", r.Image); err != nil {
		return err
	}
	if err := h.escached.Resize(ctx, r); err != nil {
		return err
	}
	if h.resized != nil {
		h.resized(r.Image, r.SizeBytes)
	}
	return nil
}
