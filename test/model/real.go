package model

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// rules calls the functions that decide in production. They are pure, so an answer is remembered.
type rules struct {
	attaches map[attachQuestion]attachAnswer
	confirms map[confirmQuestion]attachAnswer
	detaches map[detachQuestion]detachAnswer
	settled  map[settledQuestion]bool
	staged   map[stageQuestion]bool
	granted  map[aloneQuestion]bool
	failed   map[selfQuestion]selfAnswer
	lifted   map[goneQuestion]bool
}

func newRules() rules {
	return rules{
		attaches: map[attachQuestion]attachAnswer{}, confirms: map[confirmQuestion]attachAnswer{},
		detaches: map[detachQuestion]detachAnswer{},
		settled:  map[settledQuestion]bool{}, staged: map[stageQuestion]bool{}, granted: map[aloneQuestion]bool{},
		lifted: map[goneQuestion]bool{}, failed: map[selfQuestion]selfAnswer{},
	}
}

type (
	attachQuestion struct {
		rec  record
		node uint8
	}
	confirmQuestion struct {
		rec  record
		node uint8
		seen [hosts]report
	}
	attachAnswer struct {
		plan authority.Attachment
		ok   bool
	}
	detachQuestion struct {
		rec    record
		node   uint8
		holder report
		dead   bool
		// flush: it is the controller's own attachment that ends, flushed or not.
		flush, flushed bool
	}
	detachAnswer struct {
		plan authority.Detachment
		ok   bool
	}
	settledQuestion struct {
		rec  record
		seen [hosts]report
	}
	goneQuestion struct {
		rec    record
		host   int
		client uint8
		of     report
	}
	stageQuestion struct {
		rec         record
		node, epoch uint8
	}
	selfQuestion struct {
		rec        record
		node, peer uint8
	}
	selfAnswer    struct{ ok, last bool }
	aloneQuestion struct {
		rec               record
		node, peer, epoch uint8
	}
)

// report is what a host's escached would answer.
type report struct {
	silent, absent, device, primary, current, dirty bool
	// diskless: its disk has failed. written: its peer is linked and Primary.
	diskless, written bool
	client, epoch     uint8
	// other: it is the peer that answers, and says so.
	other bool
}

// report is what the controller gets when it asks for a host.
func (m *Model) report(s *state, h uint8) report {
	n := &s.host[h]
	switch {
	case n.elsewhere:
		of := report{silent: true}
		if n.peer != nobody && !s.host[n.peer].elsewhere {
			of = m.report(s, n.peer)
		}
		of.other = m.on(OnlyTheHostItself)
		return of
	case n.early && n.up && n.control && !m.on(SilentBeforeRecovery):
		return report{} // taken for a standby
	case !s.reaches(h):
		return report{silent: true}
	}
	return report{
		absent: !n.laid, device: n.device, primary: n.primary, client: n.client, epoch: n.tag,
		current: n.upToDate && !n.inconsistent && !n.diskless, dirty: n.dirty != 0,
		diskless: n.diskless, written: m.on(PrimaryPeerSeen) && s.connected(h) && s.host[n.peer].primary,
	}
}

var errSilent = errors.New("no answer")

// real is what the host answers.
func (r report) real() (escache.VolumeStatus, error) {
	if r.silent {
		return escache.VolumeStatus{}, errSilent
	}
	s := escache.VolumeStatus{State: escache.StateStandby, Role: escache.RoleSecondary, DiskState: escache.DiskConsistent}
	switch {
	case r.device:
		s.State, s.Device = escache.StateConnected, "/dev/escache/p/i"
	case r.absent:
		s.State = escache.StateAbsent
	}
	if r.other {
		s.Node = "the peer"
	}
	if r.primary {
		s.Role = escache.RolePrimary
	}
	if r.diskless {
		s.DiskState = escache.DiskDiskless
	}
	if r.written {
		s.Peers = []escache.Peer{{Role: escache.RolePrimary, ConnectionState: escache.LinkConnected}}
	}
	s.Epoch = int64(r.epoch)
	if r.device {
		s.ClientAddress = address(r.client)
	}
	if r.current {
		bytes := int64(0)
		if r.dirty {
			bytes = 4096
		}
		s.DiskState, s.DirtyBytes = escache.DiskUpToDate, &bytes
	}
	return s, nil
}

