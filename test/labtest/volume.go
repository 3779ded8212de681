package labtest

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Limits of calls on emulated hosts, far above what they take: a test that hits one has found a
// hang.
const (
	callLimit  = 2 * time.Minute
	syncLimit  = 3 * time.Minute
	flushLimit = 90 // seconds
)

// numbers is how many ports and minors the lab's hosts give to volumes.
const numbers = 200

// VolumeSpec says what a test wants. The zero value is 64 MiB with a cache of 32 MiB on the first
// two hosts, with the cache engine of [Engine].
type VolumeSpec struct {
	SizeBytes, CacheBytes int64
	Hosts                 []*Host // two
	Engine                escache.Engine
}

// Volume is an RBD image and what the hosts are told about it.
type Volume struct {
	escache.VolumeRef

	ImageID               string
	SizeBytes, CacheBytes int64
	Hosts                 []*Host
	Port, Minor           int
	Engine                escache.Engine
	// Secret is that of the link. Replace makes another one, as the controller does.
	Secret escache.Secret

	lab   *Lab
	since uint64 // the least epoch of a writer that began after the copies were laid
	mu    sync.Mutex
	epoch int64
}

func (v *Volume) String() string { return v.Pool + "/" + v.Image }

// NewVolume makes an image. When a test fails half way, what is left of its volumes is torn down by
// force, so that the next test says something too.
func (l *Lab) NewVolume(t T, spec VolumeSpec) *Volume {
	t.Helper()
	n := l.nextVolume()
	v := &Volume{
		VolumeRef: escache.VolumeRef{Pool: l.Pools[0], Image: fmt.Sprintf("e2e-%d-%d", l.started%100_000, n)},
		SizeBytes: spec.SizeBytes, CacheBytes: spec.CacheBytes, Hosts: spec.Hosts, Engine: cmp.Or(spec.Engine, Engine()),
		// Numbers are used again only after a round, so that one that was not given back is found.
		Port: 7800 + n%numbers, Minor: 100 + n%numbers, Secret: NewSecret(), lab: l,
	}
	if v.SizeBytes == 0 {
		v.SizeBytes = 64 << 20
	}
	if v.CacheBytes == 0 {
		v.CacheBytes = 32 << 20
	}
	if len(v.Hosts) == 0 {
		v.Hosts = l.Hosts[:2]
	}
	v.LaidAnew()
	t.Cleanup(func() { v.tearDown(t) })
	var err error
	if v.ImageID, err = createImage(t.Context(), v.VolumeRef, v.SizeBytes); err != nil {
		t.Fatalf("%v", err)
	}
	return v
}

// NewSecret returns a random secret of a link.
func NewSecret() escache.Secret {
	bits := make([]byte, 32)
	_, _ = rand.Read(bits) // it never fails
	return escache.Secret(base64.RawURLEncoding.EncodeToString(bits))
}

// VolumeOf returns a volume that somebody else has made, to look at its image. Of its copies [Volume.MustBeEqual] compares only what
// is written from now on.
func (l *Lab) VolumeOf(ref escache.VolumeRef) *Volume {
	v := &Volume{VolumeRef: ref, Engine: Engine(), lab: l}
	v.LaidAnew()
	return v
}

// Engine is the cache engine of the volumes that tests make: that of the environment's ENGINE, or the one
// that a request means which names none.
func Engine() escache.Engine { return escache.Engine(os.Getenv("ENGINE")) }

// ClassEngine is that engine as a StorageClass names it.
func ClassEngine() string { return string(cmp.Or(Engine(), escache.EngineWritecache)) }

// Request is the replica request, the same for both hosts.
func (v *Volume) Request() escache.ReplicaRequest {
	r := escache.ReplicaRequest{
		VolumeRef: v.VolumeRef, ImageID: v.ImageID, SizeBytes: v.SizeBytes, CacheBytes: v.CacheBytes, Port: v.Port, Minor: v.Minor,
		Secret: v.Secret, Engine: v.Engine,
	}
	for _, h := range v.Hosts {
		r.Nodes = append(r.Nodes, escache.ReplicaNode{Name: h.Name, Address: h.Address})
	}
	return r
}

// Lay lays both replicas, side by side as the controller does.
func (v *Volume) Lay(t T) {
	t.Helper()
	both(t, v.Hosts, func(ctx context.Context, h *Host) error { return put(ctx, h, v.Request()) })
}

func put(ctx context.Context, h *Host, request escache.ReplicaRequest) error {
	_, err := h.API.PutReplica(ctx, request)
	return err
}

// Replace takes one host out of the volume and another one in. Nothing is told to the hosts.
func (v *Volume) Replace(t T, old, replacement *Host) {
	t.Helper()
	hosts := slices.Clone(v.Hosts)
	i := slices.Index(hosts, old)
	if i < 0 {
		t.Fatalf("%s has no replica of %s", old.Name, v)
	}
	hosts[i] = replacement
	v.Hosts, v.Secret = hosts, NewSecret()
}

