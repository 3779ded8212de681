//go:build e2e

package controller

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// fences takes a volume by force from a host that writes to its image. The host's Ceph client is
// shut out, and so is one that it makes late; they stay so while the host has the device or does
// not answer, and leave Ceph's blocklist once the map is gone.
func fences(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	until(t, func() error { return d.create(t.Context(), crashed) })
	v := w.one(t)
	lost, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	until(t, func() error { return d.publish(t.Context(), crashed, lost) })
	holder := w.open(t, v.Spec.Image)
	must(t, holder.write())
	w.fleet.Hosts[lost].Connect(imageRef(), holder.address)
	w.clientAddress(t, holder.address)

	w.kubectl(t, "", "taint", "node", lost, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
	until(t, func() error { return d.unpublish(t.Context(), crashed, lost) })
	if err := holder.write(); !errors.Is(err, syscall.ESHUTDOWN) {
		t.Errorf("the host that lost the volume writes: %v", err)
	}
	until(t, func() error { return d.publish(t.Context(), crashed, partner) })
	late := w.open(t, v.Spec.Image) // as a dev_connect that was under way there
	eventually(t, 30*time.Second, func() bool { return errors.Is(late.write(), syscall.ESHUTDOWN) },
		func() string { return "a client that the host has made late is not fenced" })
	late.close()
	w.fencedLongAgo(t)
	const looks = 8 * time.Second // time for two of them
	w.staysFenced(t, looks, holder.address, "the host has the device")
	w.fleet.Hosts[lost].Stop()
	w.staysFenced(t, looks, holder.address, "the host does not answer")

	holder.close()
	w.fleet.Hosts[lost].Restart(t)
	w.fleet.Hosts[lost].Release(imageRef())
	eventually(t, 30*time.Second, func() bool {
		return len(w.one(t).Status.Fenced) == 0 && !w.blocklisted(t, holder.address) && !w.blocklisted(t, late.address)
	}, func() string { return "the maps are gone and their fences are not lifted" })

	w.kubectl(t, "", "taint", "node", lost, "node.kubernetes.io/out-of-service-")
	until(t, func() error { return d.unpublish(t.Context(), crashed, partner) })
	until(t, func() error { return d.delete(t.Context(), crashed) })
}

// unknown takes a volume by force from a host that does not answer, and of whose client nobody
// knows: it was lost between its dev_connect and the record of that. Ceph knows the client, by its
// watch of the image; and when that has run out, by its lock.
func unknown(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	for name, frozen := range map[string]bool{"it has the image open": false, "it is frozen, and only its lock is left": true} {
		t.Run(name, func(t *testing.T) {
			// The stale replica of the run before, which had the same name, may still be removed.
			until(t, func() error { return d.create(t.Context(), crashed) })
			v := w.one(t)
			lost, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
			until(t, func() error { return d.publish(t.Context(), crashed, lost) })
			if frozen {
				w.ceph.Ceph(t, "config", "set", "osd", "osd_client_watch_timeout", "10")
				defer w.ceph.Ceph(t, "config", "rm", "osd", "osd_client_watch_timeout")
			}
			holder := w.writer(t, v.Spec.Image)
			if frozen {
				must(t, holder.command.Process.Signal(syscall.SIGSTOP))
				eventually(t, time.Minute, func() bool { return !strings.Contains(w.rbd(t, "status", "rbd/"+v.Spec.Image), holder.address) },
					func() string { return "the watch does not run out" })
			}
			w.fleet.Hosts[lost].Stop()
			w.kubectl(t, "", "taint", "node", lost, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
			if v = w.one(t); v.Status.ClientAddress != "" {
				t.Fatalf("client %s is on record", v.Status.ClientAddress)
			}
			until(t, func() error { return d.unpublish(t.Context(), crashed, lost) })
			v = w.one(t)
			known := slices.ContainsFunc(v.Status.Fenced, func(c v1alpha1.FencedClient) bool { return c.Address == holder.address })
			if !known || !w.blocklisted(t, holder.address) {
				t.Errorf("%s is not fenced; on record are %v", holder.address, v.Status.Fenced)
			}
			// Nobody knows that it is the host's, which may still map the image with another client.
			if !slices.ContainsFunc(v.Status.Fenced, func(c v1alpha1.FencedClient) bool { return c.Node == lost }) {
				t.Errorf("%s is not on record: %v", lost, v.Status.Fenced)
			}
			if frozen {
				must(t, holder.command.Process.Signal(syscall.SIGCONT))
			}
			if why := holder.end(); !strings.Contains(why, "(108)") { // ESHUTDOWN
				t.Errorf("the host that lost the volume writes: %s", why)
			}
			until(t, func() error { return d.publish(t.Context(), crashed, partner) })
			w.attached(t, partner)

			w.fleet.Hosts[lost].Restart(t)
			w.kubectl(t, "", "taint", "node", lost, "node.kubernetes.io/out-of-service-")
			until(t, func() error { return d.unpublish(t.Context(), crashed, partner) })
			until(t, func() error { return d.delete(t.Context(), crashed) })
			w.empty(t)
		})
	}
}

// deadClient leaves an image with the lock of a client that has died, and whose watch has run out.
func (w *world) deadClient(t *testing.T, image string) {
	t.Helper()
	w.ceph.Ceph(t, "config", "set", "osd", "osd_client_watch_timeout", "10")
	defer w.ceph.Ceph(t, "config", "rm", "osd", "osd_client_watch_timeout")
	x := w.writer(t, image)
	must(t, x.command.Process.Kill())
	eventually(t, time.Minute, func() bool { return !strings.Contains(w.rbd(t, "status", "rbd/"+image), x.address) },
		func() string { return "the watch does not run out" })
}

// fenceScenes are what becomes of the fences of a volume that was taken by force.
func fenceScenes() []scene {
	var lost, partner string
	var holder, late *mapped
	var released, removed bool
	attach := func(t *testing.T, w *world, d *driver) {
		released, removed, late = false, false, nil
		until(t, func() error { return d.create(t.Context(), crashed) })
		v := w.one(t)
		lost, partner = v.Spec.Replicas[0], v.Spec.Replicas[1]
		until(t, func() error { return d.publish(t.Context(), crashed, lost) })
		holder = w.open(t, v.Spec.Image)
		must(t, holder.write())
		w.fleet.Hosts[lost].Connect(imageRef(), holder.address)
		w.clientAddress(t, holder.address)
	}
	take := func(t *testing.T, w *world, d *driver) {
		w.kubectl(t, "", "taint", "node", lost, "node.kubernetes.io/out-of-service=nodeshutdown:NoExecute")
		until(t, func() error { return d.unpublish(t.Context(), crashed, lost) })
		until(t, func() error { return d.publish(t.Context(), crashed, partner) })
	}
	clean := func(t *testing.T, w *world, d *driver) {
		w.kubectl(t, "", "taint", "node", lost, "node.kubernetes.io/out-of-service-")
		until(t, func() error { return d.unpublish(t.Context(), crashed, partner) })
		until(t, func() error { return d.delete(t.Context(), crashed) })
	}
	lifted := func(t *testing.T, w *world, d *driver) error {
		if !released {
			w.fleet.Hosts[lost].Release(imageRef())
			w.fencedLongAgo(t)
			released = true
		}
		return d.asked(t.Context(), func() (bool, error) { return len(w.one(t).Status.Fenced) == 0, nil })
	}
	return []scene{
		{
			name: "a late client is fenced, and both are let in again", clean: clean,
			prepare: func(t *testing.T, w *world, d *driver) {
				attach(t, w, d)
				take(t, w, d)
			},
			call: func(t *testing.T, w *world, d *driver) error {
				if late == nil {
					late = w.open(t, w.one(t).Spec.Image)
				}
				if err := d.asked(t.Context(), func() (bool, error) { return released || w.blocklisted(t, late.address), nil }); err != nil {
					return err
				}
				if !released {
					holder.close()
					late.close()
				}
				return lifted(t, w, d)
			},
			check: func(t *testing.T, w *world) {
				if w.blocklisted(t, holder.address) || w.blocklisted(t, late.address) {
					t.Error("the maps are gone and their fences are not lifted")
				}
			},
		},
		{
			name: "a fence that somebody has removed is made again, and is the driver's then",
			prepare: func(t *testing.T, w *world, d *driver) {
				attach(t, w, d)
				holder.close() // it writes no more
				w.ceph.Ceph(t, "osd", "blocklist", "add", holder.address, "600")
				take(t, w, d)
				if c := w.one(t).Status.Fenced[0]; c.EarlierUntil == nil || !w.fencedForYears(t, holder.address) {
					t.Errorf("the entry that was there is not replaced: %+v", c)
				}
			},
			call: func(t *testing.T, w *world, d *driver) error {
				if !removed {
					w.ceph.Ceph(t, "osd", "blocklist", "rm", holder.address)
					removed = true
				}
				return d.asked(t.Context(), func() (bool, error) { return w.fencedForYears(t, holder.address), nil })
			},
			check: func(*testing.T, *world) {},
			clean: func(t *testing.T, w *world, d *driver) {
				must(t, lifted(t, w, d))
				if w.blocklisted(t, holder.address) {
					t.Error("the map is gone and its fence is not lifted")
				}
				clean(t, w, d)
			},
		},
	}
}

// fencedLongAgo has the record say that its clients were fenced so long ago that no dev_connect can be under way any
// more.
func (w *world) fencedLongAgo(t *testing.T) {
	t.Helper()
	until(t, func() error {
		v := w.one(t)
		for i := range v.Status.Fenced {
			v.Status.Fenced[i].Time = metav1.NewTime(time.Now().Add(-time.Hour))
		}
		if err := w.api.Status().Update(t.Context(), v); err != nil {
			return status.Error(codes.Aborted, err.Error())
		}
		return nil
	})
}

// fencedForYears reports whether the client's entry on the blocklist ends no sooner than in a year.
func (w *world) fencedForYears(t *testing.T, address string) bool {
	t.Helper()
	_, rest, listed := strings.Cut(w.ceph.Ceph(t, "osd", "blocklist", "ls"), address+" ")
	return listed && rest[:4] > time.Now().AddDate(1, 0, 0).Format("2006")
}

// writer is a process that writes to an image, with a Ceph client of its own, until it cannot any
// more.
type writer struct {
	address string
	command *exec.Cmd
	said    *bytes.Buffer
	ended   chan struct{}
}

func (w *world) writer(t *testing.T, image string) *writer {
	t.Helper()
	x := &writer{said: &bytes.Buffer{}, ended: make(chan struct{})}
	x.command = exec.Command("rbd", "-c", w.ceph.Conf(), "--rbd-cache=false", "bench", "rbd/"+image,
		"--io-type=write", "--io-size=4096", "--io-threads=1", "--io-total=64G")
	x.command.Stdout, x.command.Stderr = x.said, x.said
	must(t, x.command.Start())
	go func() {
		_ = x.command.Wait()
		close(x.ended)
	}()
	t.Cleanup(func() {
		_ = x.command.Process.Kill()
		<-x.ended
	})
	eventually(t, time.Minute, func() bool {
		_, rest, locked := strings.Cut(w.rbd(t, "lock", "ls", "rbd/"+image), "auto ")
		if fields := strings.Fields(rest); locked && len(fields) > 1 {
			x.address = fields[len(fields)-1]
		}
		return x.address != ""
	}, func() string { return "nobody takes the image's lock" })
	return x
}

// end waits until the process has ended, and returns what it said.
func (x *writer) end() string {
	select {
	case <-x.ended:
		return x.said.String()
	case <-time.After(time.Minute):
		return "still, a minute later"
	}
}

func (w *world) blocklisted(t *testing.T, address string) bool {
	t.Helper()
	return strings.Contains(w.ceph.Ceph(t, "osd", "blocklist", "ls"), address+" ")
}

func (w *world) staysFenced(t *testing.T, long time.Duration, address, though string) {
	t.Helper()
	for end := time.Now().Add(long); time.Now().Before(end); time.Sleep(time.Second) {
		if !w.blocklisted(t, address) {
			t.Fatalf("%s is not fenced any more, though %s", address, though)
		}
	}
}

// mapped is an image that is open for writing with a Ceph client of its own, as krbd maps it.
type mapped struct {
	address string
	image   *rbd.Image
	pool    *rados.IOContext
	conn    *rados.Conn
}

func (w *world) open(t *testing.T, image string) *mapped {
	t.Helper()
	m := &mapped{conn: w.connectCeph(t)}
	var err error
	m.address, err = m.conn.GetAddrs()
	must(t, err)
	m.pool, err = m.conn.OpenIOContext("rbd")
	must(t, err)
	m.image, err = rbd.OpenImage(m.pool, image, rbd.NoSnapshot)
	must(t, err)
	return m
}

// write puts a block into the image, and takes its exclusive lock for it.
func (m *mapped) write() error {
	return m.within("the write", func() error {
		_, err := m.image.WriteAt(make([]byte, 4096), 0)
		return err
	})
}

// discard discards a block of the image.
func (m *mapped) discard() error {
	return m.within("the discard", func() error {
		_, err := m.image.Discard(1<<20, 4096)
		return err
	})
}

// within does something with the image that must not hang, and returns the errno that it fails with.
func (m *mapped) within(what string, do func() error) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		done <- do()
	}()
	select {
	case err := <-done:
		var coded interface{ ErrorCode() int }
		if errors.As(err, &coded) {
			return syscall.Errno(-coded.ErrorCode())
		}
		return err
	case <-ctx.Done():
		return errors.New(what + " hangs")
	}
}

func (m *mapped) close() {
	_ = m.image.Close()
	m.pool.Destroy()
	m.conn.Shutdown()
}