// heard is what is known of the host with this name from its answer.
func (r report) heard(v *v1alpha1.CacheVolume, node string) authority.Report {
	status, err := r.real()
	return authority.Heard(v, node, status, err)
}

func address(client uint8) string { return fmt.Sprintf("10.0.0.1:0/%d", client) }

func (r *record) volume() *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{}
	v.Name, v.Spec.Group, v.Spec.Pool, v.Spec.Image = "v", "g", "p", "i"
	v.Status.Epoch, v.Status.Authority = int64(r.epoch), v1alpha1.AuthorityCeph
	if r.inCache {
		v.Status.Authority = v1alpha1.AuthorityCache
	}
	if r.flush {
		v.Status.FlushEpoch = v.Status.Epoch
	}
	if r.attached != nobody {
		v.Status.AttachedNode = names[r.attached]
	}
	r.replicas.each(func(h uint8) { v.Spec.Replicas = append(v.Spec.Replicas, names[h]) })
	r.outdated.each(func(h uint8) { v.Status.Outdated = append(v.Status.Outdated, names[h]) })
	if r.client != 0 {
		v.Status.ClientAddress = address(r.client)
	}
	for h, of := range r.fenced {
		of.each(func(c uint8) {
			v.Status.Fenced = append(v.Status.Fenced, r.entry(h, c))
		})
	}
	return v
}

// entry is what is on record of a fenced client; the time in which a dev_connect may still be under
// way is over.
func (r *record) entry(h int, c uint8) v1alpha1.FencedClient {
	client := v1alpha1.FencedClient{Address: address(c), Epoch: int64(r.epoch)}
	if h < hosts {
		client.Node = names[h]
	}
	if !r.fencedNow.has(c) {
		client.Epoch--
	}
	return client
}

func (r *rules) attach(rec record, node uint8) (authority.Attachment, bool) {
	q := attachQuestion{rec, node}
	a, known := r.attaches[q]
	if !known {
		plan, err := authority.Attach(rec.volume(), names[:], names[node])
		a = attachAnswer{plan, err == nil}
		r.attaches[q] = a
	}
	return a.plan, a.ok
}

// confirm asks whether a planned attachment may begin after what the hosts have said.
func (r *rules) confirm(rec record, node uint8, plan authority.Attachment, seen [hosts]report) (authority.Attachment, bool) {
	q := confirmQuestion{rec, node, seen}
	a, known := r.confirms[q]
	if !known {
		v := rec.volume()
		reports := map[string]authority.Report{names[node]: seen[node].heard(v, names[node])}
		rec.replicas.each(func(h uint8) { reports[names[h]] = seen[h].heard(v, names[h]) })
		plan, err := authority.Confirmed(v, names[node], plan, reports)
		a = attachAnswer{plan, err == nil}
		r.confirms[q] = a
	}
	return a.plan, a.ok
}

func (r *rules) detach(rec record, node uint8, holder report, dead bool) (authority.Detachment, bool) {
	return r.take(detachQuestion{rec: rec, node: node, holder: holder, dead: dead})
}

func (r *rules) endFlush(rec record, flushed bool, holder report, dead bool) (authority.Detachment, bool) {
	return r.take(detachQuestion{rec: rec, node: rec.attached, holder: holder, dead: dead, flush: true, flushed: flushed})
}

func (r *rules) take(q detachQuestion) (authority.Detachment, bool) {
	a, known := r.detaches[q]
	if !known {
		death := authority.Death{}
		if q.dead {
			death.Reason = "given up by Kubernetes"
		}
		var err error
		v := q.rec.volume()
		holder := q.holder.heard(v, names[q.node])
		if q.flush {
			a.plan, err = authority.EndFlush(v, q.flushed, holder, death)
		} else {
			a.plan, err = authority.Detach(v, names[q.node], holder, death)
		}
		a.ok = err == nil
		r.detaches[q] = a
	}
	return a.plan, a.ok
}

// flushers asks which of the nodes with a current copy can write it back.
func (r *rules) flushers(rec record, current []string, seen [hosts]report) set {
	reports := map[string]authority.Report{}
	v := rec.volume()
	rec.replicas.each(func(h uint8) { reports[names[h]] = seen[h].heard(v, names[h]) })
	var able set
	list, err := authority.Flushers(v, current, reports)
	if err != nil {
		return 0
	}
	for _, name := range list {
		able = able.with(uint8(slices.Index(names[:], name)))
	}
	return able
}