// Join lays a replica that is to be filled by the other one.
func (v *Volume) Join(t T, h *Host) {
	t.Helper()
	both(t, []*Host{h}, func(ctx context.Context, h *Host) error {
		request := v.Request()
		request.Join = true
		return put(ctx, h, request)
	})
}

// LayOn lays one replica.
func (v *Volume) LayOn(t T, h *Host) {
	t.Helper()
	both(t, []*Host{h}, func(ctx context.Context, h *Host) error { return put(ctx, h, v.Request()) })
}

// DropOn deletes one replica.
func (v *Volume) DropOn(t T, h *Host) {
	t.Helper()
	both(t, []*Host{h}, func(ctx context.Context, h *Host) error { return h.API.DeleteReplica(ctx, v.VolumeRef) })
}

// LogicalVolume is the path of the disk below a replica.
func (v *Volume) LogicalVolume() string {
	sum := sha256.Sum256([]byte(v.String()))
	return "/dev/escache/escache-" + hex.EncodeToString(sum[:8])
}

// Drop deletes both replicas.
func (v *Volume) Drop(t T) {
	t.Helper()
	both(t, v.Hosts, func(ctx context.Context, h *Host) error { return h.API.DeleteReplica(ctx, v.VolumeRef) })
}

func both(t T, hosts []*Host, call func(context.Context, *Host) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	answers := make(chan error, len(hosts))
	for _, h := range hosts {
		go func() {
			err := call(ctx, h)
			if err != nil {
				err = fmt.Errorf("%s: %w", h.Name, err)
			}
			answers <- err
		}()
	}
	var failed []error
	for range hosts {
		failed = append(failed, <-answers)
	}
	if err := errors.Join(failed...); err != nil {
		t.Fatalf("%v", err)
	}
}

// Epoch is the newest one that was used.
func (v *Volume) Epoch() int64 {
	v.mu.Lock()
	defer v.mu.Unlock()
	return v.epoch
}

// NextEpoch gives the volume to a host, on record: an epoch of its own, and the arbiter knows.
func (v *Volume) NextEpoch(t T, h *Host) int64 {
	t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	v.epoch++
	err := v.lab.Attach(t.Context(), Record{VolumeRef: v.VolumeRef, ImageID: v.ImageID, AttachedNode: h.Name, Epoch: v.epoch})
	if err != nil {
		t.Fatalf("%v", err)
	}
	return v.epoch
}

// ConnectRequest is for tests that connect by themselves.
func (v *Volume) ConnectRequest(epoch int64) escache.ConnectRequest {
	return escache.ConnectRequest{VolumeRef: v.VolumeRef, ImageID: v.ImageID, Epoch: epoch, Engine: v.Engine}
}

// Connect takes the volume over to a host, with a new epoch, and makes the device there. As the kubelet does, it repeats
// the call while the host waits for what its peer says, or for the loss of the peer to be noticed.
func (v *Volume) Connect(t T, h *Host) (answer escache.ConnectResponse) {
	t.Helper()
	epoch := v.NextEpoch(t, h)
	WaitFor(t, fmt.Sprintf("%s connects %s", h.Name, v), callLimit, func(ctx context.Context) error {
		got, err := h.API.DevConnect(ctx, v.ConnectRequest(epoch))
		if slices.Contains([]escache.Code{escache.CodeBusy, escache.CodeConnected, escache.CodeOutdated}, CodeOf(err)) {
			return err
		}
		if err != nil {
			t.Fatalf("%s: connect %s: %v", h.Name, v, err)
		}
		answer = *got
		return nil
	})
	return answer
}

// Flush makes the cache clean.
func (v *Volume) Flush(t T, h *Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	answer, err := h.API.Flush(ctx, escache.FlushRequest{VolumeRef: v.VolumeRef, TimeoutSeconds: flushLimit})
	if err != nil {
		t.Fatalf("%s: flush %s: %v", h.Name, v, err)
	}
	if !answer.Clean || answer.DirtyBytes != 0 {
		t.Fatalf("%s: flush %s: %+v", h.Name, v, *answer)
	}
}

// Stop removes the device.
func (v *Volume) Stop(t T, h *Host) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), callLimit)
	defer cancel()
	if err := h.API.Stop(ctx, escache.StopRequest{VolumeRef: v.VolumeRef}); err != nil {
		t.Fatalf("%s: stop %s: %v", h.Name, v, err)
	}
}

// Remove ends the volume's life in good order: flushed, stopped, replicas deleted, image removed.
func (v *Volume) Remove(t T, connected *Host) {
	t.Helper()
	if connected != nil {
		v.Flush(t, connected)
		v.Stop(t, connected)
	}
	v.Drop(t)
	v.RemoveImage(t)
}

