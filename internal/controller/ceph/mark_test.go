package ceph

import (
	"reflect"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/orphans"
	"github.com/escache/escache-csi/internal/rbd"
)

func TestWhoseAnImageIs(t *testing.T) {
	ref := volumes.ImageRef{ClusterID: "c", Pool: "p", Image: "i"}
	text, err := volumes.Note{Version: volumes.NoteVersion, Volume: "v"}.Text()
	if err != nil {
		t.Fatal(err)
	}
	for name, tc := range map[string]struct {
		mark                 rbd.Mark
		volume, deleted      string
		released, unreadable bool
	}{
		"nobody's":                    {},
		"a volume's":                  {mark: rbd.Mark{Kubernetes: "k", Volume: "v", Note: text}, volume: "v"},
		"deleted":                     {mark: rbd.Mark{Kubernetes: "k", Volume: "v", Note: text, Deleted: "then"}, volume: "v", deleted: "then"},
		"released":                    {mark: rbd.Mark{Released: text}, released: true},
		"marked by hand since":        {mark: rbd.Mark{Kubernetes: "k", Volume: "w", Released: text}},
		"with a note that is no note": {mark: rbd.Mark{Kubernetes: "k", Volume: "v", Note: "{"}, unreadable: true},
	} {
		got := foundOf(ref, tc.mark)
		if got.ImageRef != ref || got.Note.Volume != tc.volume || got.Deleted != tc.deleted || got.Released != tc.released ||
			(got.Unreadable != nil) != tc.unreadable {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

func TestNoteOfAnImageThatHasLostItsRecord(t *testing.T) {
	hosts := []string{"n1", "n2"}
	note := volumes.Note{Version: volumes.NoteVersion, Volume: "v", Claim: "ns/c", Epoch: 3, Authority: v1alpha1.AuthorityCeph}
	note.Spec.Replicas = hosts
	used := orphans.Note{Volume: "v", Claim: "ns/c", Epoch: 3, Hosts: hosts, InCeph: true}
	for name, tc := range map[string]struct {
		change func(*volumes.Note, *orphans.Note)
	}{
		"in Ceph":  {func(*volumes.Note, *orphans.Note) {}},
		"attached": {func(n *volumes.Note, o *orphans.Note) { n.AttachedNode, o.InCeph = "n1", false }},
		"dirty":    {func(n *volumes.Note, o *orphans.Note) { n.Authority, o.InCeph = v1alpha1.AuthorityCache, false }},
		"adopted":  {func(n *volumes.Note, o *orphans.Note) { n.Spec.Adoption, o.Adopted = &v1alpha1.Adoption{}, true }},
		"of a snapshot": {func(n *volumes.Note, o *orphans.Note) {
			n.Spec.FromSnapshot, o.Copy = "s", true
		}},
		"of a volume": {func(n *volumes.Note, o *orphans.Note) { n.Spec.FromVolume, o.Copy = "w", true }},
		"read-only":   {func(n *volumes.Note, o *orphans.Note) { n.ReadOnly, o.ReadOnly = true, true }},
	} {
		t.Run(name, func(t *testing.T) {
			has, want := note, used
			tc.change(&has, &want)
			text, err := has.Text()
			if err != nil {
				t.Fatal(err)
			}
			if got := noteOf(rbd.Mark{Note: text}); !reflect.DeepEqual(got, want) {
				t.Errorf("%+v, not %+v", got, want)
			}
		})
	}
	for text, why := range map[string]string{`{"version":`: "cannot be read", `{"version":999}`: "later version"} {
		if got := noteOf(rbd.Mark{Note: text}); !strings.Contains(got.Unreadable, why) {
			t.Errorf("%s: %+v", text, got)
		}
	}
	if got := noteOf(rbd.Mark{Deleted: "then"}); got.Volume != "" || got.Unreadable != "" || got.Deleted != "then" {
		t.Errorf("no note: %+v", got)
	}
}
