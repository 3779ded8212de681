//go:build e2e

package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

const groupClasses = `
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: escache}
driver: csi.escache.io
deletionPolicy: Delete
parameters: {maxSeconds: "20"}
---
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshotClass
metadata: {name: wrong}
driver: csi.escache.io
deletionPolicy: Delete
parameters: {maxSeconds: "1"}
`

const groupSnapshot = `
apiVersion: groupsnapshot.storage.k8s.io/v1
kind: VolumeGroupSnapshot
metadata: {name: shop}
spec: {volumeGroupSnapshotClassName: escache, source: {selector: {matchLabels: {app: shop}}}}
`

var groupClaims = []string{"data-1", "data-2", "data-3"}

// groupLife is what a person does: three claims that hosts use, a VolumeGroupSnapshot of them, a claim
// of each of its VolumeSnapshots; then all is deleted.
func groupLife(t *testing.T, w *world) {
	d := w.launch(t, "a", soon...)
	leader(t, time.Minute, d)
	w.kube.SidecarsAs(t, w.account, "a", d.socket(), topologyArgs)
	for _, objects := range []string{class, groupClasses} {
		w.kubectl(t, objects, "apply", "-f", "-")
	}
	for _, name := range groupClaims {
		w.kubectl(t, strings.Replace(claim, "name: data", "name: "+name+", labels: {app: shop}", 1), "apply", "-f", "-")
		w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", "pvc/"+name, "--timeout=60s")
		w.useVolume(t, d, w.of(t, name).Name)
	}

	// A class with a wrong parameter takes nothing and says why.
	w.kubectl(t, strings.NewReplacer("name: shop}", "name: not}", "ClassName: escache", "ClassName: wrong").Replace(groupSnapshot), "apply", "-f", "-")
	why := ""
	eventually(t, time.Minute, func() bool {
		why = w.kubectl(t, "", "get", "volumegroupsnapshotcontents", "-o", "jsonpath={.items[*].status.error.message}")
		return strings.Contains(why, "maxSeconds") && strings.Contains(why, "5 to 40")
	}, func() string { return "the error is: " + why })
	w.kubectl(t, "", "delete", "volumegroupsnapshot", "not", "--timeout=60s")
	if all := w.snapshots(t); len(all) != 0 {
		t.Errorf("on record: %v", all)
	}

	w.kubectl(t, groupSnapshot, "apply", "-f", "-")
	w.kubectl(t, "", "wait", "--for=jsonpath={.status.readyToUse}=true", "volumegroupsnapshot/shop", "--timeout=60s")
	taken := w.snapshots(t)
	if len(taken) != len(groupClaims) || len(w.held(t)) != 0 {
		t.Fatalf("on record: %+v; held: %v", taken, w.held(t))
	}
	t.Logf("\n%s", w.kubectl(t, "", "get", "cachesnapshots", "-o", "wide"))
	var made []string
	eventually(t, time.Minute, func() bool {
		made = strings.Fields(w.kubectl(t, "", "get", "volumesnapshots", "-o",
			`jsonpath={range .items[?(@.status.readyToUse==true)]}{.metadata.name}{"\n"}{end}`))
		return len(made) == len(groupClaims)
	}, func() string { return fmt.Sprintf("VolumeSnapshots: %v", made) })
	for i, name := range made {
		of := strings.NewReplacer("name: restored", fmt.Sprintf("name: restored-%d", i), "kind: VolumeSnapshot, name: data", "kind: VolumeSnapshot, name: "+name)
		w.kubectl(t, of.Replace(restored), "apply", "-f", "-")
		w.kubectl(t, "", "wait", "--for=jsonpath={.status.phase}=Bound", fmt.Sprintf("pvc/restored-%d", i), "--timeout=60s")
	}
	if volumes := w.volumes(t); len(volumes) != 2*len(groupClaims) {
		t.Errorf("%d volumes", len(volumes))
	}

	for i := range made {
		w.kubectl(t, "", "delete", "pvc", fmt.Sprintf("restored-%d", i), "--timeout=60s")
	}
	w.kubectl(t, "", "delete", "volumegroupsnapshot", "shop", "--timeout=60s")
	eventually(t, time.Minute, func() bool { return len(w.snapshots(t)) == 0 }, func() string { return fmt.Sprint(w.snapshots(t)) })
	for _, name := range groupClaims {
		w.leaveVolume(t, d, w.of(t, name).Name)
		w.kubectl(t, "", "delete", "pvc", name, "--timeout=60s")
	}
	w.empty(t)
	w.kubectl(t, "", "delete", "storageclass/escache", "volumegroupsnapshotclass/escache", "volumegroupsnapshotclass/wrong")
}

// held are the volumes whose I/O rests.
func (w *world) held(t *testing.T) (names []string) {
	t.Helper()
	for _, v := range w.volumes(t) {
		image := escache.VolumeRef{Pool: v.Spec.Pool, Image: v.Spec.Image}
		if v.Status.AttachedNode != "" && w.fleet.Hosts[v.Status.AttachedNode].Held(image) {
			names = append(names, v.Name)
		}
	}
	slices.Sort(names)
	return names
}

