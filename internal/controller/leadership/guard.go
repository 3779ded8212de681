package leadership

import (
	"context"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// Images lets changes of images through only while this process leads.
func (l *Lease) Images(images volumes.Images) volumes.Images { return guardedImages{images, l} }

// Client lets changes of objects through only while this process leads.
func (l *Lease) Client(c client.Client) client.Client { return guardedClient{c, l} }

type guardedImages struct {
	volumes.Images

	lease *Lease
}

func (g guardedImages) EnsurePool(ctx context.Context, clusterID, pool string, create bool) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Images.EnsurePool(ctx, clusterID, pool, create)
}

func (g guardedImages) Create(ctx context.Context, spec volumes.ImageSpec) (bool, error) {
	if err := g.lease.Check(); err != nil {
		return false, err
	}
	return g.Images.Create(ctx, spec)
}

func (g guardedImages) Mark(ctx context.Context, image volumes.ImageRef, volume string) (string, error) {
	if err := g.lease.Check(); err != nil {
		return "", err
	}
	return g.Images.Mark(ctx, image, volume)
}

func (g guardedImages) Note(ctx context.Context, image volumes.ImageRef, note volumes.Note) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Images.Note(ctx, image, note)
}

func (g guardedImages) Release(ctx context.Context, image volumes.ImageRef, note volumes.Note) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Images.Release(ctx, image, note)
}

func (g guardedImages) Adopt(ctx context.Context, image volumes.ImageRef, note volumes.Note) (string, error) {
	if err := g.lease.Check(); err != nil {
		return "", err
	}
	return g.Images.Adopt(ctx, image, note)
}

func (g guardedImages) Retake(ctx context.Context, image volumes.ImageRef, from string, note volumes.Note) (string, error) {
	if err := g.lease.Check(); err != nil {
		return "", err
	}
	return g.Images.Retake(ctx, image, from, note)
}

func (g guardedImages) Resize(ctx context.Context, image volumes.ImageRef, sizeBytes int64) (int64, error) {
	if err := g.lease.Check(); err != nil {
		return 0, err
	}
	return g.Images.Resize(ctx, image, sizeBytes)
}

func (g guardedImages) Delete(ctx context.Context, image volumes.ImageRef) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Images.Delete(ctx, image)
}

func (g guardedImages) Keep(ctx context.Context, image volumes.ImageRef, volume string) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Images.Keep(ctx, image, volume)
}

func (g guardedImages) DeleteKept(ctx context.Context, image volumes.ImageRef, volume string) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Images.DeleteKept(ctx, image, volume)
}

func (g guardedImages) TakeSnapshot(ctx context.Context, ref volumes.SnapshotRef) (volumes.Snapshot, error) {
	if err := g.lease.Check(); err != nil {
		return volumes.Snapshot{}, err
	}
	return g.Images.TakeSnapshot(ctx, ref)
}

func (g guardedImages) DeleteSnapshot(ctx context.Context, ref volumes.SnapshotRef) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Images.DeleteSnapshot(ctx, ref)
}

func (g guardedImages) Fence(ctx context.Context, clusterID, address string, duration time.Duration) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Images.Fence(ctx, clusterID, address, duration)
}

func (g guardedImages) Unfence(ctx context.Context, clusterID, address string) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Images.Unfence(ctx, clusterID, address)
}

type guardedClient struct {
	client.Client

	lease *Lease
}

func (g guardedClient) Create(ctx context.Context, o client.Object, opts ...client.CreateOption) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Client.Create(ctx, o, opts...)
}

func (g guardedClient) Update(ctx context.Context, o client.Object, opts ...client.UpdateOption) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Client.Update(ctx, o, opts...)
}

func (g guardedClient) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Client.Patch(ctx, o, patch, opts...)
}

func (g guardedClient) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.Client.Delete(ctx, o, opts...)
}

func (g guardedClient) Status() client.SubResourceWriter {
	return guardedStatus{g.Client.Status(), g.lease}
}

func (g guardedClient) SubResource(name string) client.SubResourceClient {
	return guardedSubResource{g.Client.SubResource(name), guardedStatus{g.Client.SubResource(name), g.lease}}
}

// guardedSubResource reads without the lease.
type guardedSubResource struct {
	client.SubResourceReader
	guardedStatus
}

func (g guardedStatus) Create(ctx context.Context, o, sub client.Object, opts ...client.SubResourceCreateOption) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.SubResourceWriter.Create(ctx, o, sub, opts...)
}

type guardedStatus struct {
	client.SubResourceWriter

	lease *Lease
}

func (g guardedStatus) Update(ctx context.Context, o client.Object, opts ...client.SubResourceUpdateOption) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.SubResourceWriter.Update(ctx, o, opts...)
}

func (g guardedStatus) Patch(ctx context.Context, o client.Object, patch client.Patch, opts ...client.SubResourcePatchOption) error {
	if err := g.lease.Check(); err != nil {
		return err
	}
	return g.SubResourceWriter.Patch(ctx, o, patch, opts...)
}
