package volume

import (
	"cmp"
	"net"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/lvm"
)

// FuzzTags writes a volume's tags and reads them back; a volume that comes from tags, however they
// were made, is described by its own tags again, and belongs to its LV.
func FuzzTags(f *testing.F) {
	f.Add("rbd", "v1", "10ab", "n1", "10.0.0.1", "ready", "3", "true", "1", "")
	f.Add("a", "b", "", "n2/x", "fd00::2", "abandoning", "9223372036854775807", "false", "2", "log")
	f.Add("", "", "", "", "", "creating", "-1", "", "2", "writecache")
	f.Fuzz(func(t *testing.T, pool, image, imageID, name, address, phase, number, flag, layout, engine string) {
		ref := escache.VolumeRef{Pool: pool, Image: image}
		lv := lvm.Volume{Name: NameOf(ref), Tags: map[string]string{
			"v": layout, "pool": pool, "image": image, "image-id": imageID, "phase": phase, "size": number, "cache": number,
			"self": name + "/" + address, "peer": name + address, "port": number, "minor": number, "epoch": number,
			"formatted": flag, "joined": flag, "engine": engine,
		}}
		if got := OwnerOf(lv); got != ref {
			t.Errorf("the LV of %+v is %+v's", ref, got)
		}
		v, err := Parse(lv)
		if err == nil {
			checkParsed(t, v, lv)
		}
		if net.ParseIP(address) == nil {
			return // the edge refuses it
		}
		v = Volume{
			VolumeRef: ref, ImageID: imageID, SizeBytes: 1 << 40, CacheBytes: 1 << 30, Engine: escache.Engine(cmp.Or(engine, "log")), Self: escache.ReplicaNode{Name: name, Address: address},
			Peer: escache.ReplicaNode{Name: "n2", Address: address}, Port: 7800, Minor: 100, Epoch: 7, Joined: flag == "true", Phase: Ready,
		}
		if got, err := Parse(lvm.Volume{Name: v.Name(), Tags: v.Tags()}); err != nil || got != v {
			t.Errorf("%+v came back as %+v, %v", v, got, err)
		}
	})
}

func checkParsed(t *testing.T, v Volume, lv lvm.Volume) {
	t.Helper()
	if v.Name() != lv.Name {
		t.Errorf("%s is taken for %+v", lv.Name, v)
	}
	if v.SizeBytes < 0 || v.CacheBytes < 0 || v.Epoch < 0 || v.Port < 0 || v.Port > 65535 || v.Minor < 0 || v.Minor >= 1<<20 {
		t.Errorf("%+v", v)
	}
	if again, err := Parse(lvm.Volume{Name: lv.Name, Tags: v.Tags()}); err != nil || again != v {
		t.Errorf("%+v came back as %+v, %v", v, again, err)
	}
}
