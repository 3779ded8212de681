package preflight

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// End is when a certificate ends that pods of the driver mount.
type End struct {
	// Of is the common name in the certificate, or the name of its Secret if there is none.
	Of string
	At time.Time
}

// Ends returns when the certificates end that are in Secrets of the driver, the first first. It leaves
// out what cannot be read or is no certificate: the check of Secrets tells of that. An account that may
// not read Secrets gets nothing. The certificate that a host has of its own is in no Secret.
func (c *Cluster) Ends(ctx context.Context) ([]End, error) {
	all, err := c.workloads(ctx)
	switch {
	case apierrors.IsForbidden(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	var ends []End
	needs := all.needs()
	for _, name := range slices.Sorted(maps.Keys(needs)) {
		if !slices.Contains(needs[name].keys, corev1.TLSCertKey) {
			continue
		}
		secret := &corev1.Secret{}
		switch err := c.API.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, secret); {
		case apierrors.IsForbidden(err):
			return nil, nil
		case apierrors.IsNotFound(err):
			continue
		case err != nil:
			return nil, err
		}
		if leaf, err := parseCertificate(secret.Data[corev1.TLSCertKey]); err == nil {
			ends = append(ends, End{cmp.Or(leaf.Subject.CommonName, name), leaf.NotAfter})
		}
	}
	slices.SortFunc(ends, func(a, b End) int { return cmp.Or(a.At.Compare(b.At), cmp.Compare(a.Of, b.Of)) })
	return ends, nil
}
