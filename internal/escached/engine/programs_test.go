package engine

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// programsRow is a verb and the programs that it starts, in order.
type programsRow struct {
	verb string
	// before is what happens to the host before the verb, or nil.
	before func(m *machine)
	do     func(e *Engine) error
	ran    string
}

// programsOfALife is a life of a volume. A program costs up to half a second of processor time on a busy
// host, and an attachment waits for each. So a program more, or one less, changes this table.
func programsOfALife() []programsRow {
	life := func(name string) func(*Engine) error {
		verbs := verbsOfALife()
		return verbs[slices.IndexFunc(verbs, func(v lifeVerb) bool { return v.name == name })].do
	}
	put := func(req escache.ReplicaRequest) func(*Engine) error {
		return func(e *Engine) error { return e.PutReplica(context.Background(), req) }
	}
	connect := func(epoch int64) func(*Engine) error {
		return func(e *Engine) error { _, err := connectWith(e, epoch); return err }
	}
	newer := putReq
	newer.Epoch, newer.SizeBytes = 3, 128<<20
	return []programsRow{
		{
			verb: "put_replica, new", do: put(putReq),
			ran: "lvm lvcreate, child write, drbdadm create-md, lvm lvchange tags, drbdadm up",
		},
		{
			verb: "put_replica, repeated", do: put(putReq),
		},
		{
			verb: "dev_connect, the first", do: connect(1),
			ran: "child read, drbdadm new-current-uuid, child sysfs-write, child read, " +
				"lvm lvchange tags, drbdadm primary, child read, child write, " +
				"dmsetup create, dmsetup remove, child read, child write, lvm lvchange tags, dmsetup create, losetup --find, dmsetup create",
		},
		{
			verb: "dev_connect, repeated", do: connect(1),
		},
		{
			verb: "dev_connect, a newer epoch", do: connect(2),
			ran: "lvm lvchange tags",
		},
		{
			verb: "mode", do: life("mode"),
			ran: "dmsetup suspend, dmsetup load, dmsetup resume",
		},
		{
			verb: "options", do: func(e *Engine) error { _, err := optionsWith(e, 2, thirty); return err },
			ran: "dmsetup suspend, dmsetup load, dmsetup resume",
		},
		{
			verb: "hold", do: life("hold"),
			ran: "dmsetup message, dmsetup suspend, dmsetup message, dmsetup suspend",
		},
		{
			verb: "release", do: life("release"),
			ran: "dmsetup load, dmsetup resume, dmsetup resume",
		},
		{
			verb: "resize", do: func(e *Engine) error {
				return e.Resize(context.Background(), escache.ResizeRequest{VolumeRef: ref, SizeBytes: 128 << 20})
			},
			before: func(m *machine) {
				m.image.Bytes = 128 << 20
				m.maps[0] = m.image
			},
			ran: "dmsetup suspend, dmsetup load, dmsetup resume, losetup --set-capacity, " +
				"dmsetup suspend, dmsetup load, dmsetup resume, lvm lvchange tags",
		},
		{
			verb: "flush, dirty", do: life("flush"),
			before: func(m *machine) { m.dirty = 2 },
			ran:    "dmsetup message",
		},
		{
			verb: "flush, clean", do: life("flush"),
		},
		{
			verb: "stop", do: life("stop"),
			ran: "dmsetup remove, losetup --detach, dmsetup remove, child query, child sysfs-write, drbdadm secondary",
		},
		{
			verb: "status of a standby", do: func(e *Engine) error {
				_, err := e.Status(context.Background(), &ref)
				return err
			},
			before: func(m *machine) { m.written() },
			ran:    "child query",
		},
		{
			verb: "put_replica, before another connect", do: put(newer),
			ran: "lvm lvchange tags",
		},
		{
			verb: "dev_connect, after that", do: connect(3),
			ran: "child sysfs-write, child read, drbdadm primary, child read, dmsetup create, losetup --find, dmsetup create",
		},
		{
			verb: "put_replica, another partner", do: put(withPartner("n3", "10.0.0.3")),
			ran: "drbdadm disconnect, lvm lvchange tags, drbdadm adjust",
		},
		{
			verb: "abandon", do: func(e *Engine) error {
				return e.Abandon(context.Background(), escache.AbandonRequest{VolumeRef: ref, Epoch: 4})
			},
			before: func(m *machine) {
				m.freeze(volume.NameOf(ref))
				m.takenOver(4)
			},
			ran: "lvm lvchange tags, drbdadm disconnect, drbdadm detach, drbdadm resume-io, dmsetup remove, losetup --detach, dmsetup remove, " +
				"child sysfs-write, drbdadm secondary, drbdadm down, drbdadm outdate, drbdadm up, lvm lvchange tags",
		},
		{
			verb: "delete_replica", do: life("delete_replica"),
			before: func(m *machine) {
				m.minors[putReq.Minor] = linked(drbd.Connected, drbd.UpToDate)
			},
			ran: "child query, lvm lvchange tags, drbdadm down, child write, drbdadm wipe-md, lvm lvremove",
		},
	}
}

