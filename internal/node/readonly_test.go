package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/node/blockdev"
	fs "github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
)

func (h *host) ReadOnlyVolume(_ context.Context, name string) (*v1alpha1.ReadOnlyVolume, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if v, ok := h.readOnly[name]; ok {
		return v.DeepCopy(), h.failures["read-only record"]
	}
	return nil, fmt.Errorf("ReadOnlyVolume %s: %w", name, kube.ErrNotFound)
}

func (h *host) Map(ctx context.Context, r escache.MapRequest) (*escache.MapResponse, error) {
	what := "map"
	if r.ReadOnly {
		what = "map read-only"
	}
	if err := h.step(what, r.Image); err != nil {
		return nil, err
	}
	defer h.keepOpen(ctx)()
	answer, err := h.escached.Map(ctx, r)
	if err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	number := blockdev.Number{Major: 251}
	if _, err := fmt.Sscanf(answer.Device, "/dev/rbd%d", &number.Minor); err != nil {
		return nil, err
	}
	h.plain[answer.Device] = number
	if _, known := h.contents[answer.Device]; !known {
		h.contents[answer.Device] = formatted("ext4", "u-1")
	}
	return answer, nil
}

func (h *host) Unmap(ctx context.Context, ref escache.VolumeRef) error {
	if err := h.step("unmap", ref.Image); err != nil {
		return err
	}
	defer h.keepOpen(ctx)()
	err := h.escached.Unmap(ctx, escache.UnmapRequest{VolumeRef: ref})
	if err == nil {
		h.mu.Lock()
		defer h.mu.Unlock()
		clear(h.plain)
	}
	return err
}

// keepOpen keeps the mapped devices open that are mounted, as the kernel does, until the returned function is called.
func (h *host) keepOpen(ctx context.Context) func() {
	h.mu.Lock()
	defer h.mu.Unlock()
	var opened []io.Closer
	for device, n := range h.plain {
		if len(mounts.Of(h.table, n)) == 0 {
			continue
		}
		if o, err := h.escached.Open(ctx, device); err == nil {
			opened = append(opened, o)
		}
	}
	return func() {
		for _, o := range opened {
			_ = o.Close()
		}
	}
}

func readerCapability(flags ...string) *csi.VolumeCapability {
	c := mountCapability("ext4", flags...)
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	return c
}

// reading returns a host that has the read-only volume "r".
func reading() *host {
	h := newHost()
	v := &v1alpha1.ReadOnlyVolume{}
	v.Name, v.Spec.Pool, v.Spec.Image = "r", "p", "escache-r"
	v.Status.Copies = []v1alpha1.ReadOnlyCopy{{Node: "n2", ImageID: "1d2"}, {Node: "n1", ImageID: "1d1"}}
	h.readOnly["r"] = v
	return h
}

func publishReadOnlyAt(staging, target string, c *csi.VolumeCapability) *csi.NodePublishVolumeRequest {
	return &csi.NodePublishVolumeRequest{VolumeId: "r", StagingTargetPath: staging, TargetPath: target, VolumeCapability: c}
}

// TestAReadOnlyVolumeIsMountedReadOnlyOnAMapThatCanReplayItsJournal, and not read-only only because a pod
// asks for it.
func TestAReadOnlyVolumeIsMountedReadOnlyOnAMapThatCanReplayItsJournal(t *testing.T) {
	h, dir, target := reading(), t.TempDir(), filepath.Join(t.TempDir(), "pod")
	for range 2 {
		if _, err := h.service().NodeStageVolume(t.Context(), stageOf("r", dir, readerCapability())); err != nil {
			t.Fatal(err)
		}
	}
	if want := []string{"map", "probe", "mount", "map"}; !slices.Equal(h.did, want) {
		t.Errorf("did %q, want %q", h.did, want)
	}
	if at := mounts.At(h.table, dir); at == nil || !slices.Contains(at.Options, "ro") || slices.Contains(at.Options, "noload") {
		t.Errorf("mounted %+v", at)
	}
	for range 2 {
		if _, err := h.service().NodePublishVolume(t.Context(), publishReadOnlyAt(dir, target, readerCapability())); err != nil {
			t.Fatal(err)
		}
	}
	if at := mounts.At(h.table, target); at == nil || !at.ReadOnly {
		t.Errorf("published %+v", at)
	}
	h.did = nil
	other := filepath.Join(t.TempDir(), "other pod")
	if _, err := h.service().NodePublishVolume(t.Context(), publishReadOnlyAt(dir, other, readerCapability())); err != nil {
		t.Fatal(err)
	}
	if want := []string{"map", "bind"}; !slices.Equal(h.did, want) || len(h.table) != 3 {
		t.Errorf("for another pod: did %q, want %q; mounts %+v", h.did, want, h.table)
	}
	h.take(other)
	health, err := h.service().NodeGetVolumeHealth(t.Context(), &csi.NodeGetVolumeHealthRequest{VolumeId: "r"})
	if err != nil || len(health.GetVolumeHealth().GetHealthStatuses()) > 0 {
		t.Errorf("%v, %v", health, err)
	}
	unstage := func() error {
		_, err := h.service().NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "r", StagingTargetPath: dir})
		return err
	}
	if err := unstage(); Code(err) != codes.FailedPrecondition {
		t.Errorf("unstaged under a pod: %v", err)
	}
	if _, err := h.service().NodeUnpublishVolume(t.Context(), &csi.NodeUnpublishVolumeRequest{VolumeId: "r", TargetPath: target}); err != nil {
		t.Fatal(err)
	}
	h.readOnly["r"].Status.Copies = nil // the controller has given the node up meanwhile
	for range 2 {
		if err := unstage(); err != nil {
			t.Fatal(err)
		}
	}
	if len(h.table) > 0 || len(h.plain) > 0 {
		t.Errorf("left: %+v, %v", h.table, h.plain)
	}
}

