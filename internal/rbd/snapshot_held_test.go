package rbd

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"
)

func TestSnapshotsWhileSomebodyHasTheLock(t *testing.T) {
	t.Run("one pool", func(t *testing.T) { snapshotsUnderLock(t, "") })
	t.Run("data pool", func(t *testing.T) { snapshotsUnderLock(t, newPool(t)) })
}

func snapshotsUnderLock(t *testing.T, dataPool string) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	s.DataPool = dataPool
	must(t, c.CreateImage(ctx, s))
	// Other images have snapshots as well, and this one had one before.
	inPool(t, c, cmp.Or(dataPool, pool), func(io *rados.IOContext) error {
		for range 2 * snapshotTries {
			_, err := newSnapshotID(io)
			must(t, err)
		}
		return nil
	})
	first := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "first"}
	_, err := c.CreateSnapshot(ctx, first)
	must(t, err)
	must(t, c.RemoveSnapshot(ctx, first))
	image, stop := openedImage(t, s.ImageRef, true)
	before, after := bytes.Repeat([]byte("b"), 4096), bytes.Repeat([]byte("a"), 4096)
	write := func(data []byte) {
		t.Helper()
		_, err := image.WriteAt(data, 1<<20)
		must(t, err)
		must(t, image.Flush())
	}
	write(before)
	ref := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "s"}
	snap, err := c.CreateSnapshot(ctx, ref)
	must(t, err)
	if snap.Name != "s" || snap.SizeBytes != s.SizeBytes || snap.ID == 0 || snap.Created.IsZero() {
		t.Errorf("got %+v", snap)
	}
	if again, err := c.CreateSnapshot(ctx, ref); !errors.Is(err, ErrExists) || again != snap {
		t.Errorf("a second create: %+v, %v", again, err)
	}
	write(after)
	if got := inSnapshot(t, c, ref, 1<<20); !bytes.Equal(got, before) {
		t.Errorf("the snapshot has %.8q", got)
	}

	// One that has clones is out of sight, and the clones have what they need.
	clone := ImageSpec{ImageRef: ImageRef{pool, "clone"}, DataPool: dataPool}
	must(t, c.CloneImage(ctx, ref, clone))
	must(t, c.RemoveSnapshot(ctx, ref))
	if err := c.RemoveSnapshot(ctx, ref); !errors.Is(err, ErrNotFound) {
		t.Errorf("a second remove: %v", err)
	}
	if all, err := c.ListSnapshots(ctx, s.ImageRef); err != nil || len(all) != 0 {
		t.Errorf("after the remove: %+v, %v", all, err)
	}
	if got := inSnapshot(t, c, SnapshotRef{ImageRef: clone.ImageRef}, 1<<20); !bytes.Equal(got, before) {
		t.Errorf("the clone has %.8q", got)
	}
	if n := hidden(t, c, s.ImageRef); n != 1 {
		t.Errorf("%d hidden snapshots with a clone", n)
	}
	must(t, c.DeleteImage(ctx, clone.ImageRef))
	_, err = c.EmptyTrash(ctx, pool)
	must(t, err)

	// The next one that is removed takes along what nobody needs any more.
	write(before)
	second, err := c.CreateSnapshot(ctx, ref)
	must(t, err)
	if second.ID <= snap.ID {
		t.Errorf("number %d after %d", second.ID, snap.ID)
	}
	must(t, c.RemoveSnapshot(ctx, ref))
	if n := hidden(t, c, s.ImageRef); n != 0 {
		t.Errorf("%d hidden snapshots without a clone", n)
	}
	waitForKept(t, c, cmp.Or(dataPool, pool), 0)
	_, err = c.CreateSnapshot(ctx, ref)
	must(t, err)

	// What was taken under the lock is a snapshot as any other.
	stop()
	if err := c.DeleteImage(ctx, s.ImageRef); !errors.Is(err, ErrHasSnapshots) {
		t.Errorf("deleted with a snapshot: %v", err)
	}
	must(t, c.RemoveSnapshot(ctx, ref))
	must(t, c.DeleteImage(ctx, s.ImageRef))
	if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil {
		t.Errorf("%d left, %v", left, err)
	}
}

