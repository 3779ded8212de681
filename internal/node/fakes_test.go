package node

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/escachetest"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/node/blockdev"
	fs "github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
)

// host is an escache host: its escached, its kernel's mounts and devices, and the Kubernetes API.
// It has all their state, so a new Service over the same host is a restarted csi-node.
type host struct {
	mu       sync.Mutex
	did      []string
	failures map[string]error
	before   map[string]func() // called once, unlocked, before the named step

	volumes map[string]*v1alpha1.CacheVolume
	groups  []v1alpha1.NodeGroup
	version int
	// noted is the epoch in the metadata of every image, and silent is set while csi-controller answers no
	// question. With oldCRD the API server drops them.
	noted          int64
	silent, oldCRD bool
	// readOnly are the read-only volumes, and plain the devices of images that are mapped without a cache.
	readOnly map[string]*v1alpha1.ReadOnlyVolume
	plain    map[string]blockdev.Number

	escached *escachetest.Host
	minors   map[string]uint32     // by image
	contents map[string]fs.Content // by device
	// devices are real ones for volumes that have one; connecting a volume then answers with its.
	devices map[string]string
	made    func(name string)
	resized func(name string, size int64)
	table   []mounts.Entry
	dead    map[blockdev.Number]bool
}

func newHost() *host {
	return &host{
		failures: map[string]error{}, before: map[string]func(){}, volumes: map[string]*v1alpha1.CacheVolume{},
		readOnly: map[string]*v1alpha1.ReadOnlyVolume{}, plain: map[string]blockdev.Number{},
		escached: escachetest.Alone("n1", "10.0.0.1", 1<<40), minors: map[string]uint32{}, contents: map[string]fs.Content{}, dead: map[blockdev.Number]bool{},
	}
}

func (h *host) service() *Service {
	return New(Options{
		Node: "n1", Version: "test", Cache: h, Kube: h, Mounter: h, Filesystems: h, Devices: h, Logger: slog.New(slog.DiscardHandler),
	})
}

// imageID is hexadecimal, as Ceph makes it.
func imageID(name string) string { return fmt.Sprintf("%x", "id-"+name) }

// attached adds a volume that is attached to n1 in epoch 3, with a blank device and a clean standby
// replica.
func (h *host) attached(name string) { h.attachedOf(name, 1<<30) }

// attachedOf is attached with a device of another size.
func (h *host) attachedOf(name string, size int64) {
	v := &v1alpha1.CacheVolume{}
	v.Name, v.ResourceVersion = name, "1"
	v.Spec = v1alpha1.CacheVolumeSpec{
		Pool: "p", Image: name, SizeBytes: 1 << 30, CacheMode: v1alpha1.CacheModeWriteback, Replicas: []string{"n1", "n2"},
	}
	v.Status = v1alpha1.CacheVolumeStatus{
		Phase: v1alpha1.VolumeReady, AttachedNode: "n1", Epoch: 3, Authority: v1alpha1.AuthorityCache, ImageID: imageID(name),
	}
	h.volumes[name] = v
	if _, known := h.minors[name]; !known {
		h.minors[name] = uint32(len(h.minors))
	}
	minor := int(h.minors[name])
	if err := h.escached.PutReplica(context.Background(), escache.ReplicaRequest{
		VolumeRef: refOf(name), ImageID: v.Status.ImageID, SizeBytes: size, CacheBytes: 1 << 30, Port: 7800 + minor, Minor: minor,
		Nodes: []escache.ReplicaNode{{Name: "n1", Address: "10.0.0.1"}, {Name: "n2", Address: "10.0.0.2"}},
	}); err != nil {
		panic(err)
	}
	h.contents[h.device(name)] = fs.Content{Surface: fs.Surface{Scanned: true, Blank: true}}
}

func (h *host) device(name string) string {
	if device, ok := h.devices[name]; ok {
		return device
	}
	return "/dev/escache/p/" + name
}