func TestAReadOnlyBlockVolumeIsMappedReadOnly(t *testing.T) {
	h, dir, target := reading(), t.TempDir(), filepath.Join(t.TempDir(), "device")
	c := blockCapability()
	c.AccessMode.Mode = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("r", dir, c)); err != nil {
		t.Fatal(err)
	}
	if _, err := h.service().NodePublishVolume(t.Context(), publishReadOnlyAt(dir, target, c)); err != nil {
		t.Fatal(err)
	}
	if want := []string{"map read-only", "map read-only", "bind"}; !slices.Equal(h.did, want) {
		t.Errorf("did %q, want %q", h.did, want)
	}
	if at := mounts.At(h.table, target); at == nil || !at.Node || !at.ReadOnly {
		t.Errorf("published %+v", at)
	}
}

func TestWhatAReadOnlyVolumeCannotBeIsRefusedAndNothingStaysMapped(t *testing.T) {
	for name, c := range map[string]struct {
		flags  []string
		change func(*host)
		want   codes.Code
	}{
		"mounted for writing":      {[]string{"rw"}, nil, codes.InvalidArgument},
		"ext4 without its journal": {[]string{"noload"}, nil, codes.InvalidArgument},
		"xfs without its log":      {[]string{"norecovery"}, nil, codes.InvalidArgument},
		"not attached here":        {nil, func(h *host) { h.readOnly["r"].Status.Copies[1].Node = "n3" }, codes.FailedPrecondition},
		"an image that is half made": {nil, func(h *host) {
			h.readOnly["r"].Status.Copies[1].ImageID = ""
		}, codes.FailedPrecondition},
		"no filesystem": {nil, func(h *host) {
			h.before["probe"] = func() {
				for device := range h.plain {
					h.contents[device] = fs.Content{Surface: fs.Surface{Scanned: true, Blank: true}}
				}
			}
		}, codes.FailedPrecondition},
		"another filesystem": {nil, func(h *host) {
			h.before["probe"] = func() {
				for device := range h.plain {
					h.contents[device] = formatted("xfs", "u-1")
				}
			}
		}, codes.FailedPrecondition},
		"an older escached": {nil, func(h *host) {
			h.failures["map"] = &escache.Problem{Code: escache.CodeUnknownPath, Detail: "no such path"}
		}, codes.FailedPrecondition},
		"no such volume": {nil, func(h *host) { delete(h.readOnly, "r") }, codes.NotFound},
	} {
		t.Run(name, func(t *testing.T) {
			h := reading()
			if c.change != nil {
				c.change(h)
			}
			_, err := h.service().NodeStageVolume(t.Context(), stageOf("r", t.TempDir(), readerCapability(c.flags...)))
			if Code(err) != c.want {
				t.Errorf("got %v, want %s", err, c.want)
			}
			if len(h.table) > 0 || len(h.plain) > 0 || slices.Contains(h.did, "mkfs") {
				t.Errorf("left: %+v, %v; did %q", h.table, h.plain, h.did)
			}
		})
	}
}

// TestAnErrorThatPassesLeavesTheMapToTheRepeatedCall.
func TestAnErrorThatPassesLeavesTheMapToTheRepeatedCall(t *testing.T) {
	h, dir := reading(), t.TempDir()
	h.failures["probe"] = context.DeadlineExceeded
	stage := func() error {
		_, err := h.service().NodeStageVolume(t.Context(), stageOf("r", dir, readerCapability()))
		return err
	}
	if err := stage(); Code(err) != codes.DeadlineExceeded || slices.Contains(h.did, "unmap") {
		t.Errorf("%v; did %q", err, h.did)
	}
	delete(h.failures, "probe")
	if err := stage(); err != nil {
		t.Fatal(err)
	}
	h.failures["read-only record"] = errors.New("no answer")
	if _, err := h.service().NodeUnstageVolume(t.Context(), &csi.NodeUnstageVolumeRequest{VolumeId: "r", StagingTargetPath: dir}); err == nil {
		t.Error("unstaged without knowing the image")
	}
	if _, err := os.Stat(dir); err != nil || mounts.At(h.table, dir) == nil {
		t.Errorf("%v, %+v", err, h.table)
	}
}
