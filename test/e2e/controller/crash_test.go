//go:build e2e

package controller

import (
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/internal/shard"
)

// scene is one call in a state that makes it do all it can do.
type scene struct {
	name    string
	prepare func(t *testing.T, w *world, d *driver)
	call    func(t *testing.T, w *world, d *driver) error
	// check looks at the world after the call has succeeded at last.
	check func(t *testing.T, w *world)
	// clean undoes prepare.
	clean func(t *testing.T, w *world, d *driver)
	// points are those at which the leader dies, and that the call has to pass. No names: all that it passes.
	points []string
}

const crashed = "pvc-crash"

func imageRef() escache.VolumeRef { return escache.VolumeRef{Pool: "rbd", Image: "escache-" + crashed} }

// crashes kills the leader at every crash point that each scene passes, or at those of a shard. Another replica takes
// over and the call is repeated there, as a sidecar would; it is the next one to die.
func crashes(t *testing.T, w *world) {
	l := &line{world: w, t: t, passed: map[string]bool{}}
	for _, s := range slices.Concat(scenes(), snapshotScenes(), groupScenes(), cloneScenes(), releaseScenes(), adoptScenes(),
		moveScenes(), rebuildScenes(), resizeScenes(), readOnlyScenes(), choreScenes(), trimScenes(), fenceScenes(), repairScenes(),
		leavingScenes(), writeBackScenes()) {
		t.Run(s.name, func(t *testing.T) {
			points := s.trace(t, l)
			if len(points) == 0 {
				t.Fatal("the call passes no crash point")
			}
			for _, point := range points {
				l.passed[point] = true
			}
			t.Logf("%d crash points: %s", len(points), strings.Join(points, ", "))
			for _, point := range points {
				l.points++
				if !shard.Has(t, l.points) {
					continue
				}
				t.Run(strings.ReplaceAll(point, "/", ":"), func(t *testing.T) { s.die(t, l, point) })
			}
		})
	}
	for _, b := range background() {
		l.passed[b.point] = true
		t.Run(strings.ReplaceAll(b.point, "/", ":")+" by itself", func(t *testing.T) { b.die(t, l) })
	}
	if run := flag.Lookup("test.run").Value.String(); run == "" {
		l.all(t)
	}
}

// all fails unless the scenes have killed the leader at every crash point of csi-controller.
func (l *line) all(t *testing.T) {
	t.Helper()
	for point, place := range controllerPoints(t) {
		if _, not := notKilled[point]; !l.passed[point] && !not {
			t.Errorf("no test kills csi-controller at %s (%s): add a scene", point, place)
		} else if l.passed[point] && not {
			t.Errorf("csi-controller is killed at %s: take it off the list", point)
		}
	}
}

var reach = regexp.MustCompile(`\b[rR]each\("([^"]+)"\)`)

// controllerPoints finds the crash points in csi-controller's sources, and the files that they are in.
func controllerPoints(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, dir := range []string{"controller", "rbd"} {
		must(t, filepath.WalkDir(filepath.Join("../../../internal", dir), func(path string, _ fs.DirEntry, err error) error {
			if err != nil || filepath.Ext(path) != ".go" {
				return err
			}
			text, err := os.ReadFile(path)
			for _, m := range reach.FindAllStringSubmatch(string(text), -1) {
				out[m[1]] = path
			}
			return err
		}))
	}
	return out
}

// notKilled are the crash points at which no scene kills csi-controller, and why.
var notKilled = map[string]string{
	"adopt/mark_taken_back": "an image would have to get another user between its mark and the record's last step",
}

// line is replicas that lead one after the other.
type line struct {
	world   *world
	t       *testing.T // whose end ends them
	members int
	points  int             // of all scenes so far
	passed  map[string]bool // the crash points that a test kills the leader at
	leading *driver
}

func (l *line) next() *driver {
	l.members++
	return l.world.start(l.t, fmt.Sprintf("replica-%d", l.members), soon...)
}

// leader is the one that leads now. After a test that failed it is a new one.
func (l *line) leader(t *testing.T) *driver {
	t.Helper()
	if l.leading == nil || !l.leading.alive() {
		l.leading = leader(t, time.Minute, l.next())
	}
	return l.leading
}

// trace finds the points that the scene's call passes.
func (s scene) trace(t *testing.T, l *line) []string {
	d, w := l.leader(t), l.world
	l.explain(t, d)
	s.prepare(t, w, d)
	d.reached(t)
	must(t, s.callAsSidecar(t, w, d))
	points := slices.DeleteFunc(d.reached(t), byItself)
	for _, point := range s.points {
		if !slices.Contains(points, point) {
			t.Errorf("the call does not pass %s, only %s", point, strings.Join(points, ", "))
		}
	}
	if len(s.points) > 0 {
		points = s.points
	}
	s.check(t, w)
	s.clean(t, w, d)
	w.empty(t)
	return points
}