const crashedGroup = "groupsnapshot-crash"

var groupVolumes = []string{"pvc-crash-1", "pvc-crash-2", "pvc-crash-3"}

func (d *driver) groupSnapshot(ctx context.Context) error {
	// Not in the order in which they are locked.
	ids := []string{groupVolumes[2], groupVolumes[0], groupVolumes[1]}
	_, err := d.CreateVolumeGroupSnapshot(ctx, &csi.CreateVolumeGroupSnapshotRequest{Name: crashedGroup, SourceVolumeIds: ids})
	return err
}

func (d *driver) deleteGroupSnapshot(ctx context.Context) error {
	_, err := d.DeleteVolumeGroupSnapshot(ctx, &csi.DeleteVolumeGroupSnapshotRequest{GroupSnapshotId: crashedGroup})
	return err
}

func connectGroup(t *testing.T, w *world, d *driver) {
	t.Helper()
	for _, name := range groupVolumes {
		connectVolume(t, w, d, name)
	}
}

func cleanGroup(t *testing.T, w *world, d *driver) {
	t.Helper()
	until(t, func() error { return d.deleteGroupSnapshot(t.Context()) })
	for _, name := range groupVolumes {
		disconnectVolume(t, w, d, name)
	}
}

// inCeph are the volumes whose images have a snapshot.
func (w *world) inCeph(t *testing.T) (names []string) {
	t.Helper()
	for _, name := range groupVolumes {
		if w.rbd(t, "snap", "ls", "rbd/"+refTo(name).Image) != "" {
			names = append(names, name)
		}
	}
	return names
}

// wholeGroup fails unless all snapshots of the group are there, on record and in Ceph, and nothing is
// held.
func (w *world) wholeGroup(t *testing.T) {
	t.Helper()
	all := w.snapshots(t)
	untaken := func(s v1alpha1.CacheSnapshot) bool {
		return s.Status.Taken == nil || !s.Status.Taken.Equal(all[0].Status.Taken)
	}
	if len(all) != len(groupVolumes) || slices.ContainsFunc(all, untaken) || !slices.Equal(w.inCeph(t), groupVolumes) || len(w.held(t)) != 0 {
		t.Errorf("on record: %+v; in Ceph: %v; held: %v", all, w.inCeph(t), w.held(t))
	}
}

// groupHeld stops the world, by the death of the leader, after the first snapshot, and when the first
// volume is let go.
func groupHeld(t *testing.T, w *world) {
	l := &line{world: w, t: t}
	for _, c := range []struct {
		point string
		check func(t *testing.T)
	}{
		{"create_group_snapshot/one_taken", func(t *testing.T) {
			if got := w.held(t); !slices.Equal(got, groupVolumes) {
				t.Errorf("held when the first snapshot is taken: %v", got)
			}
		}},
		{"create_group_snapshot/one_released", func(t *testing.T) {
			if got := w.inCeph(t); !slices.Equal(got, groupVolumes) {
				t.Errorf("in Ceph when the first volume is let go: %v", got)
			}
		}},
	} {
		t.Run(strings.ReplaceAll(c.point, "/", ":"), func(t *testing.T) {
			first := l.leader(t)
			second := l.next()
			l.explain(t, first, second)
			connectGroup(t, w, first)
			first.dieAt(t, c.point)
			if err := first.groupSnapshot(t.Context()); err == nil || !waitEnded(first) {
				t.Fatalf("the leader did not die: %v", err)
			}
			c.check(t)
			first.bury()
			l.leading = leader(t, time.Minute, second)
			until(t, func() error { return second.groupSnapshot(t.Context()) })
			w.wholeGroup(t)
			cleanGroup(t, w, second)
			w.empty(t)
		})
	}
}

// groupScenes are the calls about group snapshots.
func groupScenes() []scene {
	return []scene{
		{
			name: "CreateVolumeGroupSnapshot of attached volumes", prepare: connectGroup, clean: cleanGroup,
			call:  func(t *testing.T, _ *world, d *driver) error { return d.groupSnapshot(t.Context()) },
			check: func(t *testing.T, w *world) { w.wholeGroup(t) },
		},
		{
			name: "DeleteVolumeGroupSnapshot", clean: cleanGroup,
			prepare: func(t *testing.T, w *world, d *driver) {
				connectGroup(t, w, d)
				until(t, func() error { return d.groupSnapshot(t.Context()) })
			},
			call: func(t *testing.T, _ *world, d *driver) error { return d.deleteGroupSnapshot(t.Context()) },
			check: func(t *testing.T, w *world) {
				if all, left := w.snapshots(t), w.inCeph(t); len(all) != 0 || len(left) != 0 {
					t.Errorf("left: %v %v", all, left)
				}
			},
		},
	}
}
