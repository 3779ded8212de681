package cacheflush_test

import (
	"errors"
	"slices"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// trims is a filesystem of 3 GiB that is trimmed in that many calls.
type trims struct {
	mu    sync.Mutex
	calls []escache.TrimRequest
	left  int
	err   error
}

func (f *trims) trim(r escache.TrimRequest) (escache.TrimResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, r)
	if f.err != nil {
		return escache.TrimResponse{}, f.err
	}
	f.left--
	return escache.TrimResponse{Done: f.left <= 0, NextByte: r.StartByte + csitest.GiB, TrimmedBytes: 5000}, nil
}

// persistentVolume makes the PersistentVolume of a volume.
func (w *world) persistentVolume(id string, change func(*corev1.PersistentVolumeSpec)) {
	w.T.Helper()
	pv := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: id}, Spec: corev1.PersistentVolumeSpec{
		MountOptions:           []string{"noatime"},
		PersistentVolumeSource: corev1.PersistentVolumeSource{CSI: &corev1.CSIPersistentVolumeSource{Driver: v1alpha1.DriverName, VolumeHandle: id}},
	}}
	if change != nil {
		change(&pv.Spec)
	}
	csitest.Must(w.T, w.API.Create(w.T.Context(), pv))
}

// unused makes a volume that was used on its first replica's node and is detached, with everything in Ceph. All hosts
// have the filesystem.
func (w *world) unused(id string, fs *trims) (v *v1alpha1.CacheVolume, third string) {
	w.T.Helper()
	v = w.Create(id)
	node := v.Spec.Replicas[0]
	_, err := w.Publish(id, node)
	csitest.Must(w.T, err)
	csitest.Must(w.T, w.Unpublish(id, node))
	for _, h := range w.Fleet.Hosts {
		h.OnTrim(fs.trim)
	}
	w.Poll()
	v = w.Volume(id)
	if v.Status.Authority != v1alpha1.AuthorityCeph || v.Status.AttachedNode != "" {
		w.T.Fatalf("status %+v", v.Status)
	}
	return v, csitest.Other(v)
}

func (w *world) trim(id string, start int64) (volumes.Trimmed, error) {
	return w.Locked.Trim(w.T.Context(), id, start, 5*time.Second)
}

func TestADetachedVolumeIsTrimmedWithoutItsCacheAndCachedAgain(t *testing.T) {
	w, fs := newWorld(t), &trims{left: 2}
	v, third := w.unused("pvc-1", fs)
	w.persistentVolume("pvc-1", nil)
	first, err := w.trim("pvc-1", 0)
	csitest.Must(t, err)
	if first.Done || first.Node != third || first.Bytes != 5000 || first.Next != csitest.GiB {
		t.Errorf("first bite: %+v", first)
	}
	s := w.Volume("pvc-1").Status
	if !s.TrimAttached() || s.AttachedNode != third || s.Epoch != 2 || s.Authority != v1alpha1.AuthorityCeph ||
		!slices.Equal(s.Outdated, v.Spec.Replicas) {
		t.Errorf("while it is trimmed: %+v", s)
	}
	if note := w.Images.Notes[volumes.ImageOf(v)]; note.Epoch != 2 || !note.Uncached || note.AttachedNode != third {
		t.Errorf("the image says %+v", note)
	}
	if host := w.Host(third).Status(csitest.Ref(v)); !host.Uncached || host.Epoch != 2 {
		t.Errorf("the host says %+v", host)
	}
	w.Restart() // another process goes on
	w.Poll()
	second, err := w.trim("pvc-1", first.Next)
	csitest.Must(t, err)
	if !second.Done || second.Node != third || len(fs.calls) != 2 || fs.calls[1].StartByte != csitest.GiB || fs.calls[1].Epoch != 2 ||
		fs.calls[1].FSType != "ext4" || !slices.Equal(fs.calls[1].MountOptions, []string{"noatime"}) {
		t.Errorf("second bite: %+v, calls %+v", second, fs.calls)
	}
	s = w.Volume("pvc-1").Status
	if s.AttachedNode != "" || s.Uncached != nil || s.Authority != v1alpha1.AuthorityCeph || !slices.Equal(s.Outdated, v.Spec.Replicas) {
		t.Errorf("afterwards: %+v", s)
	}
	if host := w.Host(third).Status(csitest.Ref(v)); host.State != escache.StateAbsent {
		t.Errorf("afterwards the host says %+v", host)
	}
	// What the replicas hold is older than the image now: they are created again.
	_, err = w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Must(t, err)
	s = w.Volume("pvc-1").Status
	if s.Epoch != 3 || s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 || w.Volume("pvc-1").Spec.LinkGeneration == v.Spec.LinkGeneration {
		t.Errorf("attached again: %+v", s)
	}
}

