package engine

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/crashpoint"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/traces"
)

// flushJob is a write-back. It cannot be cancelled and takes as long as Ceph takes, so the job
// keeps the volume locked until then. A caller whose time is up leaves the job running, and the
// next caller joins it.
type flushJob struct {
	// attended is true while a caller waits for the job.
	attended bool
	// wanted ends when no caller waits any more. The job then stops after the running write-back.
	wanted context.CancelFunc
	done   chan struct{}
	err    error // valid once done is closed
	// dirty is the number of dirty bytes when the job began.
	dirty atomic.Int64
}

// flushes has the running flush jobs, by the name of the volume.
type flushes struct {
	mu   sync.Mutex
	jobs map[string]*flushJob
}

func newFlushes() *flushes { return &flushes{jobs: map[string]*flushJob{}} }

// flushTimeout bounds a flush that Ceph never completes.
const flushTimeout = 24*time.Hour + time.Minute

// Flush writes back until nothing is dirty or TimeoutSeconds have passed. It then returns what is
// still dirty.
func (e *Engine) Flush(ctx context.Context, req escache.FlushRequest) (escache.FlushResponse, error) {
	none := escache.FlushResponse{}
	if e.isUncached(req.VolumeRef) {
		return e.uncached.Flush(req)
	}
	v, err := e.Known(req.VolumeRef)
	if err != nil {
		return none, err
	}
	start := e.Now()
	timer := time.NewTimer(time.Duration(req.TimeoutSeconds) * time.Second)
	defer timer.Stop()
	for {
		answer, goOn, err := e.flushOnce(ctx, v, req.Epoch, timer.C)
		if err != nil || !goOn {
			e.metrics.Flushed(v, e.Now().Sub(start), answer.flushed, answer.Clean)
			return answer.FlushResponse, err
		}
	}
}

// flushAnswer is the result of one job. flushed is the number of bytes that it has written.
type flushAnswer struct {
	escache.FlushResponse

	flushed int64
}

// flushOnce waits until a job is done or the time is up, then reads what is dirty. goOn is true if
// something has become dirty since the job found nothing dirty, and there is time for another job.
func (e *Engine) flushOnce(
	ctx context.Context, v volume.Volume, epoch int64, timeUp <-chan time.Time,
) (answer flushAnswer, goOn bool, err error) {
	ctx, step := traces.Begin(ctx, "write back")
	defer step.Done(&err)
	var job *flushJob
	err = e.AfterOwnWork(ctx, v.VolumeRef, func() (err error) {
		job, err = e.joinFlush(v, epoch)
		return err
	})
	if err != nil {
		return answer, false, err
	}
	done := false
	select {
	case <-job.done:
		done = true
	case <-timeUp:
	}
	e.leaveFlush(job)
	if done && job.err != nil {
		return answer, false, job.err
	}
	// Reading the state has a time limit of its own, on top of the caller's.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), command.DefaultTimeout)
	defer cancel()
	_, dev, err := e.Connected(ctx, v.VolumeRef)
	if err != nil {
		return answer, false, err
	}
	answer.DirtyBytes = dev.Dirty
	answer.Clean = done && dev.Clean()
	answer.flushed = job.dirty.Load() - answer.DirtyBytes
	return answer, done && !answer.Clean, nil
}

// joinFlush returns the volume's running job, or begins one. Both have the volume locked, so that its epoch
// stays.
func (e *Engine) joinFlush(v volume.Volume, epoch int64) (*flushJob, error) {
	e.flushes.mu.Lock()
	defer e.flushes.mu.Unlock()
	name := v.Name()
	if job := e.flushes.jobs[name]; job != nil && !job.attended {
		if err := e.notLate(v.VolumeRef, epoch); err != nil {
			return nil, err
		}
		job.attended = true
		return job, nil
	}
	release, err := e.Lock(v.VolumeRef, "flush")
	if err != nil {
		return nil, err
	}
	if err := e.notLate(v.VolumeRef, epoch); err != nil {
		release()
		return nil, err
	}
	wanted, cancel := context.WithCancel(context.Background())
	job := &flushJob{attended: true, wanted: cancel, done: make(chan struct{})}
	e.flushes.jobs[name] = job
	go func() {
		job.err = e.flushLoop(wanted, v, job)
		e.flushes.mu.Lock()
		delete(e.flushes.jobs, name)
		e.flushes.mu.Unlock()
		release()
		cancel()
		close(job.done)
	}()
	return job, nil
}

// notLate is volume.Volume.NotLate of what is known of the volume now.
func (e *Engine) notLate(ref escache.VolumeRef, epoch int64) error {
	v, err := e.Known(ref)
	if err != nil {
		return err
	}
	return v.NotLate(epoch)
}

func (e *Engine) leaveFlush(job *flushJob) {
	e.flushes.mu.Lock()
	defer e.flushes.mu.Unlock()
	job.attended = false
	job.wanted()
}

// flushLoop repeats the write-back until nothing is dirty: a write-back writes only what was dirty
// when it began. flushLoop ends without an error when no caller waits any more.
func (e *Engine) flushLoop(wanted context.Context, v volume.Volume, job *flushJob) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(wanted), flushTimeout)
	defer cancel()
	repaired := false
	for first := true; first || wanted.Err() == nil; first = false {
		_, dev, err := e.Connected(ctx, v.VolumeRef)
		if err != nil {
			return err
		}
		if err := e.MayTouch(ctx, v, dev); err != nil {
			return err
		}
		if first {
			job.dirty.Store(dev.Dirty)
		}
		switch {
		case dev.Failed && repaired:
			return notTaken(v, dev)
		case dev.Failed:
			err = e.Cache(v).Retry(ctx, v.Name())
			repaired = true
			crashpoint.Reach("flush/reloaded")
		case dev.Dirty == 0 && dev.WritingBack == 0:
			return nil
		default:
			crashpoint.Reach("flush/begin")
			if err = e.Cache(v).WriteBack(ctx, v.Name()); err != nil {
				err = e.whyNotFlushed(ctx, v, err)
			}
			crashpoint.Reach("flush/flushed")
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// whyNotFlushed returns a better error than err if Ceph refused the data.
func (e *Engine) whyNotFlushed(ctx context.Context, v volume.Volume, err error) error {
	dev, connected, look := e.Device(ctx, v.Name())
	if look != nil || !connected || !dev.Failed {
		return err
	}
	return notTaken(v, dev)
}

func notTaken(v volume.Volume, dev cache.State) error {
	return v.Fail(escache.CodeCacheError, "Ceph did not take the data written back: %d bytes stay in the cache, which fails all I/O "+
		"until a flush succeeds; look at Ceph and at the kernel's log, then flush again", dev.Dirty)
}