func (s scene) die(t *testing.T, l *line, point string) {
	first, w := l.leader(t), l.world
	second := l.next()
	l.explain(t, first, second)
	s.prepare(t, w, first)
	if point == "nodegroup/kept" { // only the first volume of a group passes it
		w.groupsFree(t)
	}
	first.dieAt(t, point)
	err := s.callAsSidecar(t, w, first) // a call that looks at the record may succeed a moment before the leader dies
	if !waitEnded(first) {
		t.Fatalf("the leader did not die at %s: %v", point, err)
	}
	first.bury()
	l.leading = leader(t, time.Minute, second)
	until(t, func() error { return s.call(t, w, second) })
	s.check(t, w)
	s.clean(t, w, second)
	w.empty(t)
}

// callAsSidecar repeats the call, as a sidecar does, while another of the leader's tasks writes the record first.
func (s scene) callAsSidecar(t *testing.T, w *world, d *driver) error {
	err := s.call(t, w, d)
	for end := time.Now().Add(time.Minute); status.Code(err) == codes.Aborted && time.Now().Before(end); {
		err = s.call(t, w, d)
	}
	return err
}

// explain shows what the leaders did if the test fails, and clears up for the next one.
func (l *line) explain(t *testing.T, leaders ...*driver) {
	t.Cleanup(func() {
		if !t.Failed() {
			return
		}
		for n, d := range leaders {
			t.Logf("log of leader %d:\n%s", n+1, d.log())
			d.bury()
		}
		l.world.purge(t)
	})
}

// groupsFree waits until csi-controller has let go of all groups without a volume.
func (w *world) groupsFree(t *testing.T) {
	t.Helper()
	groups, volumes := &v1alpha1.NodeGroupList{}, &v1alpha1.CacheVolumeList{}
	eventually(t, time.Minute, func() bool {
		must(t, errors.Join(w.api.List(t.Context(), groups), w.api.List(t.Context(), volumes)))
		return !slices.ContainsFunc(groups.Items, func(g v1alpha1.NodeGroup) bool {
			used := slices.ContainsFunc(volumes.Items, func(v v1alpha1.CacheVolume) bool { return v.Spec.Group == g.Name })
			return !used && len(g.Finalizers) > 0
		})
	}, func() string { return fmt.Sprintf("a group without volumes has a finalizer: %+v", groups.Items) })
}

func waitEnded(d *driver) bool {
	select {
	case <-d.ended:
		return true
	case <-time.After(30 * time.Second): // it is dead, and a busy machine has still to clear it away
		return false
	}
}

