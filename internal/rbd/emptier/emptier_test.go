package emptier

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

var errParent, errOpen = errors.New("has clones"), errors.New("somebody has it open")

// trash is a trash whose large images are purged when the test says so.
type trash struct {
	mu      sync.Mutex
	images  map[string]Image
	objects map[string]int64
	clones  map[string]string // of an image, the image that must go first
	broken  map[string]bool
	opens   map[string]string // of an image, another one that its purge opens
	running int
	most    int
	refused int
	release chan struct{}
	purged  chan string
}

func newTrash() *trash {
	return &trash{
		images: map[string]Image{}, objects: map[string]int64{}, clones: map[string]string{}, broken: map[string]bool{},
		opens: map[string]string{}, release: make(chan struct{}), purged: make(chan string, 1000),
	}
}

var noon = time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)

func (t *trash) add(id string, objects int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.images[id] = Image{Pool: "rbd", ID: id, Name: id, Deleted: noon.Add(time.Duration(len(t.images)) * time.Second)}
	t.objects[id] = objects
}

func (t *trash) List(context.Context) ([]Image, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Image
	for _, i := range t.images {
		all = append(all, i)
	}
	return all, nil
}

const objectBytes = 4 << 20

func (t *trash) Measure(_ context.Context, i Image) (Size, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return Size{t.objects[i.ID] * objectBytes, t.objects[i.ID]}, nil
}

// Purge tells of a large image that half of it is gone, and then waits.
func (t *trash) Purge(ctx context.Context, i Image, left func(bytes int64)) error {
	t.mu.Lock()
	t.running++
	t.most = max(t.most, t.running)
	large := t.objects[i.ID] > largeObjects
	objects := t.objects[i.ID]
	t.mu.Unlock()
	if large {
		left(objects / 2 * objectBytes)
		select {
		case <-t.release:
		case <-ctx.Done():
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running--
	switch _, waits := t.images[t.clones[i.ID]]; {
	case ctx.Err() != nil:
		return ctx.Err()
	case waits:
		return errParent
	case t.open(i.ID):
		return errOpen
	case t.broken[i.ID]:
		t.refused++
		return errors.New("in use")
	}
	delete(t.images, i.ID)
	t.purged <- i.ID
	return nil
}

// open reports whether the purge of another image has opened it.
func (t *trash) open(id string) bool {
	for other := range t.images {
		if t.opens[other] == id {
			return true
		}
	}
	return false
}

func (*trash) Waits(err error) bool { return errors.Is(err, errParent) }

func (*trash) Open(err error) bool { return errors.Is(err, errOpen) }

// run runs an emptier, and returns it and what kicks it.
func run(t *testing.T, of *trash) (*Emptier, chan struct{}) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	e, kicked, ended := New(of, slog.New(slog.DiscardHandler)), make(chan struct{}, 1), make(chan struct{})
	go func() { defer close(ended); e.Run(ctx, kicked) }()
	t.Cleanup(func() { stop(); <-ended })
	return e, kicked
}

// waitUntilRunning waits until so many images are being purged at once.
func (t *trash) waitUntilRunning(tt *testing.T, n int) {
	tt.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		t.mu.Lock()
		running := t.running
		t.mu.Unlock()
		if running == n {
			return
		}
	}
	tt.Fatalf("never were %d purges under way", n)
}

func (t *trash) waitFor(tt *testing.T, n int) map[string]bool {
	tt.Helper()
	got := map[string]bool{}
	for range n {
		select {
		case id := <-t.purged:
			got[id] = true
		case <-time.After(time.Minute):
			tt.Fatalf("only %v of %d are purged", got, n)
		}
	}
	return got
}

// However many large images are in the trash, and whatever was deleted before them or after.
func TestSmallImagesDoNotWaitForLargeOnes(t *testing.T) {
	of := newTrash()
	for n := range 6 {
		of.add(fmt.Sprint("large", n), largeObjects+1)
	}
	for n := range 20 {
		of.add(fmt.Sprint("small", n), 10)
	}
	e, kicked := run(t, of)
	kicked <- struct{}{}
	of.waitFor(t, 20)
	// Deleted while the large ones are being purged.
	of.add("late", 10)
	kicked <- struct{}{}
	if got := of.waitFor(t, 1); !got["late"] {
		t.Errorf("purged %v", got)
	}
	var s []PoolState
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if s = e.States(); s[0].Images == 6 { // purged is told a moment before it is counted
			break
		}
	}
	if len(s) != 1 || s[0].Images != 6 || !s[0].Oldest.Equal(noon) {
		t.Errorf("states %+v", s)
	}
	close(of.release)
	of.waitFor(t, 6)
	if of.most > Workers {
		t.Errorf("%d purges at once", of.most)
	}
}

