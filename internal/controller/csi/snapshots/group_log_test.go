package snapshots_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/escachetest"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/pause"
	"github.com/escache/escache-csi/test/csitest"
)

// chain is a writer that writes a number to one volume after the other, each acknowledged before the next, and
// then the next number. So at any moment the numbers fall by one at most, at one place of the chain.
type chain struct {
	w     *world
	names []string
	nodes map[string]string
	refs  map[string]escache.VolumeRef

	mu    sync.Mutex
	last  map[string]uint64 // acknowledged
	taken map[string]uint64 // in the images when their snapshots were taken
}

// chainOf makes volumes of these cache engines, writes to them, and looks at each image when its snapshot is taken.
func (w *world) chainOf(engines ...escache.Engine) *chain {
	w.T.Helper()
	c := &chain{w: w, nodes: map[string]string{}, refs: map[string]escache.VolumeRef{}, last: map[string]uint64{}, taken: map[string]uint64{}}
	for n, engine := range engines {
		name := fmt.Sprint("v", n)
		connect := w.Connected
		if engine == escache.EngineLog {
			connect = w.ConnectedLog
		}
		v, node := connect(name)
		c.nodes[name], c.refs[name] = node, csitest.Ref(v)
		c.names = append(c.names, name)
	}
	w.Images.Taking = func(r volumes.SnapshotRef) {
		for _, name := range c.names {
			if ref := c.refs[name]; ref.Image == r.Image {
				c.mu.Lock()
				c.taken[name] = number(w.Host(c.nodes[name]).InImage(ref, 0))
				c.mu.Unlock()
			}
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for n := uint64(1); ; n++ {
			for _, name := range c.names {
				if pause.For(ctx, 100*time.Microsecond) != nil {
					return
				}
				block := make([]byte, 4096)
				binary.BigEndian.PutUint64(block, n)
				if err := w.Host(c.nodes[name]).Host.Write(ctx, escachetest.DevicePath(c.refs[name]), 0, block); err != nil {
					return // it waited when ctx ended
				}
				c.mu.Lock()
				c.last[name] = n
				c.mu.Unlock()
			}
		}
	}()
	w.T.Cleanup(func() { cancel(); <-ended })
	return c
}

func number(block []byte) uint64 {
	if len(block) < 8 {
		return 0
	}
	return binary.BigEndian.Uint64(block)
}

// advances waits until the writer has gone round twice, or for a time if it cannot.
func (c *chain) advances() {
	last := c.names[len(c.names)-1]
	read := func() uint64 { c.mu.Lock(); defer c.mu.Unlock(); return c.last[last] }
	for want, until := read()+2, time.Now().Add(100*time.Millisecond); read() < want && time.Now().Before(until); {
		time.Sleep(time.Millisecond)
	}
}

// oneMoment fails unless the snapshots are of one moment after acknowledged numbers.
func (c *chain) oneMoment(acknowledged uint64) {
	c.w.T.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	var got []uint64
	for _, name := range c.names {
		got = append(got, c.taken[name])
	}
	falling := slices.IsSortedFunc(got, func(a, b uint64) int { return int(int64(b - a)) })
	if !falling || got[0] > got[len(got)-1]+1 || got[len(got)-1] < acknowledged {
		c.w.T.Errorf("the snapshots have %v, which was at no moment after %d was written", got, acknowledged)
	}
}

// TestVolumesOfTheLogEngineHaveAMomentInCommon: their writes go on while they are held, unless the hold pauses
// them. Each hold comes when the writer has gone on after the one before, if it could.
func TestVolumesOfTheLogEngineHaveAMomentInCommon(t *testing.T) {
	for name, engines := range map[string][]escache.Engine{
		"log alone":            {escache.EngineLog, escache.EngineLog, escache.EngineLog},
		"beside the other one": {escache.EngineLog, escache.EngineWritecache, escache.EngineLog},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			c := w.chainOf(engines...)
			var delayed []string
			for _, node := range c.nodes {
				if !slices.Contains(delayed, node) {
					delayed = append(delayed, node)
				}
			}
			for n := range 3 {
				c.advances()
				c.mu.Lock()
				acknowledged := c.last[c.names[len(c.names)-1]]
				c.mu.Unlock()
				for _, node := range delayed {
					w.Host(node).Before("POST "+escache.PathHold, c.advances)
				}
				_, err := w.SnapGroup(fmt.Sprint("g", n), c.names...)
				csitest.Must(t, err)
				c.oneMoment(acknowledged)
			}
		})
	}
}

// TestAHostThatCannotPauseGetsNoGroupSnapshot: its escached is older, or only says that it pauses.
func TestAHostThatCannotPauseGetsNoGroupSnapshot(t *testing.T) {
	for _, rule := range []string{"pause is an unknown field", "a pause is ignored"} {
		t.Run(rule, func(t *testing.T) {
			w := newWorld(t)
			v, node := w.ConnectedLog("log")
			other, beside := w.Connected("a")
			w.Images.Taking = func(r volumes.SnapshotRef) { t.Errorf("%s is taken", r) }
			w.Host(node).Break(rule)
			_, err := w.SnapGroup("g", "a", "log")
			csitest.Wants(t, err, codes.FailedPrecondition, "volume log", "node "+node, "upgrade escached")
			w.noneOf(func() (held []string) {
				for at, v := range map[string]*v1alpha1.CacheVolume{node: v, beside: other} {
					if w.Host(at).Held(csitest.Ref(v)) {
						held = append(held, v.Name)
					}
				}
				return held
			})
			w.Images.Taking = nil
			_, err = w.Snap("s", "log") // one volume alone needs no pause
			csitest.Must(t, err)
			w.Host(node).Break("")
			_, err = w.SnapGroup("g", "a", "log")
			csitest.Must(t, err)
		})
	}
}

// TestAPauseThatEndsTooEarlyIsNoGroupSnapshot: it may have ended before the others began, so nothing is of one moment.
func TestAPauseThatEndsTooEarlyIsNoGroupSnapshot(t *testing.T) {
	w := newWorld(t)
	v, node := w.ConnectedLog("log")
	w.ConnectedLog("a")
	w.Images.Taking = func(volumes.SnapshotRef) { w.Host(node).EndHold(csitest.Ref(v)) }
	_, err := w.SnapGroup("g", "a", "log")
	csitest.Wants(t, err, codes.Aborted, "volume log", "resumed writing")
	if len(w.Images.Taken) > 0 {
		t.Errorf("taken %v", w.Images.Taken)
	}
}