func TestADirtyVolumeIsWrittenBackBeforeItIsTrimmed(t *testing.T) {
	w, fs := newWorld(t), &trims{left: 1}
	_, _, survivor, third := w.PowerLoss("pvc-1")
	w.Host(third).OnTrim(fs.trim)
	w.persistentVolume("pvc-1", nil)
	w.Host(survivor).FlushAtMost(csitest.DirtyBytes / 2)
	_, err := w.trim("pvc-1", 0)
	if unfinished, ok := errors.AsType[*volumes.UnfinishedError](err); !ok || unfinished.Node != survivor || len(fs.calls) > 0 {
		t.Fatalf("%v, calls %v", err, fs.calls)
	}
	trimmed, err := w.trim("pvc-1", 0)
	csitest.Must(t, err)
	if !trimmed.Done || trimmed.Node != third {
		t.Errorf("%+v", trimmed)
	}
}

func TestWhatCannotBeTrimmedSaysWhatToDo(t *testing.T) {
	block := corev1.PersistentVolumeBlock
	for name, tc := range map[string]struct {
		volume func(w *world, v *v1alpha1.CacheVolume, third string)
		pv     func(*corev1.PersistentVolumeSpec)
		none   bool
		code   codes.Code
		says   []string
	}{
		"a pod has it": {volume: func(w *world, v *v1alpha1.CacheVolume, _ string) {
			_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
			csitest.Must(w.T, err)
		}, code: codes.FailedPrecondition, says: []string{"takes no discards", "Stop its pods"}},
		"block": {pv: func(s *corev1.PersistentVolumeSpec) { s.VolumeMode = &block }, code: codes.FailedPrecondition, says: []string{"blkdiscard"}},
		"another filesystem": {pv: func(s *corev1.PersistentVolumeSpec) { s.CSI.FSType = "btrfs" }, code: codes.FailedPrecondition,
			says: []string{"btrfs", "ext4"}},
		"no PersistentVolume": {none: true, code: codes.FailedPrecondition, says: []string{"there is no PersistentVolume"}},
		"never attached": {volume: func(w *world, v *v1alpha1.CacheVolume, _ string) {
			v.Status.ImageID = ""
			csitest.Must(w.T, w.API.Status().Update(w.T.Context(), v))
		}, code: codes.FailedPrecondition, says: []string{"never attached"}},
		"being released": {volume: func(w *world, _ *v1alpha1.CacheVolume, _ string) { w.AskRelease("pvc-1", true) },
			code: codes.FailedPrecondition, says: []string{"being released"}},
		"the other host is cordoned": {volume: func(w *world, _ *v1alpha1.CacheVolume, third string) {
			g, err := w.Group()
			csitest.Must(w.T, err)
			g.Spec.CordonedNodes = []string{third}
			csitest.Must(w.T, w.API.Update(w.T.Context(), g))
			w.Poll()
		}, code: codes.FailedPrecondition, says: []string{"no host of group g1", "cordoned"}},
		"the other host is down": {volume: func(w *world, _ *v1alpha1.CacheVolume, third string) {
			w.Host(third).Stop()
			w.Poll()
		}, code: codes.FailedPrecondition, says: []string{"no host of group g1", "ready"}},
		"a copy is newer than the record": {volume: func(w *world, v *v1alpha1.CacheVolume, _ string) {
			w.Host(v.Spec.Replicas[0]).SetEpoch(csitest.Ref(v), 7)
		}, code: codes.FailedPrecondition, says: []string{"epoch 7"}},
		"an older escached": {volume: func(w *world, _ *v1alpha1.CacheVolume, third string) {
			w.Host(third).Refuse("POST /v1/trim", escache.CodeUnknownPath)
		}, code: codes.FailedPrecondition, says: []string{"older than csi-controller", "upgrade"}},
		"a broken filesystem": {volume: func(w *world, _ *v1alpha1.CacheVolume, third string) {
			w.Host(third).OnTrim(nil)
		}, code: codes.FailedPrecondition, says: []string{"does not mount as ext4"}},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, third := w.unused("pvc-1", &trims{left: 1})
			if !tc.none {
				w.persistentVolume("pvc-1", tc.pv)
			}
			if tc.volume != nil {
				tc.volume(w, v, third)
			}
			before := w.Volume("pvc-1").Status
			_, err := w.trim("pvc-1", 0)
			csitest.Wants(t, err, tc.code, tc.says...)
			s := w.Volume("pvc-1").Status
			if s.AttachedNode != before.AttachedNode || s.Authority != before.Authority {
				t.Errorf("it was %+v, and is %+v", before, s)
			}
			if host := w.Host(third).Status(csitest.Ref(v)); host.State != escache.StateAbsent {
				t.Errorf("the host still has %+v", host)
			}
		})
	}
}

