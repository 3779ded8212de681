package labtest

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/escache/escache-csi/api/escache"
)

// MapAlone maps an image read-only and without any cache, to see what Ceph alone has. It is
// unmapped when the test ends, or by calling unmap.
func (h *Host) MapAlone(t T, v *Volume) (device string, unmap func()) {
	t.Helper()
	return h.mapImage(t, v, "-", "noshare,read_only")
}

// MapSnapshot maps a snapshot of an image.
func (h *Host) MapSnapshot(t T, v *Volume, snapshot string) (device string, unmap func()) {
	t.Helper()
	return h.mapImage(t, v, snapshot, "noshare,read_only")
}

// MapPlain maps an image for writing without any cache.
func (h *Host) MapPlain(t T, v *Volume) (device string, unmap func()) {
	t.Helper()
	return h.mapImage(t, v, "-", "noshare,exclusive")
}

func (h *Host) mapImage(t T, v *Volume, snapshot, options string) (device string, unmap func()) {
	t.Helper()
	device, id, err := h.mapRaw(t.Context(), v.VolumeRef, snapshot, options)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var once sync.Once
	unmap = func() {
		once.Do(func() {
			if err := h.unmapRaw(context.WithoutCancel(t.Context()), id); err != nil {
				t.Errorf("%v", err)
			}
		})
	}
	t.Cleanup(unmap)
	return device, unmap
}

// mapRaw asks the kernel itself: the hosts have no rbd command. The snapshot "-" is the image as it
// is now.
func (h *Host) mapRaw(ctx context.Context, ref escache.VolumeRef, snapshot, options string) (device, id string, err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	key, err := command(ctx, "ceph", "auth", "get-key", "client.admin")
	if err != nil {
		return "", "", err
	}
	// The kernel takes the line in one write only. Maps are told apart by their numbers: those of a
	// volume's cache on the same host look alike.
	script := fmt.Sprintf(`modprobe rbd
before=$(ls /sys/bus/rbd/devices)
read -r key
monitor=$(sed -n 's/^mon host = v1://p' /etc/ceph/ceph.conf)
echo "$monitor name=admin,secret=$key,%s %s %s %s" >/sys/bus/rbd/add_single_major || exit 1
for id in $(ls /sys/bus/rbd/devices); do
  case " $(echo $before) " in *" $id "*) continue ;; esac
  [ "$(cat /sys/bus/rbd/devices/$id/pool)/$(cat /sys/bus/rbd/devices/$id/name)" = %s ] && echo $id && exit
done
exit 1`, options, ref.Pool, ref.Image, snapshot, imageSpec(ref))
	id, err = h.Try(ctx, strings.NewReader(key+"\n"), "sh", "-c", script)
	return "/dev/rbd" + id, id, err
}

func (h *Host) unmapRaw(ctx context.Context, id string) error {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	_, err := h.Try(ctx, nil, "sh", "-c", "echo "+id+" >/sys/bus/rbd/remove_single_major")
	return err
}
