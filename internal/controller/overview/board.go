package overview

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/records/choice"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// board is what is on record at one moment. It is made once for all who look, and nothing in it
// changes afterwards.
type board struct {
	choice.Objects

	// id differs from that of every other board, also of another replica.
	id     string
	made   time.Time
	print  [sha256.Size]byte
	leader string
	// snapshots are sorted by name. snapshotsOf counts those of a volume.
	snapshots   []v1alpha1.CacheSnapshot
	snapshotsOf map[string]int
	groupOf     map[string]*v1alpha1.NodeGroup // by its name
}

// boards makes boards while somebody looks.
type boards struct {
	Config

	turn    chan struct{} // has one element while somebody reads
	start   string        // tells this process from others
	count   int
	last    *board
	checked time.Time
}

const (
	// fresh is how long nobody looks for changes again.
	fresh = 2 * time.Second
	// renewed is when a board is made again although no record has changed: some troubles are a matter of time.
	renewed  = 15 * time.Second
	readTime = 10 * time.Second
	leadTime = 2 * time.Second
)

func newBoards(c Config) *boards {
	return &boards{Config: c, turn: make(chan struct{}, 1), start: rand.Text()}
}

// latest returns the newest board. It is the same one as before if nothing has changed.
func (b *boards) latest(ctx context.Context) (*board, error) {
	ctx, cancel := context.WithTimeout(ctx, readTime)
	defer cancel()
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	now := b.Now()
	if b.last != nil && now.Sub(b.checked) < fresh {
		return b.last, nil
	}
	next, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	b.checked = now
	if b.last != nil && next.print == b.last.print && now.Sub(b.last.made) < renewed {
		return b.last, nil
	}
	b.count++
	next.id, next.made = fmt.Sprintf("%s.%d", b.start, b.count), now
	next.judge(remedy.Escached{Namespace: b.Namespace}, now)
	b.last = next
	return next, nil
}

func (b *boards) read(ctx context.Context) (*board, error) {
	groups, volumes := &v1alpha1.NodeGroupList{}, &v1alpha1.CacheVolumeList{}
	flushes, snapshots := &v1alpha1.CacheFlushList{}, &v1alpha1.CacheSnapshotList{}
	for _, list := range []client.ObjectList{groups, volumes, flushes, snapshots} {
		// Nothing here changes an object, and copies of 10,000 volumes would cost more than all the rest.
		if err := b.Records.List(ctx, list, client.UnsafeDisableDeepCopy); err != nil {
			return nil, err
		}
	}
	out := &board{
		Objects:   choice.Objects{Groups: groups.Items, Volumes: volumes.Items, Flushes: flushes.Items},
		snapshots: snapshots.Items, leader: b.whoLeads(ctx),
	}
	slices.SortFunc(out.Groups, func(a, b v1alpha1.NodeGroup) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(out.Volumes, func(a, b v1alpha1.CacheVolume) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(out.Flushes, func(a, b v1alpha1.CacheFlush) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(out.snapshots, func(a, b v1alpha1.CacheSnapshot) int { return cmp.Compare(a.Name, b.Name) })
	out.print = out.fingerprint()
	return out, nil
}

// whoLeads says which replica leads, for people.
func (b *boards) whoLeads(ctx context.Context) string {
	ctx, cancel := context.WithTimeout(ctx, leadTime)
	defer cancel()
	switch holder, err := b.Leader(ctx); {
	case err != nil:
		return "it is not known which csi-controller leads: the Kubernetes API server does not say"
	case holder == "":
		return "no csi-controller leads"
	default:
		return holder + " leads"
	}
}

// fingerprint differs if a record, or who leads, differs.
func (b *board) fingerprint() [sha256.Size]byte {
	sum := sha256.New()
	add := func(words ...string) {
		for _, word := range words {
			_ = binary.Write(sum, binary.LittleEndian, int64(len(word)))
			_, _ = sum.Write([]byte(word))
		}
	}
	add(b.leader)
	for i := range b.Groups {
		add("group", b.Groups[i].Name, string(b.Groups[i].UID), b.Groups[i].ResourceVersion)
	}
	for i := range b.Volumes {
		add("volume", b.Volumes[i].Name, string(b.Volumes[i].UID), b.Volumes[i].ResourceVersion)
	}
	for i := range b.Flushes {
		add("flush", b.Flushes[i].Name, string(b.Flushes[i].UID), b.Flushes[i].ResourceVersion)
	}
	for i := range b.snapshots {
		add("snapshot", b.snapshots[i].Name, string(b.snapshots[i].UID), b.snapshots[i].ResourceVersion)
	}
	return [sha256.Size]byte(sum.Sum(nil))
}

// judge finds what is wrong.
func (b *board) judge(how remedy.Escached, now time.Time) {
	b.groupOf, b.snapshotsOf = map[string]*v1alpha1.NodeGroup{}, map[string]int{}
	b.Troubles = trouble.OfDriver(b.Groups, how, now)
	for i := range b.Groups {
		b.groupOf[b.Groups[i].Name] = &b.Groups[i]
		b.Troubles = append(b.Troubles, trouble.OfGroup(&b.Groups[i], how, now)...)
	}
	for i := range b.Volumes {
		v := &b.Volumes[i]
		b.Troubles = append(b.Troubles, trouble.OfVolume(v, b.groupOf[v.Spec.Group], how, now)...)
	}
	for i := range b.Flushes {
		b.Troubles = append(b.Troubles, trouble.OfFlush(&b.Flushes[i], how)...)
	}
	for i := range b.snapshots {
		b.snapshotsOf[b.snapshots[i].Spec.Volume]++
	}
	b.Faults = trouble.FaultsOf(b.Troubles)
}

func claimOf(v metav1.Object) string { return v.GetAnnotations()[v1alpha1.AnnotationClaim] }
