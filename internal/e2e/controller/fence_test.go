//go:build e2e

package controller

import (
	"context"
	"errors"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	"github.com/ceph/go-ceph/rbd"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// fences takes a volume by force from a host that writes to its image. The host's Ceph client is shut out, and so is one that it makes
// late; they stay so while the host has the device or does not answer, and leave Ceph's blocklist once the map is gone.
func fences(t *testing.T, w *world) {
	d := leader(t, time.Minute, w.launch(t, "a", soon...))
	must(t, d.create(t.Context(), crashed))
	v := w.one(t)
	lost, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	must(t, d.publish(t.Context(), crashed, lost))
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
	// As if it were so long ago that no dev_connect can be under way any more.
	v = w.one(t)
	for i := range v.Status.Fenced {
		v.Status.Fenced[i].Time = metav1.NewTime(time.Now().Add(-time.Hour))
	}
	must(t, w.api.Status().Update(t.Context(), v))
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
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	done := make(chan error, 1)
	go func() {
		_, err := m.image.WriteAt(make([]byte, 4096), 0)
		done <- err
	}()
	select {
	case err := <-done:
		var coded interface{ ErrorCode() int }
		if errors.As(err, &coded) {
			return syscall.Errno(-coded.ErrorCode())
		}
		return err
	case <-ctx.Done():
		return errors.New("the write hangs")
	}
}

func (m *mapped) close() {
	_ = m.image.Close()
	m.pool.Destroy()
	m.conn.Shutdown()
}
