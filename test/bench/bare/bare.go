// Package bare uses go-ceph directly, with one connection and no limits. Benchmarks compare
// internal/rbd with it.
package bare

import (
	"errors"
	"strings"
	"sync"

	"github.com/ceph/go-ceph/rados"
	librbd "github.com/ceph/go-ceph/rbd"

	"github.com/escache/escache-csi/internal/rbd"
)

// Pool is a pool of images.
type Pool struct {
	conn *rados.Conn
	io   *rados.IOContext
}

// Open connects as client.admin.
func Open(conf, pool string) (*Pool, error) {
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
	if err != nil {
		conn.Shutdown()
		return nil, err
	}
	return &Pool{conn: conn, io: io}, nil
}

// Close ends the connection.
func (p *Pool) Close() {
	p.io.Destroy()
	p.conn.Shutdown()
}

// Create makes an image with the driver's features.
func (p *Pool) Create(name string, size uint64) error {
	options := librbd.NewRbdImageOptions()
	defer options.Destroy()
	if err := options.SetUint64(librbd.ImageOptionFeatures, uint64(rbd.DefaultFeatures)); err != nil {
		return err
	}
	return librbd.CreateImage(p.io, name, size, options)
}

// Trash moves an image to the trash.
func (p *Pool) Trash(name string) error { return librbd.GetImage(p.io, name).Trash(0) }

// EmptyTrash removes those images in the trash whose names begin with prefix, so many at once.
func (p *Pool) EmptyTrash(prefix string, inFlight int) error {
	entries, err := librbd.GetTrashList(p.io)
	if err != nil {
		return err
	}
	var (
		wait   sync.WaitGroup
		slots  = make(chan struct{}, inFlight)
		failed = make([]error, len(entries))
	)
	for i, e := range entries {
		if !strings.HasPrefix(e.Name, prefix) {
			continue
		}
		slots <- struct{}{}
		wait.Go(func() {
			defer func() { <-slots }()
			failed[i] = librbd.TrashRemove(p.io, e.Id, false)
		})
	}
	wait.Wait()
	return errors.Join(failed...)
}
