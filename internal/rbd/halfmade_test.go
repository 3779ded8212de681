package rbd

import (
	"errors"
	"testing"

	"github.com/ceph/go-ceph/rados"
)

// TestACreateThatDiedHalfWayIsFinishedOrRemoved takes parts of an image away, as they are missing
// when a process dies in a create.
func TestACreateThatDiedHalfWayIsFinishedOrRemoved(t *testing.T) {
	for name, breakIt := range map[string]func(io *rados.IOContext, id string) error{
		"no header": func(io *rados.IOContext, id string) error { return io.Delete("rbd_header." + id) },
		"ID only": func(io *rados.IOContext, id string) error {
			return errors.Join(io.Delete("rbd_header."+id), io.Delete("rbd_directory"))
		},
		"name only": func(io *rados.IOContext, id string) error {
			return errors.Join(io.Delete("rbd_header."+id), io.Delete("rbd_id.a"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			c, pool, ctx := open(t, ceph, Options{}), newPool(t), t.Context()
			s := spec(pool, "a")
			half := func() {
				t.Helper()
				must(t, c.CreateImage(ctx, s))
				id, err := c.ImageID(ctx, s.ImageRef)
				must(t, err)
				_, err = call(ctx, c, "break", id, func(conn *rados.Conn) (struct{}, error) {
					return withPool(conn, pool, func(io *rados.IOContext) (struct{}, error) {
						return struct{}{}, breakIt(io, id)
					})
				})
				must(t, err)
			}
			half()
			if err := c.DeleteImage(ctx, s.ImageRef); err != nil && !errors.Is(err, ErrNotFound) {
				t.Fatalf("delete: %v", err)
			}
			must(t, c.CreateImage(ctx, s))
			must(t, c.DeleteImage(ctx, s.ImageRef))
			half()
			must(t, c.CreateImage(ctx, s))
			if info, err := c.ImageInfo(ctx, s.ImageRef); err != nil || info.SizeBytes != s.SizeBytes {
				t.Fatalf("got %+v, %v", info, err)
			}
			must(t, c.DeleteImage(ctx, s.ImageRef))
			_, err := c.EmptyTrash(ctx, pool)
			must(t, err)
			waitForEmptyPool(t, c, pool)
		})
	}
}

func TestAnImageWhoseDataPoolIsGoneIsNotTakenForHalfMade(t *testing.T) {
	c, pool, data, ctx := open(t, ceph, Options{}), newPool(t), newPool(t), t.Context()
	s := spec(pool, "a")
	s.DataPool = data
	must(t, c.CreateImage(ctx, s))
	removePool(t, data)
	s.DataPool = ""
	fresh := open(t, ceph, Options{}) // it has not seen the pool
	for _, cluster := range []*Cluster{c, fresh} {
		if err := cluster.CreateImage(ctx, s); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("create: %v", err)
		}
		if _, err := cluster.ImageInfo(ctx, s.ImageRef); err == nil || errors.Is(err, ErrNotFound) {
			t.Errorf("info: %v", err)
		}
		if _, err := cluster.ImageID(ctx, s.ImageRef); err != nil {
			t.Errorf("it is gone: %v", err)
		}
	}
	if err := fresh.DeleteImage(ctx, s.ImageRef); errors.Is(err, ErrNotFound) {
		t.Errorf("delete takes it for gone: %v", err)
	}
}