// written is what the peer's I/O does to a standby.
func (m *machine) written() {
	st := m.minors[putReq.Minor]
	st.DiskWrittenKiB++
	m.minors[putReq.Minor] = st
}

func TestTheProgramsThatEachVerbStarts(t *testing.T) {
	m := newMachine(t)
	e := m.start()
	m.wantRan("start without a volume", "lvm vgs, lvm lvs")
	for _, row := range programsOfALife() {
		if row.before != nil {
			row.before(m)
		}
		if err := row.do(e); err != nil {
			t.Fatalf("%s: %v", row.verb, err)
		}
		m.wantRan(row.verb, row.ran)
	}
}

func TestTheProgramsThatAStartOfEscachedStarts(t *testing.T) {
	m := newMachine(t)
	m.threeReplicas()
	m.ran = nil
	m.start()
	m.wantRan("escached is started again under a connected volume and two standbys", "lvm vgs, lvm lvs")
	m.boot()
	m.start()
	slices.Sort(m.ran) // several volumes are recovered at the same time
	m.wantRan("the host boots with three replicas", "child read, "+strings.Repeat("drbdadm adjust, ", 2)+strings.Repeat("drbdadm attach, ", 3)+
		strings.Repeat("drbdadm new-minor, ", 3)+strings.Repeat("drbdadm new-resource, ", 3)+
		"lvm lvchange activate, lvm lvs, lvm vgs")
}

func TestAnLVThatMayNotBeActiveIsActivatedFirst(t *testing.T) {
	m := newMachine(t)
	e := m.start()
	m.killAt = 2
	if died, err := dieAt(func() error { return e.PutReplica(t.Context(), putReq) }); !died {
		t.Fatal(err)
	}
	m.killAt = 0
	m.boot()
	e = m.start()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Errorf("an LV from before the host started is laid: %v", err)
	}
	m.boot()
	if err := e.DeleteReplica(t.Context(), ref, new(int64(1))); err != nil {
		t.Errorf("a replica that DRBD does not run is removed: %v", err)
	}
}

// threeReplicas lays three replicas, of which the first is connected.
func (m *machine) threeReplicas() []string {
	m.t.Helper()
	e := m.start()
	for _, row := range programsOfALife()[:3] {
		if err := row.do(e); err != nil {
			m.t.Fatalf("%s: %v", row.verb, err)
		}
	}
	names := []string{volume.NameOf(ref)}
	for n, other := range []string{"v2", "v3"} {
		req := putReq
		req.Image, req.Port, req.Minor = other, putReq.Port+1+n, putReq.Minor+1+n
		if err := e.PutReplica(m.t.Context(), req); err != nil {
			m.t.Fatal(err)
		}
		names = append(names, volume.NameOf(req.VolumeRef))
	}
	return names
}

func TestAnLVThatCannotBeActivatedKeepsNoOtherDown(t *testing.T) {
	m := newMachine(t)
	names := m.threeReplicas()
	m.boot()
	m.notActivated = names[1]
	e := m.recovered()
	if _, failed := e.faults.Load(names[1]); !failed || len(m.minors) != 2 {
		t.Errorf("the fault is told: %v; %d of 2 other replicas are up", failed, len(m.minors))
	}
}

// wantRan fails if other programs have run since it was called last.
func (m *machine) wantRan(verb, want string) {
	m.t.Helper()
	m.t.Logf("%s: %d programs", verb, len(m.ran))
	if ran := strings.Join(m.ran, ", "); ran != want {
		m.t.Errorf("%s has started\n\t%s\nnot\n\t%s", verb, ran, want)
	}
	m.ran = nil
}
