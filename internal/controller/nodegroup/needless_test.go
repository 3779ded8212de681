package nodegroup

import (
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
)

var imageOfV = volumes.ImageRef{ClusterID: "ceph", Pool: "p", Image: "i"}

// attached is a volume that n1 has in epoch 6. Its replicas were created again so often, the last time on these nodes.
func attached(linkGeneration int64, replicas ...string) *v1alpha1.CacheVolume {
	v := inGroup("v", "g", replicas...)
	v.Spec.ClusterID, v.Spec.Pool, v.Spec.Image, v.Spec.LinkGeneration = imageOfV.ClusterID, imageOfV.Pool, imageOfV.Image, linkGeneration
	v.Status.Epoch, v.Status.AttachedNode, v.Status.Authority = 6, "n1", v1alpha1.AuthorityCache
	return v
}

func noteOf(v *v1alpha1.CacheVolume) volumes.Note {
	return volumes.Note{
		Version: volumes.NoteVersion, Volume: v.Name, Epoch: v.Status.Epoch, Authority: v.Status.Authority,
		AttachedNode: v.Status.AttachedNode, Spec: v.Spec,
	}
}

// TestADirtyReplicaIsDiscardedOnlyIfItsImageSaysSo: the copy of v has left n2 in epoch 6. etcd may be a restored one: since
// then the copy has come back to n2, in the same attachment.
func TestADirtyReplicaIsDiscardedOnlyIfItsImageSaysSo(t *testing.T) {
	asBefore := noteOf(attached(2, "n1", "n3"))
	cameBack := noteOf(attached(3, "n1", "n2"))
	copied, adopted := cameBack, noteOf(attached(1, "n1", "n3"))
	copied.Spec.Image = "parent"
	adopted.Volume, adopted.Epoch = "w", 7
	deleted := func(v *v1alpha1.CacheVolume) {
		v.Finalizers, v.DeletionTimestamp = []string{v1alpha1.Finalizer}, new(metav1.Now())
	}
	for name, tc := range map[string]struct {
		record  bool
		change  func(*v1alpha1.CacheVolume)
		note    *volumes.Note // nil: the image is gone
		ceph    func(*bench)
		says    string // why it stays
		noEvent bool
	}{
		"as on record":                     {record: true, note: &asBefore},
		"it came back":                     {record: true, note: &cameBack, says: "created again since"},
		"adopted since":                    {record: true, note: &adopted, says: "volume w's"},
		"of a later version":               {record: true, note: &volumes.Note{Later: true}, says: "upgrade"},
		"a record without an image":        {record: true, says: "read the metadata"},
		"deleted, and the image is gone":   {record: true, change: deleted},
		"deleted, and it came back":        {record: true, change: deleted, note: &cameBack, says: "created again since"},
		"Ceph does not answer":             {record: true, note: &asBefore, ceph: fails(volumes.ErrUnavailable), says: "unavailable", noEvent: true},
		"Ceph refuses":                     {record: true, note: &asBefore, ceph: fails(volumes.ErrRefused), says: "refused"},
		"no record, no image":              {},
		"no record, as before":             {note: &asBefore},
		"no record, it came back":          {note: &cameBack, says: "adopt --all"},
		"no record, adopted since":         {note: &adopted},
		"no record, of a later version":    {note: &volumes.Note{Later: true}, says: "upgrade"},
		"no record, no note":               {note: &volumes.Note{}, says: "do not say"},
		"no record, a note of its source":  {note: &copied, says: "do not say"},
		"no record, Ceph does not answer":  {note: &asBefore, ceph: fails(volumes.ErrUnavailable), says: "unavailable", noEvent: true},
		"no record, Ceph refuses":          {ceph: fails(volumes.ErrRefused), says: "refused"},
		"no record, released":              {note: &volumes.Note{}, ceph: func(b *bench) { b.released = true }},
		"no record, kept for its snapshot": {note: &cameBack, ceph: func(b *bench) { b.deleted = "2026-01-02T03:04:05Z" }},
	} {
		t.Run(name, func(t *testing.T) {
			g := group("g", 0, "n1", "n2", "n3")
			g.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: "n2", Volume: "v", Pool: "p", Image: "i", Epoch: 6}}
			objects := []client.Object{g}
			if tc.record {
				v := attached(2, "n1", "n3")
				if tc.change != nil {
					tc.change(v)
				}
				objects = append(objects, v)
			}
			b := newBench(t, objects...)
			b.dirty = []string{"n2"}
			if tc.note != nil {
				b.notes[imageOfV] = *tc.note
			}
			if tc.ceph != nil {
				tc.ceph(b)
			}
			left := b.poll("g").StaleReplicas
			if stays := tc.says != ""; stays != (len(b.discarded) == 0) || stays != (len(left) == 1) {
				t.Errorf("discarded on %v, on record: %+v", b.discarded, left)
			}
			event := b.says(v1alpha1.ConditionRecordBehindDisks)
			if told := event != ""; told != (tc.says != "" && !tc.noEvent) || told && !strings.Contains(event, tc.says) {
				t.Errorf("the Event is %q", event)
			}
		})
	}
}