func TestLargeImagesDoNotTakeAllWorkers(t *testing.T) {
	of := newTrash()
	for n := range 2 * Workers {
		of.add(fmt.Sprint("large", n), largeObjects+1)
	}
	_, kicked := run(t, of)
	kicked <- struct{}{}
	of.waitUntilRunning(t, largeAtOnce)
	for range 2 * Workers {
		of.release <- struct{}{}
		of.waitFor(t, 1)
	}
	if of.most != largeAtOnce {
		t.Errorf("%d large ones at once", of.most)
	}
}

func TestParentsArePurgedAfterTheirClones(t *testing.T) {
	of := newTrash()
	of.add("parent", 1)
	of.add("child", 1)
	of.add("grandchild", 1)
	of.add("broken", 1)
	of.clones = map[string]string{"parent": "child", "child": "grandchild"}
	of.broken["broken"] = true
	left, err := New(of, slog.New(slog.DiscardHandler)).Drain(t.Context())
	if err != nil || len(left) != 1 || left[0].Image.ID != "broken" || len(of.images) != 1 {
		t.Errorf("left %v, %v; in the trash %v", left, err, of.images)
	}
}

// Ceph opens the parent of a clone that it purges, and purges nothing that is open.
func TestAParentIsPurgedAfterTheCloneWhosePurgeOpensIt(t *testing.T) {
	of := newTrash()
	of.add("parent", 1)
	of.add("clone", largeObjects+1) // its purge ends when the test says so
	of.opens["clone"] = "parent"
	_, kicked := run(t, of)
	kicked <- struct{}{}
	of.waitUntilRunning(t, 1) // the parent was refused
	close(of.release)
	if got := of.waitFor(t, 2); !got["parent"] || !got["clone"] {
		t.Errorf("purged %v", got)
	}
}

func TestAFailureIsNotRepeatedAtOnce(t *testing.T) {
	of := newTrash()
	of.add("broken", 1)
	of.broken["broken"] = true
	begun := time.Now()
	_, kicked := run(t, of)
	for n := range 10 {
		of.add(fmt.Sprint(n), 1)
		kicked <- struct{}{}
		of.waitFor(t, 1)
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	if most := 1 + int(time.Since(begun)/every); of.refused > most {
		t.Errorf("tried %d times", of.refused)
	}
}

// What was looked at counts, and what is gone of it no longer does; a list changes nothing of that.
func TestStatesTellHowMuchIsLeft(t *testing.T) {
	of := newTrash()
	for n := range largeAtOnce + 1 {
		of.add(fmt.Sprint("large", n), 4*largeObjects)
	}
	e, kicked := run(t, of)
	kicked <- struct{}{}
	of.waitUntilRunning(t, largeAtOnce)
	const image = 4 * largeObjects * objectBytes
	// One waits, half of each of the others is gone.
	for deadline := time.Now().Add(time.Minute); e.States()[0].Bytes != image+largeAtOnce*image/2; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d bytes of images of %d", e.States()[0].Bytes, int64(image))
		}
	}
	of.add("small", 1)
	kicked <- struct{}{}
	of.waitFor(t, 1)
	if got := e.States()[0].Bytes; got != image+largeAtOnce*image/2 && got != image+largeAtOnce*image/2+objectBytes {
		t.Errorf("after another list: %d bytes", got)
	}
	close(of.release)
	of.waitFor(t, largeAtOnce+1)
}

func TestMetricsTellOfTheOldestImage(t *testing.T) {
	states := []PoolState{{Cluster: "c", Pool: "full", Images: 2, Oldest: noon, Bytes: 5}, {Cluster: "c", Pool: "empty"}}
	r := prometheus.NewPedanticRegistry()
	r.MustRegister(NewCollector(func() []PoolState { return states }, func() time.Time { return noon.Add(90 * time.Second) }))
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			got[f.GetName()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
		}
	}
	want := map[string]float64{
		"escache_trash_images full": 2, "escache_trash_images empty": 0,
		"escache_trash_bytes full": 5, "escache_trash_bytes empty": 0,
		"escache_trash_oldest_seconds full": 90, "escache_trash_oldest_seconds empty": 0,
	}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}
