package main

import (
	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"

	"github.com/escache/escache-csi/internal/rbd"
)

// bare is go-ceph with nothing around it: one connection, no limits.
type bare struct {
	conn *rados.Conn
	io   *rados.IOContext
}

func dialBare(conf, pool string) (*bare, error) {
	conn, err := rados.NewConnWithUser("admin")
	if err != nil {
		return nil, err
	}
	if err := conn.ReadConfigFile(conf); err != nil {
		return nil, err
	}
	if err := conn.Connect(); err != nil {
		return nil, err
	}
	io, err := conn.OpenIOContext(pool)
	return &bare{conn: conn, io: io}, err
}

func (b *bare) close() {
	b.io.Destroy()
	b.conn.Shutdown()
}

func (b *bare) create(name string, size uint64) error {
	options := librbd.NewRbdImageOptions()
	defer options.Destroy()
	if err := options.SetUint64(librbd.ImageOptionFeatures, uint64(rbd.DefaultFeatures)); err != nil {
		return err
	}
	return librbd.CreateImage(b.io, name, size, options)
}

func (b *bare) trash(name string) error { return librbd.GetImage(b.io, name).Trash(0) }

func (b *bare) emptyTrash(inFlight int) error {
	entries, err := librbd.GetTrashList(b.io)
	if err != nil {
		return err
	}
	ids := make([]string, len(entries))
	for i, e := range entries {
		ids[i] = e.Id
	}
	_, err = each(ids, inFlight, func(id string) error { return librbd.TrashRemove(b.io, id, false) })
	return err
}