// RemoveImage removes the image, which Ceph refuses while anyone watches it, and what is on record
// of the volume.
func (v *Volume) RemoveImage(t T) {
	t.Helper()
	v.lab.Command(t, "rbd", "--no-progress", "rm", v.String())
	if err := v.lab.forget(t.Context(), v.VolumeRef); err != nil {
		t.Errorf("%v", err)
	}
}

// Status returns a host's report about the volume.
func (v *Volume) Status(t T, h *Host) escache.VolumeStatus {
	t.Helper()
	status, err := v.status(t.Context(), h)
	if err != nil {
		t.Fatalf("%v", err)
	}
	return status
}

func (v *Volume) status(ctx context.Context, h *Host) (escache.VolumeStatus, error) {
	status, err := h.API.VolumeStatus(ctx, v.VolumeRef)
	if err != nil {
		return escache.VolumeStatus{}, fmt.Errorf("%s: status of %s: %w", h.Name, v, err)
	}
	return *status, nil
}

// WaitForStatus waits until a host's status of the volume is as wanted.
func (v *Volume) WaitForStatus(t T, h *Host, what string, limit time.Duration, wanted func(escache.VolumeStatus) bool) time.Duration {
	t.Helper()
	return WaitFor(t, fmt.Sprintf("%s: %s: %s", h.Name, v, what), limit, func(ctx context.Context) error {
		status, err := v.status(ctx, h)
		if err == nil && !wanted(status) {
			err = fmt.Errorf("status is %s", describe(status))
		}
		return err
	})
}

// WaitForPeer waits until a host sees the other replica current, and puts that on record. A host whose processor
// stands still for some seconds loses the link, and its replica is on record as outdated: a test that lets the
// other host take over waits for this first.
func (v *Volume) WaitForPeer(t T, h *Host) time.Duration {
	t.Helper()
	took := v.WaitForStatus(t, h, "peer is current", syncLimit, Redundant)
	for _, peer := range v.Hosts {
		if peer == h {
			continue
		}
		if err := v.lab.resynced(t.Context(), v.VolumeRef, peer.Name); err != nil {
			t.Fatalf("%v", err)
		}
	}
	return took
}

// Redundant says whether both replicas are current, and count as such.
func Redundant(s escache.VolumeStatus) bool {
	return s.DiskState == escache.DiskUpToDate && len(s.Peers) == 1 && s.Peers[0].DiskState == escache.DiskUpToDate &&
		s.Peers[0].ConnectionState == escache.LinkConnected && !s.MayGoOnAlone
}

func describe(s escache.VolumeStatus) string {
	dirty := "unknown"
	if s.DirtyBytes != nil {
		dirty = fmt.Sprint(*s.DirtyBytes)
	}
	text := fmt.Sprintf("state %s, role %s, epoch %d, disk %s, peers %+v, dirty %s, I/O suspended %t, may go on alone %t",
		s.State, s.Role, s.Epoch, s.DiskState, s.Peers, dirty, s.IOSuspended, s.MayGoOnAlone)
	if s.Error != nil {
		text += fmt.Sprintf(", error %+v", *s.Error)
	}
	return text
}

// tearDown removes what a failed test left. After a test that passed there is nothing, and it does
// nothing.
func (v *Volume) tearDown(t T) {
	if !t.Failed() {
		return
	}
	v.lab.rescue(t)
	ctx, cancel := context.WithTimeout(context.Background(), powerOnLimit)
	defer cancel()
	for _, h := range v.Hosts {
		err := v.tearDownOn(ctx, h)
		if err != nil { // what hangs in a kernel ends with it
			t.Logf("tear down %s on %s: %v", v, h.Name, err)
			err = errors.Join(v.lab.client.PowerOff(ctx, h.Name), v.lab.client.PowerOn(ctx, h.Name), v.tearDownOn(ctx, h))
		}
		if err != nil {
			t.Logf("tear down %s on %s after a reboot: %v", v, h.Name, err)
		}
	}
	if _, err := command(ctx, "rbd", "--no-progress", "rm", v.String()); err != nil {
		t.Logf("tear down %s: %v", v, err)
	}
}

func (v *Volume) tearDownOn(ctx context.Context, h *Host) error {
	ctx, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	for ctx.Err() == nil && h.ready(ctx) != nil { // it may just have been given its power back
		time.Sleep(pollInterval)
	}
	_, err := h.API.Flush(ctx, escache.FlushRequest{VolumeRef: v.VolumeRef, TimeoutSeconds: 10})
	stopped := h.API.Stop(ctx, escache.StopRequest{VolumeRef: v.VolumeRef})
	failed := []error{err, stopped, h.API.DiscardReplica(ctx, v.VolumeRef, math.MaxInt64)}
	return errors.Join(slices.DeleteFunc(failed, func(err error) bool {
		return slices.Contains([]escache.Code{escache.CodeNotFound, escache.CodeNotConnected}, CodeOf(err))
	})...)
}