func scenes() []scene {
	var elsewhere string
	nothing := func(*testing.T, *world, *driver) {}
	create := func(t *testing.T, _ *world, d *driver) {
		until(t, func() error { return d.create(t.Context(), crashed) })
	}
	remove := func(t *testing.T, _ *world, d *driver) {
		until(t, func() error { return d.delete(t.Context(), crashed) })
	}
	attach := func(t *testing.T, w *world, d *driver) {
		create(t, w, d)
		until(t, func() error { return d.publish(t.Context(), crashed, w.one(t).Spec.Replicas[0]) })
	}
	detachAndRemove := func(t *testing.T, w *world, d *driver) {
		until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
		remove(t, w, d)
	}
	return []scene{
		{
			name: "CreateVolume", prepare: nothing, clean: remove,
			call: func(t *testing.T, _ *world, d *driver) error { return d.create(t.Context(), crashed) },
			check: func(t *testing.T, w *world) {
				if v := w.one(t); v.Status.Phase != v1alpha1.VolumeReady || !slices.Equal(w.images(t), []string{v.Spec.Image}) {
					t.Errorf("record %+v, images %v", v.Status, w.images(t))
				}
				if marked := w.rbd(t, "image-meta", "get", "rbd/escache-"+crashed, "escache.io/volume"); strings.TrimSpace(marked) != crashed {
					t.Errorf("the image is marked as of volume %q", marked)
				}
			},
		},
		{
			name: "DeleteVolume of a volume that was attached", clean: nothing,
			prepare: func(t *testing.T, w *world, d *driver) {
				attach(t, w, d)
				until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
			},
			call:  func(t *testing.T, _ *world, d *driver) error { return d.delete(t.Context(), crashed) },
			check: func(t *testing.T, w *world) { w.empty(t) },
		},
		{
			name: "DeleteVolume while the host of a replica is away",
			prepare: func(t *testing.T, w *world, d *driver) {
				attach(t, w, d)
				until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
				elsewhere = w.one(t).Spec.Replicas[1]
				w.fleet.Hosts[elsewhere].Write(imageRef(), 4<<20) // so the image must say that nobody needs it
				w.fleet.Hosts[elsewhere].Stop()
			},
			call: func(t *testing.T, _ *world, d *driver) error { return d.delete(t.Context(), crashed) },
			check: func(t *testing.T, w *world) {
				if len(w.volumes(t)) > 0 {
					t.Errorf("%d records", len(w.volumes(t)))
				}
				eventually(t, time.Minute, func() bool { return len(w.fleet.On(imageRef())) == 1 }, func() string {
					return fmt.Sprintf("replicas on %v", w.fleet.On(imageRef()))
				})
			},
			clean: func(t *testing.T, w *world, _ *driver) {
				w.fleet.Hosts[elsewhere].Restart(t)
				eventually(t, time.Minute, func() bool { return len(w.fleet.On(imageRef())) == 0 }, func() string {
					return fmt.Sprintf("replicas on %v", w.fleet.On(imageRef()))
				})
			},
		},
		{
			name: "ControllerPublishVolume after the loss of a copy", clean: detachAndRemove,
			prepare: func(t *testing.T, w *world, d *driver) {
				leaveDirty(t, w, d)
				w.fleet.Hosts[w.one(t).Spec.Replicas[1]].Forget()
			},
			call: func(t *testing.T, w *world, d *driver) error {
				return d.publish(t.Context(), crashed, w.one(t).Spec.Replicas[0])
			},
			check: func(t *testing.T, w *world) {
				v := w.one(t)
				w.attached(t, v.Spec.Replicas[0])
				if !v.Status.IsOutdated(v.Spec.Replicas[1]) {
					t.Errorf("the new copy counts: %+v", v.Status)
				}
			},
		},
		{
			name: "ControllerPublishVolume without a cache", clean: detachAndRemove,
			prepare: func(t *testing.T, w *world, d *driver) {
				r := creation(crashed)
				r.Parameters["uncachedFallback"] = "true"
				until(t, func() error { _, err := d.CreateVolume(t.Context(), r); return err })
				until(t, func() error { return d.publish(t.Context(), crashed, w.one(t).Spec.Replicas[0]) })
				until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
			},
			call: func(t *testing.T, w *world, d *driver) error {
				return d.publish(t.Context(), crashed, inOtherGroup(w.one(t)))
			},
			check: func(t *testing.T, w *world) {
				v := w.one(t)
				if v.Status.AttachedNode != inOtherGroup(v) || !v.Status.UncachedAttached() || len(v.Status.Outdated) != 2 {
					t.Errorf("status %+v", v.Status)
				}
			},
		},
		{
			name: "ControllerPublishVolume", prepare: create, clean: detachAndRemove,
			call: func(t *testing.T, w *world, d *driver) error {
				return d.publish(t.Context(), crashed, w.one(t).Spec.Replicas[0])
			},
			check: func(t *testing.T, w *world) { w.attached(t, w.one(t).Spec.Replicas[0]) },
		},
		{
			name: "ControllerPublishVolume on the node without a replica", clean: detachAndRemove,
			prepare: func(t *testing.T, w *world, d *driver) {
				attach(t, w, d)
				until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
				elsewhere = third(w.one(t))
			},
			call:  func(t *testing.T, _ *world, d *driver) error { return d.publish(t.Context(), crashed, elsewhere) },
			check: func(t *testing.T, w *world) { w.attached(t, elsewhere) },
		},
		{
			name: "ControllerPublishVolume of a dirty volume on the node without a replica", clean: detachAndRemove,
			prepare: func(t *testing.T, w *world, d *driver) {
				attach(t, w, d)
				v := w.one(t)
				for _, n := range v.Spec.Replicas {
					w.fleet.Hosts[n].Write(imageRef(), 4<<20)
				}
				until(t, func() error { return d.unpublish(t.Context(), crashed, "") })
				elsewhere = third(v)
			},
			call: func(t *testing.T, _ *world, d *driver) error { return d.publish(t.Context(), crashed, elsewhere) },
			check: func(t *testing.T, w *world) {
				w.attached(t, elsewhere)
				for name, h := range w.fleet.Hosts {
					if epoch, connected := h.Connected(imageRef()); connected {
						t.Errorf("%s still has the device, of epoch %d", name, epoch)
					}
				}
			},
		},
		{
			name: "ControllerUnpublishVolume", prepare: attach, clean: remove,
			call: func(t *testing.T, _ *world, d *driver) error { return d.unpublish(t.Context(), crashed, "") },
			check: func(t *testing.T, w *world) {
				if s := w.one(t).Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCeph {
					t.Errorf("status %+v", s)
				}
			},
		},
		{
			name: "ControllerUnpublishVolume of a node that is out of service",
			prepare: func(t *testing.T, w *world, d *driver) {
				attach(t, w, d)
				node := w.one(t).Spec.Replicas[0]
				w.fleet.Hosts[node].Connect(imageRef(), "127.0.0.1:0/4711")
				w.clientAddress(t, "127.0.0.1:0/4711")
				w.kubectl(t, "", "taint", "node", node, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
			},
			call: func(t *testing.T, _ *world, d *driver) error { return d.unpublish(t.Context(), crashed, "") },
			check: func(t *testing.T, w *world) {
				if s := w.one(t).Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCache || len(s.Fenced) != 1 {
					t.Errorf("status %+v", s)
				}
				if list := w.ceph.Ceph(t, "osd", "blocklist", "ls"); !strings.Contains(list, "127.0.0.1:0/4711 ") {
					t.Errorf("not on the blocklist:\n%s", list)
				}
			},
			clean: func(t *testing.T, w *world, d *driver) {
				node := w.one(t).Spec.Replicas[0]
				w.kubectl(t, "", "taint", "node", node, "node.kubernetes.io/out-of-service-")
				w.fleet.Hosts[node].Release(imageRef())
				remove(t, w, d)
				w.ceph.Ceph(t, "osd", "blocklist", "rm", "127.0.0.1:0/4711")
			},
		},
		{
			name: "ControllerModifyVolume", prepare: create, clean: remove,
			call: func(t *testing.T, _ *world, d *driver) error {
				return d.modify(t.Context(), crashed, map[string]string{"maxDirtyAge": "30s", "highWatermark": "60", "lowWatermark": "40"})
			},
			check: func(t *testing.T, w *world) {
				want := v1alpha1.CacheOptions{HighWatermark: 60, LowWatermark: 40, MaxDirtyAgeSeconds: 30}
				if s := w.one(t).Spec; s.CacheOptions != want || s.Modifications != 1 {
					t.Errorf("record %+v", s)
				}
			},
		},
		{
			name: "ControllerExpandVolume", prepare: create, clean: remove,
			call: func(t *testing.T, _ *world, d *driver) error { return d.expand(t.Context(), crashed, 2*gib) },
			check: func(t *testing.T, w *world) {
				if v := w.one(t); v.Spec.SizeBytes != 2*gib || !strings.Contains(w.rbd(t, "info", "rbd/"+v.Spec.Image), "size 2 GiB") {
					t.Errorf("record has %d bytes, image: %s", v.Spec.SizeBytes, w.rbd(t, "info", "rbd/"+v.Spec.Image))
				}
			},
		},
	}
}

// one is the only volume there is.
func (w *world) one(t *testing.T) *v1alpha1.CacheVolume {
	t.Helper()
	all := w.volumes(t)
	if len(all) != 1 {
		t.Fatalf("%d volumes", len(all))
	}
	return &all[0]
}

// inOtherGroup is a node of the group that the volume is not in.
func inOtherGroup(v *v1alpha1.CacheVolume) string {
	return nodes[map[string]int{"g1": 3, "g2": 0}[v.Spec.Group]]
}

func third(v *v1alpha1.CacheVolume) string {
	for _, n := range nodes[map[string]int{"g1": 0, "g2": 3}[v.Spec.Group]:] {
		if !v.Spec.HasReplica(n) {
			return n
		}
	}
	return ""
}

// attached fails unless the node has the volume, and exactly the two replicas of the record are
// there.
func (w *world) attached(t *testing.T, node string) {
	t.Helper()
	v := w.one(t)
	if v.Status.AttachedNode != node || v.Status.Authority != v1alpha1.AuthorityCache {
		t.Errorf("attached to %q with authority %s, want %s", v.Status.AttachedNode, v.Status.Authority, node)
	}
	if !slices.Contains(v.Spec.Replicas, node) {
		t.Errorf("node %s has no replica of %v", node, v.Spec.Replicas)
	}
	w.onlyOnReplicas(t)
}

// clientAddress records what csi-node does after dev_connect.
func (w *world) clientAddress(t *testing.T, address string) {
	t.Helper()
	v := w.one(t)
	v.Status.ClientAddress = address
	must(t, w.api.Status().Update(t.Context(), v))
}
