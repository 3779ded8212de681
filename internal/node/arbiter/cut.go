package arbiter

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/node/comparison"
	"github.com/escache/escache-csi/internal/node/kube"
)

// longCut is shorter than it takes to give a volume to another host, and to restore etcd to before that.
const longCut = 30 * time.Second

// cuts remembers since when hosts have asked, and nobody could decide.
type cuts struct {
	mu    sync.Mutex
	since map[escache.VolumeRef]cut
	// sound has the attachments of which this process knows that no other host had the volume.
	sound map[escache.VolumeRef]int64
}

type cut struct {
	epoch       int64
	begun, last time.Time
	// question is what csi-controller was asked, and had not answered when the record was read last. An answer may come
	// after escached has given up.
	question string
}

// of returns the cut in which a host asks.
func (c *cuts) of(r escache.OutdatePeerRequest) (cut, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has, known := c.since[r.VolumeRef]
	return has, known && has.epoch == r.Epoch
}

// unknown begins a cut for a question about an attachment of which this process knows nothing: csi-node was started
// since the host lost its peer. The one before may have been asked in vain for long, or may have been refused.
func (c *cuts) unknown(r escache.OutdatePeerRequest, now time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has, known := c.since[r.VolumeRef]
	if sound, is := c.sound[r.VolumeRef]; known && has.epoch == r.Epoch || is && sound == r.Epoch {
		return
	}
	c.since[r.VolumeRef] = cut{epoch: r.Epoch, last: now}
}

// heard takes the outcome of a question to the arbiter. One that nobody could decide begins a cut. After a refusal,
// and if there is no record, the record may only be believed once it is compared: what allows it later may be an
// older one.
func (c *cuts) heard(r escache.OutdatePeerRequest, err error, now time.Time) {
	has, known := c.of(r)
	if !known {
		has = cut{epoch: r.Epoch, begun: now}
	}
	has.last = now
	if _, refused := errors.AsType[*authority.RefusedError](err); refused || errors.Is(err, kube.ErrNotFound) {
		has.begun, has.question = time.Time{}, ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if err == nil {
		delete(c.since, r.VolumeRef)
		c.sound[r.VolumeRef] = r.Epoch
		return
	}
	c.since[r.VolumeRef] = has
}

// asked keeps the question that csi-controller was asked.
func (c *cuts) asked(r escache.OutdatePeerRequest, question string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if has, known := c.since[r.VolumeRef]; known {
		has.question = question
		c.since[r.VolumeRef] = has
	}
}

// takeQuestion returns the question that is kept, and keeps it no longer. It counts only if each try since has read the
// record and found it unanswered, one soon after the other. Else a restored etcd may have it, with an answer of a time
// in which no other host had had the volume.
func (c *cuts) takeQuestion(r escache.OutdatePeerRequest, now time.Time) string {
	has, known := c.of(r)
	c.asked(r, "")
	if !known || now.Sub(has.last) >= longCut {
		return ""
	}
	return has.question
}

// Whole ends a cut: at that time, after the last question, the host wrote to both copies. So no other host can have
// had the volume.
func (a *Arbiter) Whole(volume escache.VolumeRef, epoch int64, at time.Time) {
	a.cuts.mu.Lock()
	defer a.cuts.mu.Unlock()
	a.cuts.sound[volume] = epoch
	if has, known := a.cuts.since[volume]; known && has.epoch == epoch && at.After(has.last) {
		delete(a.cuts.since, volume)
	}
}

// Compared says that csi-controller has just compared the record of an attachment with the image's metadata, before this
// host connects the volume. The first promotion, which may have no peer, needs no other comparison.
func (a *Arbiter) Compared(volume escache.VolumeRef, epoch int64) {
	a.cuts.mu.Lock()
	defer a.cuts.mu.Unlock()
	a.cuts.sound[volume] = epoch
}

// compare reports whether the host was refused, or has asked in vain for so long that the record may have been set
// back since it was read last, or may have done either before this process was there.
func (a *Arbiter) compare(r escache.OutdatePeerRequest) bool {
	a.cuts.unknown(r, a.now())
	has, known := a.cuts.of(r)
	return known && a.now().Sub(has.begun) >= longCut
}

// compared returns the record once csi-controller has compared it with the image's metadata. While this host was
// cut off, another one may have had the volume, and etcd may have been restored to before that.
// An earlier question, if any, need not be put again.
func (a *Arbiter) compared(
	ctx context.Context, v *v1alpha1.CacheVolume, r escache.OutdatePeerRequest, question string,
) (_ *v1alpha1.CacheVolume, err error) {
	read := true
	again := func(ctx context.Context) (*v1alpha1.CacheVolume, error) {
		now, err := a.kube.VolumeOf(ctx, r.VolumeRef)
		if read = err == nil; read {
			_, err = authority.MayGoOnAlone(now, r, a.now())
		}
		return now, err
	}
	if c := v.Status.Comparison; question == "" || c == nil || c.Question != question {
		if question, err = comparison.Put(ctx, a.kube, v, again); err != nil {
			return nil, err
		}
	}
	v, err = comparison.Await(ctx, question, v.Name, again)
	switch {
	case errors.Is(err, authority.ErrRecordBehind):
		return nil, &authority.RefusedError{Code: escache.CodeStaleEpoch, Reason: err.Error()}
	case err != nil && read:
		a.cuts.asked(r, question)
	}
	return v, err
}
