package model

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/api/equality"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/authority"
)

// rules calls the functions that decide in production. They are pure, so an answer is remembered.
type rules struct {
	group    []string // the nodes of the volume's group
	attaches map[attachQuestion]attachAnswer
	confirms map[confirmQuestion]attachAnswer
	detaches map[detachQuestion]detachAnswer
	settled  map[settledQuestion]bool
	staged   map[stageQuestion]bool
	granted  map[aloneQuestion]bool
	failed   map[selfQuestion]selfAnswer
	lifted   map[goneQuestion]bool
	replaced map[replaceQuestion]bool
	left     map[leaveQuestion]bool
	counted  map[countQuestion]bool
	anew     map[anewQuestion]set
	leaves   map[settledQuestion]bool
	again    map[lapsedQuestion]bool
	flushed  map[flushQuestion]set
}

func newRules(group []string) rules {
	return rules{
		group:    group,
		attaches: map[attachQuestion]attachAnswer{}, confirms: map[confirmQuestion]attachAnswer{},
		detaches: map[detachQuestion]detachAnswer{},
		settled:  map[settledQuestion]bool{}, staged: map[stageQuestion]bool{}, granted: map[aloneQuestion]bool{},
		lifted: map[goneQuestion]bool{}, failed: map[selfQuestion]selfAnswer{}, replaced: map[replaceQuestion]bool{},
		counted: map[countQuestion]bool{}, anew: map[anewQuestion]set{}, leaves: map[settledQuestion]bool{},
		again:   map[lapsedQuestion]bool{},
		left:    map[leaveQuestion]bool{},
		flushed: map[flushQuestion]set{},
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
		booted     bool
	}
	selfAnswer      struct{ ok, last bool }
	replaceQuestion struct {
		rec  record
		lost uint8
	}
	leaveQuestion struct {
		rec    record
		from   uint8
		holder report
	}
	anewQuestion struct {
		replicas, renewed set
		node              uint8
	}
	aloneQuestion struct {
		rec               record
		node, peer, epoch uint8
	}
)

// owner is whose claim it is that the volume writes through.
func (r *record) owner() string {
	if r.repairs {
		return authority.RepairClaim
	}
	return "somebody"
}

func (r *record) volume() *v1alpha1.CacheVolume {
	v := &v1alpha1.CacheVolume{}
	v.Name, v.Spec.Group, v.Spec.Pool, v.Spec.Image = "v", "g", "p", "i"
	v.Status.Epoch, v.Status.Authority = int64(r.epoch), v1alpha1.AuthorityCeph
	if r.inCache {
		v.Status.Authority = v1alpha1.AuthorityCache
	}
	if v.Status.FlushEpoch = int64(r.began); r.flush {
		v.Status.FlushEpoch = v.Status.Epoch
	}
	if r.attached != nobody {
		v.Status.AttachedNode = names[r.attached]
	}
	if v.Spec.CacheBytes = int64(r.size) + 1; r.wants {
		v.Spec.WantedCacheBytes = int64(1-r.size) + 1
	}
	v.Spec.UncachedFallback = true
	if r.uncached {
		v.Status.Uncached = &v1alpha1.UncachedAttachment{Epoch: v.Status.Epoch, HostID: machine}
	}
	r.replicas.each(func(h uint8) { v.Spec.Replicas = append(v.Spec.Replicas, names[h]) })
	if r.claim {
		v.Status.WriteThrough = []v1alpha1.WriteThroughClaim{{Owner: r.owner(), Epoch: v.Status.Epoch}}
	}
	for _, name := range names {
		v.Status.SetHostID(name, machine)
	}
	r.outdated.each(func(h uint8) { v.Status.Outdated = append(v.Status.Outdated, names[h]) })
	if r.client != 0 {
		v.Status.ClientAddress = address(r.client)
	}
	r.coming.each(func(h uint8) { v.Status.Fenced = append(v.Status.Fenced, r.absentee(h)) })
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
		client.Node, client.HostID = names[h], machine
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
		plan, err := authority.Attach(rec.volume(), r.group, names[node])
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

// behind asks whether the image's metadata tells of a later attachment than the record.
func (r *rules) behind(rec record, noted uint8) bool {
	return noted > 0 && authority.NotBehind(rec.volume(), authority.Noted{Volume: "v", Epoch: int64(noted)}) != nil
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

// mayBeOutdated asks what the arbiter answers a host whose disk has failed, or that was booted: whether it is on record as
// outdated now, or whether it has the last current copy.
func (r *rules) mayBeOutdated(rec record, node, peer uint8, booted bool) selfAnswer {
	q := selfQuestion{rec, node, peer, booted}
	answer, known := r.failed[q]
	if !known {
		v := rec.volume()
		for i := range time.Duration(2) {
			grant, err := authority.MayBeOutdated(v, escache.OutdateSelfRequest{
				VolumeRef: escache.VolumeRef{Pool: "p", Image: "i"}, Node: names[node], Peer: names[peer], Booted: booted,
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

// substitutable asks whether a copy of an attached volume may be replaced.
func (r *rules) substitutable(rec record, lost uint8) bool {
	q := replaceQuestion{rec, lost}
	answer, known := r.replaced[q]
	if !known {
		_, err := authority.Substitutable(rec.volume(), int64(rec.epoch), names[lost])
		answer = err == nil
		r.replaced[q] = answer
	}
	return answer
}

// mayLeave asks whether a copy that counts may be moved off its host.
func (r *rules) mayLeave(rec record, from uint8, holder report) bool {
	q := leaveQuestion{rec, from, holder}
	answer, known := r.left[q]
	if !known {
		v := rec.volume()
		_, err := authority.CopyMayLeave(v, int64(rec.epoch), names[from], holder.heard(v, names[rec.attached]))
		answer = err == nil
		r.left[q] = answer
	}
	return answer
}

// mayEnd asks whether the volume may write back again.
func (r *rules) mayEnd(rec record) bool {
	return !rec.repairs || authority.MayEnd(rec.volume(), rec.owner()) == nil
}

// drained asks whether the truth of an attached volume is in Ceph and stays there.
func (r *rules) drained(rec record, holder report) bool {
	v := rec.volume()
	return authority.Drained(v, holder.heard(v, names[rec.attached]))
}

// discard asks whether the cache may be discarded, and whose clients are fenced then. Kubernetes has
// given up the node that has the volume.
func (r *rules) discard(rec record, epoch uint8, seen [hosts]report) (lost uint8, ok bool) {
	v := rec.volume()
	reports := map[string]authority.Report{}
	rec.replicas.each(func(h uint8) { reports[names[h]] = seen[h].heard(v, names[h]) })
	loss, err := authority.Discard(v, int64(epoch), reports, authority.Death{Reason: "given up by Kubernetes"}, false)
	lost = rec.attached
	if lost == nobody && len(loss.Nodes) > 0 {
		lost = uint8(slices.Index(names[:], loss.Nodes[0]))
	}
	return lost, err == nil
}

// foreign asks whether a fenced client's entry is somebody else's, whose time is over or not.
func (r *rules) foreign(earlier, running bool) bool {
	client, now := v1alpha1.FencedClient{}, time.Unix(0, 0)
	if earlier {
		until := metav1.NewTime(now.Add(-time.Hour))
		if running {
			until = metav1.NewTime(now.Add(time.Hour))
		}
		client.EarlierUntil = &until
	}
	return authority.Foreign(client, now)
}