// TestARemovedSnapshotTakesNothingFromAnotherVolume has the rights that docs/security.md gives csi-controller.
func TestARemovedSnapshotTakesNothingFromAnotherVolume(t *testing.T) {
	pool, data, ctx := newPool(t), newPool(t), t.Context()
	ring := ceph.User(t, "client.two-pools", map[string]string{
		"mon": `profile rbd, allow command "osd blocklist", allow command "osd pool application get", allow command "df"`,
		"osd": "profile rbd pool=" + pool + ", profile rbd pool=" + data,
	})
	c := open(t, ceph, Options{Dir: configDir(t, ceph.Conf(), ring)})
	attached, detached := spec(pool, "attached"), spec(pool, "detached")
	attached.DataPool, detached.DataPool = data, data
	must(t, c.CreateImage(ctx, attached))
	must(t, c.CreateImage(ctx, detached))
	before := bytes.Repeat([]byte("b"), 4096)
	image, stop := openedImage(t, attached.ImageRef, true)
	defer stop()
	write := func(data []byte) {
		t.Helper()
		_, err := image.WriteAt(data, 1<<20)
		must(t, err)
		must(t, image.Flush())
	}
	write(before)
	writeAt(t, c, detached.ImageRef, 1<<20)
	kept := SnapshotRef{ImageRef: attached.ImageRef, Snapshot: "kept"}
	has, err := c.CreateSnapshot(ctx, kept)
	must(t, err)
	clone := ImageSpec{ImageRef: ImageRef{pool, "clone"}, DataPool: data}
	must(t, c.CloneImage(ctx, kept, clone))
	removed := SnapshotRef{ImageRef: detached.ImageRef, Snapshot: "removed"}
	gone, err := c.CreateSnapshot(ctx, removed)
	must(t, err)
	if has.ID == gone.ID {
		t.Errorf("snapshots of two images have the number %d", has.ID)
	}
	write(bytes.Repeat([]byte("a"), 4096))
	writeAt(t, c, detached.ImageRef, 1<<20)
	waitForKept(t, c, data, 2)
	must(t, c.RemoveSnapshot(ctx, removed))
	waitForKept(t, c, data, 1)
	if got := inSnapshot(t, c, kept, 1<<20); !bytes.Equal(got, before) {
		t.Errorf("the other volume's snapshot has %.8q", got)
	}
	if got := inSnapshot(t, c, SnapshotRef{ImageRef: clone.ImageRef}, 1<<20); !bytes.Equal(got, before) {
		t.Errorf("the volume that was made of it has %.8q", got)
	}
}

// waitForKept waits until the OSDs keep older versions of that many objects of a pool, for snapshots.
func waitForKept(t *testing.T, c *Cluster, pool string, want uint64) {
	t.Helper()
	eventually(t, time.Minute, func() (err error) {
		inPool(t, c, pool, func(io *rados.IOContext) error {
			stats, failed := io.GetPoolStats()
			if stats.Num_object_clones != want {
				err = fmt.Errorf("the OSDs keep %d objects of pool %s for snapshots, not %d", stats.Num_object_clones, pool, want)
			}
			return failed
		})
		return err
	})
}

// hidden is how many snapshots of the image were removed while they had clones.
func hidden(t *testing.T, c *Cluster, ref ImageRef) int {
	t.Helper()
	all, err := onImage(t.Context(), c, "test", "", ref, readOnly, hiddenSnapshots)
	must(t, err)
	return len(all)
}

// inSnapshot is a block of a snapshot; of the image itself where none is named.
func inSnapshot(t *testing.T, c *Cluster, ref SnapshotRef, at int64) []byte {
	t.Helper()
	data, err := call(t.Context(), c, "test", "", func(conn *rados.Conn) ([]byte, error) {
		return withPool(conn, ref.Pool, func(io *rados.IOContext) ([]byte, error) {
			image, err := librbd.OpenImageReadOnly(io, ref.Name, ref.Snapshot)
			if err != nil {
				return nil, err
			}
			data := make([]byte, 4096)
			_, err = image.ReadAt(data, at)
			return data, errors.Join(err, image.Close())
		})
	})
	must(t, err)
	return data
}

