package csitest

import (
	"context"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// WithoutUncached is an API server whose CRD of CacheVolumes is older than status.uncached.
type WithoutUncached struct{ client.Client }

// Status returns a writer that drops what the CRD does not have.
func (o WithoutUncached) Status() client.SubResourceWriter { return olderWriter{o.Client.Status()} }

type olderWriter struct{ client.SubResourceWriter }

func (o olderWriter) Update(ctx context.Context, object client.Object, opts ...client.SubResourceUpdateOption) error {
	if v, ok := object.(*v1alpha1.CacheVolume); ok {
		v.Status.Uncached = nil
	}
	return o.SubResourceWriter.Update(ctx, object, opts...)
}