func (r *rules) isSettled(rec record, seen [hosts]report) bool {
	q := settledQuestion{rec, seen}
	answer, known := r.settled[q]
	if !known {
		reports := map[string]authority.Report{}
		v := rec.volume()
		rec.replicas.each(func(h uint8) { reports[names[h]] = seen[h].heard(v, names[h]) })
		answer = authority.Settled(v, reports)
		r.settled[q] = answer
	}
	return answer
}

// gone asks whether a fenced client's map cannot exist any more.
func (r *rules) gone(rec record, h int, c uint8, of report) bool {
	q := goneQuestion{rec, h, c, of}
	answer, known := r.lifted[q]
	if !known {
		v, entry := rec.volume(), rec.entry(h, c)
		status, err := of.real()
		answer = authority.MapGone(v, entry, authority.HeardOf(v, entry, status, err), time.Now())
		r.lifted[q] = answer
	}
	return answer
}

// takenFrom asks who lost the volume by force in its last attachment.
func (r *rules) takenFrom(rec record) (uint8, bool) {
	node, forced := authority.TakenFrom(rec.volume())
	if i := slices.Index(names[:], node); i >= 0 {
		return uint8(i), forced
	}
	return nobody, forced
}

// clients asks whom to fence.
func (r *rules) clients(rec record, open set) set {
	var list []string
	open.each(func(c uint8) { list = append(list, address(c)) })
	var found set
	all := authority.Clients(rec.volume(), list)
	for c := uint8(1); c <= clients; c++ {
		if slices.Contains(all, address(c)) {
			found = found.with(c)
		}
	}
	return found
}

// mayStage asks whether csi-node may stage.
func (r *rules) mayStage(rec record, node, epoch uint8) bool {
	q := stageQuestion{rec, node, epoch}
	answer, known := r.staged[q]
	if !known {
		answer = authority.MayStage(rec.volume(), names[node], int64(epoch)) == nil
		r.staged[q] = answer
	}
	return answer
}

// mayGoOnAlone asks the arbiter's question.
func (r *rules) mayGoOnAlone(rec record, node, peer, epoch uint8) bool {
	q := aloneQuestion{rec, node, peer, epoch}
	answer, known := r.granted[q]
	if !known {
		answer = grant(rec.volume(), escache.OutdatePeerRequest{
			VolumeRef: escache.VolumeRef{Pool: "p", Image: "i"}, Node: names[node], Peer: names[peer], Epoch: int64(epoch),
		})
		r.granted[q] = answer
	}
	return answer
}

func grant(v *v1alpha1.CacheVolume, request escache.OutdatePeerRequest) bool {
	for i := range time.Duration(2) {
		g, err := authority.MayGoOnAlone(v, request, time.Unix(0, 0).Add(i))
		if err != nil {
			return false
		}
		apply(v, g, request.Peer)
	}
	return true
}

// apply panics where the model's idea of a grant is not the real one: it puts the node on record, and
// each grant changes the record, also one that is repeated.
func apply(v *v1alpha1.CacheVolume, g authority.Grant, node string) {
	before := v.Status.DeepCopy()
	v.Status.Outdated, v.Status.Conditions = g.Outdated, g.Conditions
	if !v.Status.IsOutdated(node) || equality.Semantic.DeepEqual(before, &v.Status) {
		panic(fmt.Sprintf("a grant for %s makes %+v of %+v", node, v.Status, *before))
	}
}

// mayBeOutdated asks what the arbiter answers a host whose disk has failed: whether it is on record as
// outdated now, or whether it has the last current copy.
func (r *rules) mayBeOutdated(rec record, node, peer uint8) selfAnswer {
	q := selfQuestion{rec, node, peer}
	answer, known := r.failed[q]
	if !known {
		v := rec.volume()
		for i := range time.Duration(2) {
			grant, err := authority.MayBeOutdated(v, escache.OutdateSelfRequest{
				VolumeRef: escache.VolumeRef{Pool: "p", Image: "i"}, Node: names[node], Peer: names[peer],
			}, time.Unix(0, 0).Add(i))
			refused, _ := errors.AsType[*authority.RefusedError](err)
			answer = selfAnswer{ok: err == nil, last: refused != nil && refused.Code == escache.CodeOutdated}
			if err == nil {
				apply(v, grant, names[node])
			}
		}
		r.failed[q] = answer
	}
	return answer
}