// step notes what is done and returns the failure that the test wants there.
func (h *host) step(name, volume string) error {
	h.mu.Lock()
	hook := h.before[name]
	delete(h.before, name)
	h.mu.Unlock()
	if hook != nil {
		hook()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.did = append(h.did, name)
	return h.failures[name]
}

func (h *host) Volume(_ context.Context, name string) (*v1alpha1.CacheVolume, error) {
	if err := h.step("read", name); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if v, ok := h.volumes[name]; ok {
		return v.DeepCopy(), nil
	}
	return nil, fmt.Errorf("CacheVolume %s: %w", name, kube.ErrNotFound)
}

func (h *host) Annotate(_ context.Context, v *v1alpha1.CacheVolume, key, value string) (*v1alpha1.CacheVolume, error) {
	if err := h.step("annotate", v.Name); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	is := h.volumes[v.Name]
	if is.ResourceVersion != v.ResourceVersion {
		return nil, kube.ErrConflict
	}
	h.version++
	is.ResourceVersion = "w" + strconv.Itoa(h.version)
	is.Annotations = maps.Clone(is.Annotations)
	if is.Annotations == nil {
		is.Annotations = map[string]string{}
	}
	is.Annotations[key] = value
	return is.DeepCopy(), nil
}

func (h *host) PatchStatus(_ context.Context, v *v1alpha1.CacheVolume, status map[string]any) (*v1alpha1.CacheVolume, error) {
	question, asks := status["comparison"].(map[string]any)
	step := "record client"
	if asks {
		step = "ask"
	}
	if err := h.step(step, v.Name); err != nil {
		return nil, err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	is := h.volumes[v.Name]
	if is.ResourceVersion != v.ResourceVersion {
		return nil, kube.ErrConflict
	}
	h.version++
	is.ResourceVersion = "w" + strconv.Itoa(h.version)
	if asks && !h.oldCRD {
		is.Status.Comparison = &v1alpha1.RecordComparison{Question: question["question"].(string)}
		defer h.answer(is)
	}
	if address, given := status["clientAddress"].(string); given {
		is.Status.ClientAddress = address
	}
	if outdated, given := status["outdated"].([]string); given {
		is.Status.Outdated = outdated
	}
	return is.DeepCopy(), nil
}

// answer plays csi-controller, which answers in a moment.
func (h *host) answer(v *v1alpha1.CacheVolume) {
	if h.silent {
		return
	}
	c := *v.Status.Comparison
	c.Answered = c.Question
	image := authority.Noted{Volume: v.Name, Epoch: h.noted, Node: "n2"}
	if err := authority.NotBehind(v, image); err != nil {
		c.Behind = err.Error()
	}
	go func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		h.version++
		v.ResourceVersion, v.Status.Comparison = "w"+strconv.Itoa(h.version), &c
	}()
}

func (h *host) Groups(context.Context) ([]v1alpha1.NodeGroup, error) {
	return h.groups, h.step("groups", "")
}

func (h *host) Table() ([]mounts.Entry, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.table), nil
}

func (h *host) Mount(_ context.Context, volume, device, target, fsType string, options []string) error {
	if err := h.step("mount", volume); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	n, err := h.number(device)
	if err != nil {
		return err
	}
	if h.contents[device].Signature.Type != fsType {
		return &command.ExitError{Command: "mount", Code: 32, Stderr: "wrong fs type"}
	}
	ro := slices.Contains(options, "ro")
	h.table = append(h.table, mounts.Entry{Path: target, Device: n, FSType: fsType, Options: options, ReadOnly: ro, FilesystemReadOnly: ro})
	return nil
}