func TestAVolumeOfTheEngineLogIsTrimmedWhereItIs(t *testing.T) {
	w, fs := newWorld(t), &trims{left: 1}
	v, node := w.ConnectedLog("pvc-1")
	w.persistentVolume("pvc-1", func(s *corev1.PersistentVolumeSpec) { s.CSI.FSType = "xfs" })
	w.Host(node).OnTrim(fs.trim)
	before := w.Volume("pvc-1").Status
	trimmed, err := w.trim("pvc-1", 0)
	csitest.Must(t, err)
	if !trimmed.Done || trimmed.Node != node || fs.calls[0].Epoch != v.Status.Epoch || fs.calls[0].FSType != "xfs" {
		t.Errorf("%+v, %+v", trimmed, fs.calls)
	}
	csitest.Must(t, w.Locked.EndTrim(t.Context(), "pvc-1"))
	if s := w.Volume("pvc-1").Status; s.AttachedNode != node || s.Epoch != before.Epoch || s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
		t.Errorf("it was %+v, and is %+v", before, s)
	}
}

// A pod gets a volume that is being trimmed, on every host.
func TestAPodGetsAVolumeThatIsBeingTrimmed(t *testing.T) {
	for _, which := range []string{"with a replica", "the one that trims"} {
		t.Run(which, func(t *testing.T) {
			w, fs := newWorld(t), &trims{left: 9}
			v, outside := w.unused("pvc-1", fs)
			w.persistentVolume("pvc-1", nil)
			_, err := w.trim("pvc-1", 0)
			csitest.Must(t, err)
			node := outside
			if which == "with a replica" {
				node = v.Spec.Replicas[1]
			}
			_, err = w.Publish("pvc-1", node)
			csitest.Must(t, err)
			now := w.Volume("pvc-1")
			if s := now.Status; s.AttachedNode != node || s.FlushAttached() || s.UncachedAttached() || s.Epoch != 3 ||
				s.Authority != v1alpha1.AuthorityCache || !now.Spec.HasReplica(node) || len(s.Outdated) > 0 {
				t.Errorf("spec %+v, status %+v", now.Spec, s)
			}
			if host := w.Host(outside).Status(csitest.Ref(v)); host.Uncached {
				t.Errorf("%s still has it without a cache: %+v", outside, host)
			}
			_, err = w.trim("pvc-1", csitest.GiB)
			csitest.Wants(t, err, codes.FailedPrecondition, "attached to node "+node)
		})
	}
}

// A pod waits for a bite, and not for the sidecar's next try.
func TestACallWaitsForABiteOfATrim(t *testing.T) {
	w := newWorld(t)
	v, _ := w.unused("pvc-1", &trims{left: 9})
	w.waitsFor(t, volumes.Trimming, func() error {
		_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
		return err
	})
}

// What else takes a volume takes one that is being trimmed.
func TestAVolumeThatIsBeingTrimmedCanBeUsedOtherwise(t *testing.T) {
	for name, use := range map[string]func(w *world) error{
		"a snapshot":    func(w *world) error { _, err := w.Snap("snap-1", "pvc-1"); return err },
		"a clone":       func(w *world) error { return w.Clone("pvc-2", "pvc-1") },
		"a write-back":  func(w *world) error { return w.writeBack("pvc-1") },
		"the end of it": func(w *world) error { return w.Locked.EndTrim(w.T.Context(), "pvc-1") },
		"its end, twice": func(w *world) error {
			return errors.Join(w.Locked.EndTrim(w.T.Context(), "pvc-1"), w.Locked.EndTrim(w.T.Context(), "pvc-1"))
		},
		"the host is new": func(w *world) error {
			w.Host(csitest.Other(w.Volume("pvc-1"))).Forget()
			return w.Locked.EndTrim(w.T.Context(), "pvc-1")
		},
		"the volume's end": func(w *world) error { return w.Delete("pvc-1") },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, outside := w.unused("pvc-1", &trims{left: 9})
			w.persistentVolume("pvc-1", nil)
			_, err := w.trim("pvc-1", 0)
			csitest.Must(t, err)
			csitest.Must(t, use(w))
			if host := w.Host(outside).Status(csitest.Ref(v)); host.State != escache.StateAbsent {
				t.Errorf("the host still has %+v", host)
			}
			if name == "the volume's end" {
				return
			}
			if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCeph || !slices.Equal(s.Outdated, v.Spec.Replicas) {
				t.Errorf("status %+v", s)
			}
		})
	}
}

