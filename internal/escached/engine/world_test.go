package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/memory"
	"github.com/escache/escache-csi/internal/escached/trim"
)

// world is one host as the engine sees it through its layers, with a peer that is there and
// answers. Every change goes through step, which a test can make fail or kill the engine.
type world struct {
	t     *testing.T
	dir   string
	free  int64
	lvs   map[string]lvm.Volume
	md    map[string]bool // DRBD metadata was created
	files map[string]drbd.Resource
	// halfWritten means that a killed escached has left a resource file under another name.
	halfWritten bool
	minors      map[int]drbd.Status
	maps        []krbd.Device
	// forFilesystem means that the last map was made for a filesystem that uses it without a cache.
	forFilesystem bool
	image         krbd.Device
	mapErr        error
	// findErr is why the maps cannot be listed.
	findErr error
	// mapOpen means that something has the mapped image itself open.
	mapOpen bool
	// mapping is called while an image is being mapped.
	mapping func()
	// stuck are the children that hang in the kernel, by the name of the volume.
	stuck  map[string]*command.StuckError
	caches *cachetest.Fake
	// notActivated is the LV of a volume whose disk is away.
	notActivated string
	// log is the second engine of the host, nil if it has none.
	log *cachetest.Fake
	// lost is set once the host was cut off in a life with a loss.
	lost bool
	// lostOnLeaving is a peer that is lost just when it is to be left, and an arbiter that does not
	// grant going on.
	lostOnLeaving bool
	// userKilled means that the process that waits for a frozen write was killed.
	userKilled bool
	// ioFailed is told when frozen I/O was made to fail.
	ioFailed func()
	// drbdRead is told when the state of the replicas was read.
	drbdRead func()
	// missingDisks is how many disks of the volume group LVM does not find.
	missingDisks int
	// reports counts how often LVM was asked.
	reports  int
	groupID  string
	spaceErr error
	// address is this host's on the replication network.
	address string
	// running are the resources as the kernel's links have taken them from their files.
	running map[string]drbd.Resource
	// fresh are the replicas whose disk DRBD uses for the first time.
	fresh map[string]bool
	// outdated are the replicas marked so on their disks.
	outdated map[string]bool
	// conceded are the replicas that only their peers fill.
	conceded map[string]bool
	// peerWaits: the peer is connected as soon as a replica that was Primary is up again.
	peerWaits bool
	// record is what the arbiter answers; recordErr is why it does not.
	record    escache.VolumeRecord
	recordErr error
	// tellErr is what the arbiter answers to a failed disk, told what it was told.
	tellErr error
	told    []escache.OutdateSelfRequest
	// listensErr is why the peer does not wait for the link, and dialled are the addresses at which it was looked for.
	listensErr error
	dialled    []string
	// unfrozen are the minors whose I/O DRBD does not freeze when the peer is lost.
	unfrozen map[int]bool
	// outdatePeerErr is what the arbiter answers to a host that wants to go on alone; outdatePeer is
	// called before.
	outdatePeerErr error
	outdatePeer    func(escache.OutdatePeerRequest)
	// promote is what a promotion answers beside what the state says.
	promote error
	// eraseHangsAt: zeroing a disk from this offset on, if it is not 0, takes longer than any call.
	eraseHangsAt int64
	// linkLost: the link breaks just when two new replicas are declared equal, once.
	linkLost bool
	// trimmed are the requests to trim a filesystem, and trimErr is why there is no answer.
	trimmed []trim.Request
	trimErr error
	// memory is the host's. What its connected caches take is not available any more.
	memory    memory.Reading
	memoryErr error

	steps []string
	// failAt and killAt are numbers of steps, from 1.
	failAt, killAt int
	// late: a change of tags that fails is made all the same, as by an lvchange that was killed while it waited for the disk.
	late bool
}

type killed struct{ at string }

var (
	errInjected = errors.New("injected")
	errNoRecord = &escache.Problem{Code: escache.CodeNotFound, Detail: "no such volume on record"}
)