func fails(err error) func(*bench) { return func(b *bench) { b.silent = err } }

// TestACleanReplicaNeedsNoProof: what it has is in Ceph.
func TestACleanReplicaNeedsNoProof(t *testing.T) {
	g := group("g", 0, "n1", "n2", "n3")
	g.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: "n2", Volume: "v", Pool: "p", Image: "i", Epoch: 6}}
	b := newBench(t, g)
	b.silent = volumes.ErrUnavailable
	if left := b.poll("g").StaleReplicas; len(left) > 0 || b.asked > 0 || len(b.discarded) > 0 {
		t.Errorf("left %+v, asked %d times", left, b.asked)
	}
}

// TestADiscardReachesNoFurtherThanItsEntry: a record may have been set back without anybody noticing, because the image had no
// note. After some more attachments its epoch is that of what the host has, and the note's is, too.
func TestADiscardReachesNoFurtherThanItsEntry(t *testing.T) {
	g, v := group("g", 0, "n1", "n2", "n3"), attached(2, "n1", "n3")
	g.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: "n2", Volume: "v", Pool: "p", Image: "i", Epoch: 4}}
	b := newBench(t, g, v)
	b.dirty, b.notes[imageOfV] = []string{"n2"}, noteOf(v)
	if b.poll("g"); !slices.Equal(b.upTo, []int64{4}) {
		t.Errorf("discarded up to %v, in epoch %d", b.upTo, v.Status.Epoch)
	}
}

// TestASilentCephIsAskedOnceAtEachCleanUp: each call to it may take as long as a host may.
func TestASilentCephIsAskedOnceAtEachCleanUp(t *testing.T) {
	g := group("g", 0, "n1", "n2", "n3")
	for _, node := range []string{"n1", "n2", "n3"} {
		g.Status.StaleReplicas = append(g.Status.StaleReplicas, v1alpha1.StaleReplica{Node: node, Volume: "v", Pool: "p", Image: "i", Epoch: 6})
	}
	b := newBench(t, g)
	b.dirty, b.silent = []string{"n1", "n2", "n3"}, volumes.ErrUnavailable
	if left := b.poll("g").StaleReplicas; len(left) != 3 || b.asked != 1 {
		t.Errorf("left %+v, asked %d times", left, b.asked)
	}
	b.silent = nil
	b.poll("g")
	if slices.Sort(b.discarded); !slices.Equal(b.discarded, []string{"n1", "n2", "n3"}) {
		t.Errorf("discarded on %v", b.discarded)
	}
}

// TestOnlyTheImagesClusterIsAsked: another cluster may be out of order for good. An entry of an earlier version does not say
// which cluster it is.
func TestOnlyTheImagesClusterIsAsked(t *testing.T) {
	for cluster, stays := range map[string]bool{"ceph": false, "other": true, "": true} {
		g := group("g", 0, "n1", "n2", "n3")
		g.Status.StaleReplicas = []v1alpha1.StaleReplica{{Node: "n2", Volume: "v", ClusterID: cluster, Pool: "p", Image: "i", Epoch: 6}}
		b := newBench(t, g)
		b.dirty, b.broken = []string{"n2"}, "other"
		if left := b.poll("g").StaleReplicas; stays != (len(left) == 1) || stays != (len(b.discarded) == 0) {
			t.Errorf("cluster %q: discarded on %v, left %+v", cluster, b.discarded, left)
		}
	}
}