func (h *host) Bind(_ context.Context, volume, source, target string, readOnly bool) error {
	if err := h.step("bind", volume); err != nil {
		return err
	}
	if _, err := os.Lstat(target); err != nil {
		return err
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if n, err := h.number(source); err == nil {
		h.table = append(h.table, mounts.Entry{Path: target, Device: n, Node: true, FSType: "devtmpfs", ReadOnly: readOnly})
		return nil
	}
	at := mounts.At(h.table, source)
	h.table = append(h.table, mounts.Entry{Path: target, Device: at.Device, FSType: at.FSType, ReadOnly: readOnly})
	return nil
}

func (h *host) Unmount(_ context.Context, volume, target string) error {
	if err := h.step("unmount", volume); err != nil {
		return err
	}
	h.take(target)
	return nil
}

func (h *host) Detach(_ context.Context, volume, target string) error {
	if err := h.step("detach", volume); err != nil {
		return err
	}
	h.take(target)
	return nil
}

func (h *host) take(target string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for i, at := range slices.Backward(h.table) {
		if at.Path == target {
			h.table = slices.Delete(h.table, i, i+1)
			return
		}
	}
}

func (h *host) Probe(_ context.Context, volume, device string) (fs.Content, error) {
	if err := h.step("probe", volume); err != nil {
		return fs.Content{}, err
	}
	return h.contents[device], nil
}

func (h *host) Make(_ context.Context, volume, device string, _ fs.Action, r fs.Record, _ []string) error {
	if err := h.step("mkfs", volume); err != nil {
		return err
	}
	h.contents[device] = formatted(r.Type, r.UUID)
	return nil
}

func formatted(fsType, uuid string) fs.Content {
	return fs.Content{
		Signature: fs.Signature{Found: true, Usage: "filesystem", Type: fsType, UUID: uuid},
		Surface:   fs.Surface{SizeBytes: 1 << 30, Superblock: &fs.Superblock{Type: fsType, UUID: uuid, FilesystemBytes: 1 << 30}},
	}
}

func (h *host) Grow(_ context.Context, volume, _, _, _ string) error { return h.step("grow", volume) }

func (h *host) Check(_ context.Context, volume, _, _ string) string {
	_ = h.step("check", volume)
	return "e2fsck says: bad magic number"
}

// Number: a volume's device is 252:MINOR while it is connected.
func (h *host) Number(path string) (blockdev.Number, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.number(path)
}

func (h *host) number(path string) (blockdev.Number, error) {
	if n, ok := h.plain[path]; ok {
		return n, nil
	}
	name := filepath.Base(path)
	minor, ok := h.minors[name]
	if !ok || filepath.Dir(path) != "/dev/escache/p" || h.status(name).Device == "" {
		return blockdev.Number{}, &os.PathError{Op: "stat", Path: path, Err: os.ErrNotExist}
	}
	return blockdev.Number{Major: 252, Minor: minor}, nil
}

func (h *host) Dead(n blockdev.Number) bool { return h.dead[n] }

func (h *host) Bytes(blockdev.Number) (int64, error) { return 1 << 30, nil }

func (h *host) Usage(context.Context, string) (Usage, error) {
	return Usage{TotalBytes: 1000, FreeBytes: 600, AvailableBytes: 500, TotalInodes: 100, FreeInodes: 90}, h.step("usage", "")
}

// mountCapability is a filesystem for many pods of one node.
func mountCapability(fsType string, flags ...string) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: fsType, MountFlags: flags}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
}

func blockCapability() *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessType: &csi.VolumeCapability_Block{Block: &csi.VolumeCapability_BlockVolume{}},
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER},
	}
}

func stageOf(volume, path string, c *csi.VolumeCapability) *csi.NodeStageVolumeRequest {
	return &csi.NodeStageVolumeRequest{
		VolumeId: volume, StagingTargetPath: path, VolumeCapability: c,
		PublishContext: map[string]string{v1alpha1.PublishContextEpoch: "3"},
	}
}

// staged returns a host with volume "v" staged as ext4 at the returned directory.
func staged(t *testing.T) (*host, string) {
	t.Helper()
	h, dir := newHost(), t.TempDir()
	h.attached("v")
	if _, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, mountCapability("ext4"))); err != nil {
		t.Fatal(err)
	}
	h.did = nil
	return h, dir
}