func newWorld(t *testing.T) *world {
	w := &world{
		t: t, dir: t.TempDir(), free: 1 << 30, lvs: map[string]lvm.Volume{}, md: map[string]bool{}, files: map[string]drbd.Resource{},
		address: "10.0.0.1", running: map[string]drbd.Resource{},
		mapping: func() {}, ioFailed: func() {}, drbdRead: func() {}, outdated: map[string]bool{}, conceded: map[string]bool{}, recordErr: errNoRecord,
		fresh:    map[string]bool{},
		unfrozen: map[int]bool{}, outdatePeer: func(escache.OutdatePeerRequest) {},
		memory: memory.Reading{Total: 64 << 30, Available: 32 << 30},
		minors: map[int]drbd.Status{}, caches: cachetest.NewFake(),
		image: krbd.Device{ID: 7, Pool: "rbd", Image: "v1", ImageID: "10ab", Bytes: 64 << 20, Number: "252:7", ClientAddress: "10.0.0.1:0/9"},
	}
	w.plug(w.caches)
	return w
}

func (w *world) step(format string, args ...any) error {
	name := fmt.Sprintf(format, args...)
	w.steps = append(w.steps, name)
	switch len(w.steps) {
	case w.killAt:
		panic(killed{name})
	case w.failAt:
		return fmt.Errorf("%s: %w", name, errInjected)
	}
	return nil
}

func (w *world) engine() *Engine {
	cfg := escached.DefaultConfig()
	cfg.Node, cfg.Address, cfg.RunDir, cfg.DeviceDir = "n1", w.address, filepath.Join(w.dir, "run"), filepath.Join(w.dir, "dev")
	cfg.StateDir = filepath.Join(w.dir, "state")
	e := New(host.New(cfg, "n1", host.Handlers{FencePeer: "fence", DiskFailed: "failed"}, host.Layers{
		Store: (*worldStore)(w), Replicator: (*worldDRBD)(w), Resources: (*worldFiles)(w), States: (*worldDRBD)(w),
		Records: (*worldRecords)(w), Images: (*worldImages)(w),
		Caches: w.engines(), Kernel: worldKernel{}, Memory: (*worldMemory)(w), KillUsers: (*worldDRBD)(w).KillUsers,
		Stuck: func() map[string]*command.StuckError { return w.stuck }, Trimmer: (*worldTrimmer)(w), Listens: w.listens,
	}), "test", slog.New(slog.DiscardHandler))
	e.recoverAtOnce = 1 // the played host is not safe for concurrent use
	return e
}

// restarted is the engine after a start: everything it knows it found.
func (w *world) restarted() *Engine {
	w.t.Helper()
	w.failAt, w.killAt = 0, 0
	e := w.engine()
	if err := e.Recover(context.Background()); err != nil {
		w.t.Fatalf("recover: %v", err)
	}
	e.faults.Range(func(name, why any) bool { w.t.Fatalf("recover %v: %v", name, why); return false })
	return e
}

// left lists what is on the host.
func (w *world) left() []string {
	var out []string
	for name := range w.lvs {
		out = append(out, "lv "+name)
	}
	for name := range w.files {
		out = append(out, "file "+name)
	}
	for minor, st := range w.minors {
		out = append(out, fmt.Sprintf("minor %d %s", minor, st.Role))
	}
	for _, m := range w.maps {
		out = append(out, "map "+m.Image)
	}
	for _, engine := range w.fakes() {
		for _, name := range engine.Assembled() {
			out = append(out, "cache "+name)
		}
	}
	return out
}

func (w *world) minorOf(name string) int { return w.files[name].Minor }

type worldTrimmer world

func (f *worldTrimmer) Trim(_ context.Context, _ string, r trim.Request) (trim.Result, error) {
	f.trimmed = append(f.trimmed, r)
	return trim.Result{Next: r.Start + 1<<30, Trimmed: 4096}, f.trimErr
}

type worldMemory world

func (m *worldMemory) Read() (memory.Reading, error) {
	now := m.memory
	for _, name := range m.caches.Assembled() {
		now.Available -= m.caches.Memory(m.lvs[name].Bytes)
	}
	return now, m.memoryErr
}

type worldStore world

func (s *worldStore) Space(context.Context) (lvm.Space, error) {
	s.reports++
	return lvm.Space{GroupID: s.groupID, Capacity: 1 << 30, Free: s.free, Extent: 4 << 20, Missing: s.missingDisks}, s.spaceErr
}

func (s *worldStore) Volumes(context.Context, bool) ([]lvm.Volume, error) {
	var out []lvm.Volume
	for _, lv := range s.lvs {
		out = append(out, lv)
	}
	return out, nil
}

