package engine

import (
	"context"
	"errors"
	"slices"

	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/lvm"
)

// The layers of a machine are those of its world. Before each call the real layer starts its programs. It
// reads nothing from them: what is there the world says.

type machineStore struct {
	*worldStore

	m *machine
}

func (s machineStore) Space(ctx context.Context) (lvm.Space, error) {
	_, _ = s.m.group.Space(ctx)
	return s.worldStore.Space(ctx)
}

func (s machineStore) Volumes(ctx context.Context, readOnly bool) ([]lvm.Volume, error) {
	_, _ = s.m.group.Volumes(ctx, readOnly)
	return s.worldStore.Volumes(ctx, readOnly)
}

func (s machineStore) Create(ctx context.Context, name string, size int64, tags map[string]string) error {
	return errors.Join(s.m.group.Create(ctx, name, size, tags), s.worldStore.Create(ctx, name, size, tags))
}

func (s machineStore) Remove(ctx context.Context, name string) (bool, error) {
	_, err := s.m.group.Remove(ctx, name)
	was, wrong := s.worldStore.Remove(ctx, name)
	return was, errors.Join(err, wrong)
}

func (s machineStore) Activate(ctx context.Context, names ...string) error {
	return errors.Join(s.m.group.Activate(ctx, names...), s.worldStore.Activate(ctx, names...))
}

func (s machineStore) Retag(ctx context.Context, name string, from, to map[string]string) error {
	return errors.Join(s.m.group.Retag(ctx, name, from, to), s.worldStore.Retag(ctx, name, from, to))
}

func (s machineStore) Rewrite(ctx context.Context, name string, tags map[string]string) error {
	return errors.Join(s.m.group.Rewrite(ctx, name, tags), s.worldStore.Rewrite(ctx, name, tags))
}

type machineFiles struct {
	*worldFiles

	m *machine
}

func (f machineFiles) Write(r drbd.Resource) (bool, error) {
	if _, err := f.m.resources().Write(r); err != nil {
		return false, err
	}
	return f.worldFiles.Write(r)
}

type machineImages struct {
	*worldImages

	m *machine
}

func (i machineImages) Map(ctx context.Context, volume, pool, image string) (krbd.Device, error) {
	_, _ = i.m.images.Map(ctx, volume, pool, image) // it finds no device in /sys
	return i.worldImages.Map(ctx, volume, pool, image)
}

func (i machineImages) Unmap(ctx context.Context, volume string, id int) error {
	return errors.Join(i.m.images.Unmap(ctx, volume, id), i.worldImages.Unmap(ctx, volume, id))
}

func (i machineImages) Find(pool, image string) ([]krbd.Device, error) {
	all, err := i.worldImages.Find(pool, image)
	return slices.DeleteFunc(slices.Clone(all), func(d krbd.Device) bool {
		return pool != "" && d.Pool != pool || image != "" && d.Image != image
	}), err
}

type machineDRBD struct {
	*worldDRBD

	m *machine
}

func (d machineDRBD) CreateMetadata(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.CreateMetadata(ctx, name), d.worldDRBD.CreateMetadata(ctx, name))
}

func (d machineDRBD) WipeMetadata(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.WipeMetadata(ctx, name), d.worldDRBD.WipeMetadata(ctx, name))
}

func (d machineDRBD) Up(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Up(ctx, name), d.worldDRBD.Up(ctx, name))
}

func (d machineDRBD) Attach(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Attach(ctx, name), d.worldDRBD.Attach(ctx, name))
}

func (d machineDRBD) Adjust(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Adjust(ctx, name), d.worldDRBD.Adjust(ctx, name))
}

func (d machineDRBD) Freeze(ctx context.Context, name string, freeze bool) error {
	return errors.Join(d.m.adm.Freeze(ctx, name, freeze), d.worldDRBD.Freeze(ctx, name, freeze))
}

func (d machineDRBD) Down(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Down(ctx, name), d.worldDRBD.Down(ctx, name))
}

func (d machineDRBD) Disconnect(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Disconnect(ctx, name), d.worldDRBD.Disconnect(ctx, name))
}

func (d machineDRBD) Connect(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Connect(ctx, name), d.worldDRBD.Connect(ctx, name))
}

func (d machineDRBD) SkipFirstSync(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.SkipFirstSync(ctx, name), d.worldDRBD.SkipFirstSync(ctx, name))
}

func (d machineDRBD) Promote(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Promote(ctx, name), d.worldDRBD.Promote(ctx, name))
}

func (d machineDRBD) Demote(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Demote(ctx, name), d.worldDRBD.Demote(ctx, name))
}

func (d machineDRBD) Leave(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Leave(ctx, name), d.worldDRBD.Leave(ctx, name))
}

func (d machineDRBD) Detach(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Detach(ctx, name), d.worldDRBD.Detach(ctx, name))
}

func (d machineDRBD) ResumeIO(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.ResumeIO(ctx, name), d.worldDRBD.ResumeIO(ctx, name))
}

func (d machineDRBD) Outdate(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Outdate(ctx, name), d.worldDRBD.Outdate(ctx, name))
}

func (d machineDRBD) Concede(ctx context.Context, name string) error {
	return errors.Join(d.m.adm.Concede(ctx, name), d.worldDRBD.Concede(ctx, name))
}
