package uncached

import (
	"context"
	"errors"
	"time"

	"github.com/escache/escache-csi/internal/escached/host"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/pause"
)

// settleEvery is how often Watch looks for records without a map.
const settleEvery = time.Minute

// Recover completes the devices that are there, and removes what is left of those that are not and that
// cannot come any more. It runs before any verb, and after the replicas were found.
func (m *Maps) Recover() error {
	all, err := m.records.List()
	errs := []error{err, m.records.Tidy()}
	for _, record := range all {
		errs = append(errs, m.settle(record))
	}
	return errors.Join(errs...)
}

// Watch does what Recover does until ctx ends: a process that hung in the kernel may end at any time, with
// a map or without one.
func (m *Maps) Watch(ctx context.Context) {
	for pause.For(ctx, settleEvery) == nil {
		m.Settle(ctx)
	}
}

// Settle settles the records of all volumes on which no verb runs.
func (m *Maps) Settle(ctx context.Context) {
	all, _ := m.records.List() // the status tells of those that cannot be read
	for _, record := range all {
		ref := record.VolumeRef
		_, done, err := m.TryBegin(ctx, ref, host.WorkCleanUp, host.ChangeTimeout)
		if err != nil {
			continue
		}
		record, there, err := m.records.Get(ref) // a verb may have changed it
		if err == nil && there {
			err = m.settle(record)
		}
		done()
		if err != nil {
			m.log.Warn("what is left of a map without a cache cannot be removed yet",
				"pool", ref.Pool, "image", ref.Image, "error", err)
		}
	}
}

// settle completes the device of a record, or removes the record if there is no map and none can come.
func (m *Maps) settle(record Record) error {
	comes := m.MapMayCome(record.VolumeRef) != nil // before the maps are read
	maps, err := m.Images.Find(record.Pool, record.Image)
	if err != nil {
		return err
	}
	v := volume.Volume{VolumeRef: record.VolumeRef}
	switch {
	case m.hasReplica(record.VolumeRef): // map and link are those of its cache
		return m.records.Drop(record.VolumeRef)
	case len(maps) == 1 && maps[0].ImageID == record.ImageID:
		_, err = m.Link(v, maps[0].Path())
		return err
	case len(maps) > 0, comes:
		return nil //nolint:nilerr // the status tells of it
	}
	if err := m.Unlink(v); err != nil {
		return err
	}
	return m.records.Drop(record.VolumeRef)
}