func (s *worldStore) Create(_ context.Context, name string, size int64, tags map[string]string) error {
	if err := (*world)(s).step("lvcreate"); err != nil {
		return err
	}
	if size > s.free {
		return lvm.ErrNoRoom
	}
	s.free -= size
	s.lvs[name] = lvm.Volume{Name: name, Bytes: size, Active: true, Tags: tags}
	copy(s.caches.Raw(s.Path(name)), "old data of another volume")
	return nil
}

func (s *worldStore) Remove(_ context.Context, name string) (was bool, err error) {
	if err := (*world)(s).step("lvremove"); err != nil {
		return false, err
	}
	if _, used := s.files[name]; used {
		s.t.Errorf("the LV goes before the resource file")
	}
	lv, was := s.lvs[name]
	s.free += lv.Bytes
	delete(s.lvs, name)
	return was, nil
}

func (s *worldStore) Activate(_ context.Context, names ...string) error {
	if err := (*world)(s).step("lvactivate"); err != nil {
		return err
	}
	var err error
	for _, name := range names {
		lv, there := s.lvs[name]
		if !there || name == s.notActivated {
			err = fmt.Errorf("failed to activate %s", name)
			continue
		}
		lv.Active = true
		s.lvs[name] = lv
	}
	return err
}

func (s *worldStore) Erase(ctx context.Context, name string, offset, size int64) error {
	if err := (*world)(s).step("erase %d+%d", offset, size); err != nil {
		return err
	}
	if s.eraseHangsAt > 0 && offset >= s.eraseHangsAt {
		<-ctx.Done()
		return ctx.Err()
	}
	disk := s.caches.Raw(s.Path(name))
	end := min(offset+size, int64(len(disk)))
	if size == 0 {
		end = int64(len(disk))
	}
	if offset < end {
		clear(disk[offset:end])
	}
	if size == 0 {
		s.md[name] = false // DRBD's metadata is at the end
	}
	return nil
}

func (s *worldStore) Retag(_ context.Context, name string, from, to map[string]string) error {
	err := (*world)(s).step("retag")
	if err != nil && !s.late {
		return err
	}
	lv := s.lvs[name]
	if !maps.Equal(lv.Tags, from) {
		s.t.Errorf("retag from %v, but there is %v", from, lv.Tags)
	}
	lv.Tags = to
	s.lvs[name] = lv
	return err
}

func (s *worldStore) Rewrite(_ context.Context, name string, tags map[string]string) error {
	if err := (*world)(s).step("rewrite"); err != nil {
		return err
	}
	lv := s.lvs[name]
	lv.Tags = tags
	s.lvs[name] = lv
	return nil
}

func (s *worldStore) Path(name string) string { return "/dev/vg/" + name }

type worldFiles world

func (f *worldFiles) Write(r drbd.Resource) (bool, error) {
	if f.files[r.Name] == r {
		return false, nil
	}
	f.files[r.Name] = r
	return true, nil
}

func (f *worldFiles) Forget(name string) error {
	delete(f.files, name)
	return nil
}

func (f *worldFiles) Tidy() error {
	f.halfWritten = false
	return nil
}

func (f *worldFiles) List(prefix string) ([]string, error) {
	var out []string
	for name := range f.files {
		if strings.HasPrefix(name, prefix) {
			out = append(out, name)
		}
	}
	return out, nil
}

// listens is the peer's port of the link.
func (w *world) listens(_ context.Context, address string) error {
	w.dialled = append(w.dialled, address)
	return w.listensErr
}

type worldRecords world

func (r *worldRecords) Record(_ context.Context, ref escache.VolumeRef) (escache.VolumeRecord, error) {
	if r.recordErr != nil {
		return escache.VolumeRecord{}, r.recordErr
	}
	record := r.record
	record.VolumeRef = ref
	return record, nil
}

func (r *worldRecords) OutdateSelf(_ context.Context, req escache.OutdateSelfRequest) error {
	r.told = append(r.told, req)
	return r.tellErr
}

func (r *worldRecords) OutdatePeer(_ context.Context, req escache.OutdatePeerRequest) error {
	if err := (*world)(r).step("outdate-peer"); err != nil {
		return err
	}
	r.outdatePeer(req)
	return r.outdatePeerErr
}
