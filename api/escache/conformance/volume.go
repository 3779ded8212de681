package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

const mib = 1 << 20

// volume is an image that a check made, and what it wants from the hosts.
type volume struct {
	escache.VolumeRef

	s      *suite
	id     string
	port   int
	minor  int
	epoch  int64
	device string
	secret escache.Secret
}

// newVolume makes an image and no replicas. Whatever the check leaves of it on the hosts is removed
// when it ends.
func (s *suite) newVolume() *volume {
	s.Helper()
	v := s.nameVolume()
	id, err := s.target.Storage.Create(s.Context(), v.VolumeRef, s.target.ImageBytes)
	if err != nil {
		s.Fatalf("make image %s: %v", v, err)
	}
	s.Cleanup(v.remove)
	v.id = strings.TrimSpace(id)
	return v
}

// nameVolume returns a volume without an image.
func (s *suite) nameVolume() *volume {
	n := volumes.Add(1)
	within := int(n % portsAndMinors)
	return &volume{
		VolumeRef: escache.VolumeRef{Pool: s.target.Pool, Image: fmt.Sprintf("conformance-%d-%d", time.Now().Unix()%1e6, n)}, s: s,
		port: s.target.FirstPort + within, minor: s.target.FirstMinor + within, secret: newSecret(),
	}
}

func (v *volume) String() string { return v.Pool + "/" + v.Image }

func (v *volume) query() url.Values { return url.Values{"pool": {v.Pool}, "image": {v.Image}} }

// request is the replica request both hosts get.
func (v *volume) request() escache.ReplicaRequest {
	r := escache.ReplicaRequest{
		VolumeRef: v.VolumeRef, ImageID: v.id, SizeBytes: v.s.target.ImageBytes, CacheBytes: v.s.target.CacheBytes,
		Port: v.port, Minor: v.minor, Secret: v.secret, Engine: v.s.target.Engine,
	}
	for _, h := range v.s.target.Hosts {
		r.Nodes = append(r.Nodes, escache.ReplicaNode{Name: h.Name, Address: h.Address})
	}
	return r
}

func (h *host) put(r escache.ReplicaRequest) *answer {
	h.s.Helper()
	return h.send(request{method: http.MethodPut, path: escache.PathReplica, body: encode(h.s, r)})
}

func (h *host) delete(v *volume) *answer {
	h.s.Helper()
	return h.send(request{method: http.MethodDelete, path: escache.PathReplica, query: v.query()})
}

// discard deletes a replica with all that was written to it.
func (h *host) discard(v *volume) *answer {
	h.s.Helper()
	return h.discardUpTo(v, fmt.Sprint(v.epoch))
}

// discardUpTo deletes a replica with what was written to it up to an attachment; "" names none.
func (h *host) discardUpTo(v *volume, epoch string) *answer {
	h.s.Helper()
	query := v.query()
	query.Set("discard", "true")
	if epoch != "" {
		query.Set("epoch", epoch)
	}
	return h.send(request{method: http.MethodDelete, path: escache.PathReplica, query: query})
}

func (h *host) stop(v *volume) *answer {
	h.s.Helper()
	return h.post(escache.PathStop, escache.StopRequest{VolumeRef: v.VolumeRef})
}

func (h *host) mode(v *volume, mode escache.Mode) *answer {
	h.s.Helper()
	return h.post(escache.PathMode, escache.ModeRequest{VolumeRef: v.VolumeRef, Mode: mode})
}

func (h *host) options(v *volume, epoch int64, o escache.CacheOptions) *answer {
	h.s.Helper()
	return h.post(escache.PathOptions, escache.OptionsRequest{VolumeRef: v.VolumeRef, Epoch: epoch, Options: o})
}

func (h *host) release(v *volume) *answer {
	h.s.Helper()
	return h.post(escache.PathRelease, escache.ReleaseRequest{VolumeRef: v.VolumeRef})
}

func (h *host) resize(v *volume, size int64) *answer {
	h.s.Helper()
	return h.post(escache.PathResize, escache.ResizeRequest{VolumeRef: v.VolumeRef, SizeBytes: size})
}

func (h *host) hold(v *volume, seconds int) *answer {
	h.s.Helper()
	return h.post(escache.PathHold, escache.HoldRequest{VolumeRef: v.VolumeRef, MaxSeconds: seconds})
}