// A host that dies while it trims is fenced before anybody else gets the volume.
func TestAHostThatDiesWhileItTrimsIsFenced(t *testing.T) {
	w := newWorld(t)
	v, outside := w.unused("pvc-1", &trims{left: 9})
	w.persistentVolume("pvc-1", nil)
	_, err := w.trim("pvc-1", 0)
	csitest.Must(t, err)
	w.Images.Open[volumes.ImageOf(v)] = []string{"10.0.0.3:0/33"}
	w.Host(outside).Stop()
	_, err = w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Wants(t, err, codes.Unavailable)
	if s := w.Volume("pvc-1").Status; !s.TrimAttached() || len(w.Images.Fenced) > 0 {
		t.Errorf("it lives, by what Kubernetes says, and the record is %+v", s)
	}
	w.Taint(outside)
	w.Poll()
	_, err = w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Must(t, err)
	if s := w.Volume("pvc-1").Status; s.AttachedNode != v.Spec.Replicas[0] || !slices.Contains(w.Images.Fenced, "10.0.0.3:0/33") ||
		!slices.ContainsFunc(s.Fenced, func(c v1alpha1.FencedClient) bool { return c.Node == outside }) {
		t.Errorf("status %+v, fenced %v", s, w.Images.Fenced)
	}
}

// TestATrimGoesOnAfterACrash has csi-controller die before each of its writes. Whatever host has the image without a
// cache, the record says so, and that the copies are old.
func TestATrimGoesOnAfterACrash(t *testing.T) {
	for _, then := range []string{"trimmed", "attached"} {
		for writes := 0; ; writes++ {
			w := newWorld(t)
			v, outside := w.unused("pvc-1", &trims{left: 2})
			w.persistentVolume("pvc-1", nil)
			died := w.Mortal(writes)
			w.Poll()
			var at int64
			for range 2 {
				bite, err := w.trim("pvc-1", at)
				if err == nil {
					at = bite.Next
				}
			}
			s := w.Volume("pvc-1").Status
			has := w.Host(outside).Status(csitest.Ref(v)).State != escache.StateAbsent
			if has && (!s.TrimAttached() || s.AttachedNode != outside || !slices.Equal(s.Outdated, v.Spec.Replicas)) {
				t.Errorf("after %d writes the host has the image, and the record is %+v", writes, s)
			}
			w.Cached = w.API
			w.Restart()
			w.Poll()
			if then == "attached" {
				_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
				csitest.Must(t, err)
				s = w.Volume("pvc-1").Status
				if s.AttachedNode != v.Spec.Replicas[0] || s.Authority != v1alpha1.AuthorityCache || len(s.Outdated) > 0 {
					t.Errorf("after %d writes: %+v", writes, s)
				}
			} else {
				for range 3 {
					bite, err := w.trim("pvc-1", at)
					csitest.Must(t, err)
					if at = bite.Next; bite.Done {
						break
					}
				}
				if s = w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCeph {
					t.Errorf("after %d writes: %+v", writes, s)
				}
			}
			if host := w.Host(outside).Status(csitest.Ref(v)); host.Uncached {
				t.Errorf("after %d writes the host still has %+v", writes, host)
			}
			if t.Failed() || !*died {
				if writes < 2 {
					t.Errorf("it makes only %d writes", writes)
				}
				break
			}
		}
	}
}

func TestWithAnOlderCRDNothingIsTrimmedWithoutACache(t *testing.T) {
	w, fs := newWorld(t), &trims{left: 1}
	v, third := w.unused("pvc-1", fs)
	w.persistentVolume("pvc-1", nil)
	w.Cached = csitest.WithoutUncached{Client: w.API}
	w.Restart()
	w.Poll()
	_, err := w.trim("pvc-1", 0)
	csitest.Wants(t, err, codes.FailedPrecondition, "apply the chart's CRDs")
	if s := w.Volume("pvc-1").Status; s.AttachedNode != "" || s.Authority != v1alpha1.AuthorityCeph || len(fs.calls) > 0 ||
		w.Host(third).Status(csitest.Ref(v)).State != escache.StateAbsent {
		t.Errorf("status %+v, trimmed %+v", s, fs.calls)
	}
	_, err = w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Must(t, err)
}
