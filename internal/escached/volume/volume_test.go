package volume

import (
	"errors"
	"maps"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/lvm"
)

func example(image string, port, minor int) Volume {
	return Volume{
		VolumeRef: escache.VolumeRef{Pool: "rbd", Image: image}, ImageID: "10ab", SizeBytes: 64 << 20, CacheBytes: 32 << 20, Engine: escache.EngineWritecache,
		Self: escache.ReplicaNode{Name: "n1", Address: "10.0.0.1"}, Peer: escache.ReplicaNode{Name: "n2", Address: "fd00::2"},
		Port: port, Minor: minor, Epoch: 3, Joined: true, PeerComplete: true, Phase: Abandoning,
	}
}

func TestTagsAreReadBackAsTheyWereWritten(t *testing.T) {
	want := example("v1", 7800, 100)
	got, err := Parse(lvm.Volume{Name: want.Name(), Tags: want.Tags()})
	if err != nil || got != want {
		t.Errorf("got %+v, %v, want %+v", got, err, want)
	}
}

// TestVersionsThatDoNotKnowEnginesLeaveAReplicaOfAnotherOneAlone: they read layout 1 only.
func TestVersionsThatDoNotKnowEnginesLeaveAReplicaOfAnotherOneAlone(t *testing.T) {
	v := example("v1", 7800, 100)
	old := v.Tags()
	if _, tagged := old["engine"]; tagged || old["v"] != "1" {
		t.Errorf("the tags of a replica of writecache are %v", old)
	}
	if got, err := Parse(lvm.Volume{Name: v.Name(), Tags: old}); err != nil || got.Engine != escache.EngineWritecache {
		t.Errorf("read back: %+v, %v", got, err)
	}
	v.Engine = escache.EngineLog
	tags := v.Tags()
	if tags["v"] == "1" || tags["engine"] != "log" {
		t.Errorf("the tags of a replica of the log are %v", tags)
	}
	if got, err := Parse(lvm.Volume{Name: v.Name(), Tags: tags}); err != nil || got != v {
		t.Errorf("read back: %+v, %v", got, err)
	}
}

func TestTagsThatDoNotDescribeAVolumeAreRefused(t *testing.T) {
	good := example("v1", 7800, 100)
	for key, value := range map[string]string{
		"v": "3", "engine": "log", "image": "v2", "phase": "frozen", "size": "", "epoch": "x", "self": "n1",
	} {
		tags := maps.Clone(good.Tags())
		tags[key] = value
		if v, err := Parse(lvm.Volume{Name: good.Name(), Tags: tags}); err == nil || !strings.Contains(err.Error(), good.Name()) {
			t.Errorf("%s=%q: %+v, %v", key, value, v, err)
		}
	}
}

func TestOnlyOfTwoEpochsItIsClearWhichCounts(t *testing.T) {
	v := example("v1", 7800, 100)
	if got, err := Parse(lvm.Volume{Name: v.Name(), Tags: v.Tags(), Twice: []string{"epoch"}}); err != nil || got != v {
		t.Errorf("got %+v, %v", got, err)
	}
	if got, err := Parse(lvm.Volume{Name: v.Name(), Tags: v.Tags(), Twice: []string{"epoch", "phase"}}); err == nil {
		t.Errorf("of two phases it takes %s", got.Phase)
	}
}

func TestReserveGivesEachPortAndMinorOnceUpToTheLimit(t *testing.T) {
	r := NewRegistry()
	if err := r.Reserve(example("v1", 7800, 100), 2); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		v     Volume
		limit int
		want  escache.Code
	}{
		"the port is used":     {example("v2", 7800, 101), 2, escache.CodePortInUse},
		"the minor is used":    {example("v2", 7801, 100), 2, escache.CodePortInUse},
		"the limit is reached": {example("v2", 7801, 101), 1, escache.CodeNoRoom},
	} {
		var p *escache.Problem
		if err := r.Reserve(c.v, c.limit); !errors.As(err, &p) || p.Code != c.want {
			t.Errorf("%s: %v", name, err)
		}
		if _, there := r.Get(c.v.Name()); there {
			t.Errorf("%s: the volume was added all the same", name)
		}
	}
}