func (h *host) pause(v *volume, seconds int) *answer {
	h.s.Helper()
	return h.post(escache.PathHold, escache.HoldRequest{VolumeRef: v.VolumeRef, MaxSeconds: seconds, Pause: true})
}

func (h *host) flush(v *volume, seconds int) *answer {
	h.s.Helper()
	return h.post(escache.PathFlush, escache.FlushRequest{VolumeRef: v.VolumeRef, TimeoutSeconds: seconds})
}

func (h *host) connect(v *volume, epoch int64, imageID string) *answer {
	h.s.Helper()
	return h.post(escache.PathDevConnect, escache.ConnectRequest{
		VolumeRef: v.VolumeRef, ImageID: imageID, Epoch: epoch, Engine: h.s.target.Engine,
	})
}

// laid makes a volume with a replica on both hosts.
func (s *suite) laid() *volume {
	s.Helper()
	v := s.newVolume()
	put := request{method: http.MethodPut, path: escache.PathReplica, body: encode(s, v.request())}
	answers := onBoth(s, func(h *host) (*answer, error) { return h.try(s.Context(), put) })
	for i, h := range []*host{s.first, s.second} {
		if answers[i].err != nil {
			s.Fatalf("%s: create the replica of %s: %v", h.Name, v, answers[i].err)
		}
		done(s, "create the replica of "+v.String()+" on "+h.Name, answers[i].value)
	}
	return v
}

// result is the answer to a call on one of the hosts.
type result[R any] struct {
	value R
	err   error
}

// onBoth makes a call on both hosts at the same time. The call must not end the check: it runs on a
// goroutine of its own.
func onBoth[R any](s *suite, call func(*host) (R, error)) [2]result[R] {
	var (
		both    sync.WaitGroup
		results [2]result[R]
	)
	for i, h := range []*host{s.first, s.second} {
		both.Go(func() { results[i].value, results[i].err = call(h) })
	}
	both.Wait()
	return results
}

// connected makes a volume that is connected on the first host.
func (s *suite) connected() *volume {
	s.Helper()
	v := s.laid()
	v.attach(s.first)
	return v
}

// attach connects the volume to a host with a new epoch, on record.
func (v *volume) attach(h *host) escache.ConnectResponse {
	v.s.Helper()
	v.record(h, v.epoch+1)
	var connected escache.ConnectResponse
	decode(v.s, h.connect(v, v.epoch, v.id), &connected)
	v.device = connected.Device
	return connected
}

func (v *volume) record(h *host, epoch int64) {
	v.s.Helper()
	v.epoch = epoch
	if v.s.target.Record == nil {
		return
	}
	if err := v.s.target.Record(v.s.Context(), v.VolumeRef, v.id, h.Name, epoch); err != nil {
		v.s.Fatalf("record that %s has %s: %v", h.Name, v, err)
	}
}

// clean flushes and demands zero.
func (v *volume) clean(h *host) {
	v.s.Helper()
	var flushed escache.FlushResponse
	decode(v.s, h.flush(v, v.s.seconds()), &flushed)
	if !flushed.Clean || flushed.DirtyBytes != 0 {
		v.s.Fatalf("%s: flush of %s answered %+v, want clean with nothing dirty", h.Name, v, flushed)
	}
}

// detach flushes and stops.
func (v *volume) detach(h *host) {
	v.s.Helper()
	v.clean(h)
	done(v.s, "stop "+v.String(), h.stopClosed(v))
}

// closing is how long a device that nobody uses any more may be open: hosts look at a device whose
// writer has closed it.
const closing = 10 * time.Second

// stopClosed stops a device that nobody uses.
func (h *host) stopClosed(v *volume) *answer {
	h.s.Helper()
	for end := time.Now().Add(closing); ; time.Sleep(100 * time.Millisecond) {
		a := h.stop(v)
		if a.code() != escache.CodeDeviceOpen || time.Now().After(end) {
			return a
		}
	}
}

// seconds is the time a flush gets that ought to end.
func (s *suite) seconds() int { return max(1, int(s.target.CallTimeout/time.Second)-5) }

// pattern is data that no other volume and no other place of this one has.
func pattern(seed, length int64) []byte {
	data := make([]byte, length)
	chacha := rand.NewChaCha8([32]byte{byte(seed), byte(seed >> 8), byte(seed >> 16), byte(seed >> 24)})
	_, _ = chacha.Read(data)
	return data
}

