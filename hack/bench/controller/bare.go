package main

import (
	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"

	"github.com/escache/escache-csi/internal/rbd"
)

const size = 1 << 30

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

func (b *bare) create(name string) error {
	options := librbd.NewRbdImageOptions()
	defer options.Destroy()
	if err := options.SetUint64(librbd.ImageOptionFeatures, uint64(rbd.DefaultFeatures)); err != nil {
		return err
	}
	return librbd.CreateImage(b.io, name, size, options)
}

func (b *bare) trash(name string) error { return librbd.GetImage(b.io, name).Trash(0) }

// emptyTrash removes what this program moved there; the driver removes its own.
func (b *bare) emptyTrash() error {
	entries, err := librbd.GetTrashList(b.io)
	if err != nil {
		return err
	}
	var ids []string
	for _, e := range entries {
		if len(e.Name) > 5 && e.Name[:5] == "bare-" {
			ids = append(ids, e.Id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	_, err = measure(len(ids), 8, func(i int) error { return librbd.TrashRemove(b.io, ids[i], false) })
	return err
}