func TestARemovalThatDidNotGetToTheNumberIsFinishedLater(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	image, stop := openedImage(t, s.ImageRef, true)
	ref := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "s"}
	write := func() {
		t.Helper()
		_, err := image.WriteAt(bytes.Repeat([]byte("x"), 4096), 1<<20)
		must(t, err)
		must(t, image.Flush())
	}
	// The monitors let this user give no numbers back, as little as those that cannot be reached.
	ring := ceph.User(t, "client.no-numbers", map[string]string{"mon": "allow r", "osd": "allow rwx tag rbd *=*"})
	interrupted := open(t, ceph, Options{Dir: configDir(t, ceph.Conf(), ring)})
	removeHalf := func() {
		t.Helper()
		write()
		_, err := c.CreateSnapshot(ctx, ref)
		must(t, err)
		write()
		waitForKept(t, c, pool, 1)
		if err := interrupted.RemoveSnapshot(ctx, ref); !errors.Is(err, ErrPermission) {
			t.Fatalf("removed by one who may not: %v", err)
		}
		if n := hidden(t, c, s.ImageRef); n != 1 {
			t.Errorf("%d snapshots are hidden after half a removal", n)
		}
	}
	removeHalf()
	if err := c.RemoveSnapshot(ctx, ref); !errors.Is(err, ErrNotFound) {
		t.Errorf("the repeated removal: %v", err)
	}
	if n := hidden(t, c, s.ImageRef); n != 0 {
		t.Errorf("%d snapshots are hidden after the repeated removal", n)
	}
	waitForKept(t, c, pool, 0)

	// What nobody repeats goes with the image.
	removeHalf()
	stop()
	must(t, c.DeleteImage(ctx, s.ImageRef))
	if left, err := c.EmptyTrash(ctx, pool); left != 0 || err != nil {
		t.Errorf("%d left, %v", left, err)
	}
	waitForKept(t, c, pool, 0)
}

// The build that took numbers of attached volumes' snapshots from the pool of the metadata may have left one that the data pool never gave.
func TestASnapshotWithANumberThatItsPoolNeverGaveIsRemoved(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	s.DataPool = newPool(t)
	must(t, c.CreateImage(ctx, s))
	id, err := c.ImageID(ctx, s.ImageRef)
	must(t, err)
	inPool(t, c, pool, func(io *rados.IOContext) error { return addHeaderSnapshot(io, headerOf(id), "s", 1<<20) })
	defer useImage(t, s.ImageRef, true)()
	must(t, c.RemoveSnapshot(ctx, SnapshotRef{ImageRef: s.ImageRef, Snapshot: "s"}))
	if all, err := c.ListSnapshots(ctx, s.ImageRef); err != nil || len(all) != 0 {
		t.Errorf("there is %+v, %v", all, err)
	}
}

func TestASnapshotThatTheLocksHolderDoesNotHearOfIsNone(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	id, err := c.ImageID(ctx, s.ImageRef)
	must(t, err)
	inPool(t, c, pool, func(io *rados.IOContext) error {
		// A lock as that of a client which does not watch the header any more.
		_, err := io.LockExclusive("rbd_header."+id, "rbd_lock", "auto 1", "", 0, nil)
		return err
	})
	ref := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "s"}
	if _, err := c.CreateSnapshot(ctx, ref); !errors.Is(err, ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	if all, err := c.ListSnapshots(ctx, s.ImageRef); err != nil || len(all) != 0 {
		t.Errorf("there is %+v, %v", all, err)
	}
}

func TestSnapshotsOfAnImageWithObjectMapChangeOnlyUnlocked(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	s.Features = DefaultFeatures | ObjectMap
	must(t, c.CreateImage(ctx, s))
	ref := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "s"}
	stop := useImage(t, s.ImageRef, true)
	if _, err := c.CreateSnapshot(ctx, ref); !errors.Is(err, ErrBusy) {
		t.Errorf("created: %v", err)
	}
	if err := c.RemoveSnapshot(ctx, ref); !errors.Is(err, ErrNotFound) {
		t.Errorf("removed although there is none: %v", err)
	}
	stop()
	_, err := c.CreateSnapshot(ctx, ref)
	must(t, err)
	stop = useImage(t, s.ImageRef, true)
	if err := c.RemoveSnapshot(ctx, ref); !errors.Is(err, ErrBusy) {
		t.Errorf("removed: %v", err)
	}
	stop()
	must(t, c.RemoveSnapshot(ctx, ref))
}

// A csi-controller that was killed while it took a snapshot leaves the image's lock behind. The next leader
// fences its client, which never takes note of anything again.
func TestSnapshotsAfterWhoHasTheLockIsFenced(t *testing.T) {
	c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
	s := spec(pool, "a")
	must(t, c.CreateImage(ctx, s))
	image, _ := openedImage(t, s.ImageRef, true)
	t.Cleanup(func() { _ = image.Close() }) // Ceph refuses it
	owner, err := c.LockOwner(ctx, s.ImageRef)
	if err != nil || owner == nil {
		t.Fatalf("owner %+v, %v", owner, err)
	}
	must(t, c.BlocklistAdd(ctx, owner.Address, time.Hour))
	ref := SnapshotRef{ImageRef: s.ImageRef, Snapshot: "s"}
	_, err = c.CreateSnapshot(ctx, ref)
	must(t, err)
	must(t, c.RemoveSnapshot(ctx, ref))
}