// write writes a pattern of the given length and returns it.
func (v *volume) write(h *host, offset, length int64) []byte {
	v.s.Helper()
	data := pattern(int64(v.minor)<<8+offset/mib, length)
	ctx, cancel := context.WithTimeout(v.s.Context(), v.s.target.CallTimeout)
	defer cancel()
	if err := h.Devices.Write(ctx, v.device, offset, data); err != nil {
		v.s.Fatalf("%s: write to %s: %v", h.Name, v.device, err)
	}
	return data
}

// holds demands that the device has the data.
func (v *volume) holds(h *host, offset int64, want []byte) {
	v.s.Helper()
	ctx, cancel := context.WithTimeout(v.s.Context(), v.s.target.CallTimeout)
	defer cancel()
	got, err := h.Devices.Read(ctx, v.device, offset, int64(len(want)))
	if err != nil {
		v.s.Fatalf("%s: read from %s: %v", h.Name, v.device, err)
	}
	if !bytes.Equal(got, want) {
		v.s.Errorf("%s: %s has other data at %d than was written", h.Name, v.device, offset)
	}
}

// dirty returns how much is dirty according to the host. If the host does not know, the check fails.
func (v *volume) dirty(h *host) int64 {
	v.s.Helper()
	status := h.status(v.VolumeRef)
	if status.DirtyBytes == nil {
		v.s.Fatalf("%s: dirtyBytes of the connected volume %s is null", h.Name, v)
	}
	return *status.DirtyBytes
}

// makeDirty writes until the host says that something is dirty.
func (v *volume) makeDirty(h *host) []byte {
	v.s.Helper()
	data := v.write(h, 0, 4*mib)
	v.s.eventually("data is dirty after a write to "+v.String(), func() (bool, any) {
		dirty := v.dirty(h)
		return dirty > 0, dirty
	})
	return data
}

// remove takes away what is left, also after a check that failed half way.
func (v *volume) remove() {
	ctx, cancel := context.WithTimeout(context.Background(), v.s.target.CallTimeout)
	defer cancel()
	var errs []error
	for _, ended := range onBoth(v.s, func(h *host) (struct{}, error) { return struct{}{}, v.end(ctx, h) }) {
		errs = append(errs, ended.err)
	}
	query := v.query()
	query.Set("discard", fmt.Sprint(v.s.Failed()))
	query.Set("epoch", fmt.Sprint(math.MaxInt64))
	for _, deleted := range onBoth(v.s, func(h *host) (struct{}, error) {
		a, err := h.call.do(ctx, request{method: http.MethodDelete, path: escache.PathReplica, query: query})
		if err == nil && a.status != http.StatusNoContent {
			err = fmt.Errorf("%s: delete the replica: %s", h.Name, a)
		}
		return struct{}{}, err
	}) {
		errs = append(errs, deleted.err)
	}
	if v.id != "" {
		errs = append(errs, v.s.target.Storage.Remove(ctx, v.VolumeRef))
	}
	if err := errors.Join(errs...); err != nil {
		v.s.Errorf("remove %s: %v", v, err)
	}
}

// end releases, flushes and stops until the host says that the volume is stopped, or for good that
// it is not.
func (v *volume) end(ctx context.Context, h *host) error {
	steps := []request{
		{method: http.MethodPost, path: escache.PathRelease, body: encode(v.s, escache.ReleaseRequest{VolumeRef: v.VolumeRef})},
		{
			method: http.MethodPost, path: escache.PathFlush,
			body: encode(v.s, escache.FlushRequest{VolumeRef: v.VolumeRef, TimeoutSeconds: 30}),
		},
		{method: http.MethodPost, path: escache.PathStop, body: encode(v.s, escache.StopRequest{VolumeRef: v.VolumeRef})},
	}
	passing := []escache.Code{escache.CodeBusy, escache.CodeDeviceOpen, escache.CodeDirty, escache.CodeHeld, escache.CodeStuck}
	for {
		var last *answer
		for _, step := range steps {
			var err error
			if last, err = h.call.do(ctx, step); err != nil {
				return fmt.Errorf("%s: %s: %w", h.Name, step.path, err)
			}
		}
		switch {
		case last.problem == nil || last.code() == escache.CodeNotFound:
			return nil
		case !slices.Contains(passing, last.code()) || ctx.Err() != nil:
			return fmt.Errorf("%s: stop: %s", h.Name, last)
		}
		time.Sleep(200 * time.Millisecond)
	}
}
