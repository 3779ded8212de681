package lvm

import (
	"maps"
	"slices"
	"testing"

	"github.com/escache/escache-csi/internal/command"
)

// TestRewriteRemovesWhatAFailedChangeLeft: an lvchange was killed, and had changed the tags all the same. Whoever called it
// went on from the old ones, so the one that it added would have stayed.
func TestRewriteRemovesWhatAFailedChangeLeft(t *testing.T) {
	d := newDisks(t, 1)
	g := New("vg", command.NewExec())
	with := func(epoch string) map[string]string { return map[string]string{"pool": "a,b", "epoch": epoch} }
	d.check(g.Create(t.Context(), "lv", 4*mib, with("4")))
	d.run("lvm", "lvchange", "--addtag", "of.others", "vg/lv")
	d.check(g.Retag(t.Context(), "lv", with("4"), with("5"))) // its caller was told that it failed
	d.check(g.Retag(t.Context(), "lv", with("4"), with("6")))
	d.check(g.Retag(t.Context(), "lv", with("6"), with("10")))

	tags := func() Volume {
		all, err := g.Volumes(t.Context(), false)
		d.check(err)
		return all[0]
	}
	if v := tags(); v.Tags["epoch"] != "10" || !slices.Equal(v.Twice, []string{"epoch"}) {
		t.Errorf("of the epochs 5 and 10 it reads %v, twice %v", v.Tags, v.Twice)
	}
	d.check(g.Rewrite(t.Context(), "lv", with("9")))
	if v := tags(); !maps.Equal(v.Tags, with("9")) || v.Twice != nil {
		t.Errorf("it has %v, twice %v", v.Tags, v.Twice)
	}
	d.check(g.Rewrite(t.Context(), "lv", with("9")))
	if got := d.run("lvm", "lvs", "--noheadings", "-o", "lv_tags", "vg/lv"); !slices.Contains(splitTags(got), "of.others") {
		t.Errorf("a tag of others is gone: %s", got)
	}
	if err := g.Rewrite(t.Context(), "gone", with("9")); err == nil {
		t.Error("what is not there has no tags")
	}
}
