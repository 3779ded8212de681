package csitest

import (
	"context"
	"errors"

	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// ErrSlow is what an API server answers whose time is up.
var ErrSlow = errors.New("the API server is slow")

// OlderCRD is an API server that has an older CRD of CacheVolumes.
type OlderCRD struct{ client.Client }

// Create drops the fields that the older CRD does not have.
func (o OlderCRD) Create(ctx context.Context, object client.Object, opts ...client.CreateOption) error {
	if v, ok := object.(*v1alpha1.CacheVolume); ok {
		v.Spec.FromVolume, v.Spec.CacheEngine, v.Spec.UncachedFallback = "", "", false
	}
	return o.Client.Create(ctx, object, opts...)
}

// Mortal starts the service anew. It can write that often, and then not any more.
func (w *World) Mortal(writes int) (died *bool) {
	died = new(bool)
	dead := func() error {
		if writes == 0 {
			*died = true
			return errors.New("dead")
		}
		writes--
		return nil
	}
	base, ok := w.API.(client.WithWatch)
	if !ok {
		w.T.Fatal("not a client that watches")
	}
	w.Cached = interceptor.NewClient(base, interceptor.Funcs{
		Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
			if err := dead(); err != nil {
				return err
			}
			return c.Create(ctx, o, opts...)
		},
		Update: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.UpdateOption) error {
			if err := dead(); err != nil {
				return err
			}
			return c.Update(ctx, o, opts...)
		},
		Patch: func(ctx context.Context, c client.WithWatch, o client.Object, p client.Patch, opts ...client.PatchOption) error {
			if err := dead(); err != nil {
				return err
			}
			return c.Patch(ctx, o, p, opts...)
		},
		Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
			if err := dead(); err != nil {
				return err
			}
			return c.Delete(ctx, o, opts...)
		},
		SubResourceUpdate: func(ctx context.Context, c client.Client, sub string, o client.Object,
			opts ...client.SubResourceUpdateOption) error {
			if err := dead(); err != nil {
				return err
			}
			return c.SubResource(sub).Update(ctx, o, opts...)
		},
	})
	w.Restart()
	return died
}
