package preflight

import (
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"maps"
	"slices"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/checklist"
)

// secrets checks the Secrets that pods mount, and the certificates in them.
func (c *Cluster) secrets(ctx context.Context) []checklist.Result {
	// One that lacks something keeps its pod from starting.
	unseen := []checklist.Result{checklist.Badf(checklist.Unknown, "nothing if all pods are ready; otherwise kubectl escache preflight, "+
		"with the right to get Secrets in namespace "+c.Namespace, "not checked: this account may not read them")}
	if c.WithoutSecrets {
		return unseen
	}
	all, err := c.workloads(ctx)
	if err != nil {
		return []checklist.Result{unread(err)}
	}
	var results []checklist.Result
	needs := all.needs()
	for _, name := range slices.Sorted(maps.Keys(needs)) {
		found, forbidden := c.secret(ctx, name, needs[name])
		if forbidden {
			return unseen
		}
		results = append(results, found.Of("Secret "+name))
	}
	return results
}

func (c *Cluster) secret(ctx context.Context, name string, needed wants) (found checklist.Result, forbidden bool) {
	secret := &corev1.Secret{}
	switch err := c.API.Get(ctx, client.ObjectKey{Namespace: c.Namespace, Name: name}, secret); {
	case apierrors.IsForbidden(err):
		return found, true
	case apierrors.IsNotFound(err):
		return checklist.Badf(checklist.Failed, "make it: docs/install.md (Ceph's keys), docs/security.md (certificates)",
			"it is not there, and %s", needed), false
	case err != nil:
		return unread(err), false
	}
	for _, key := range needed.keys {
		if len(secret.Data[key]) == 0 {
			return checklist.Badf(checklist.Failed, "create it again: docs/install.md (Ceph's keys), docs/security.md (certificates)",
				"it has no key %q, which the pods of %s need", key, needed.who), false
		}
	}
	if slices.Contains(needed.keys, corev1.TLSCertKey) {
		return c.certificate(secret.Data[corev1.TLSCertKey]), false
	}
	return checklist.Goodf("there; %s", needed), false
}

const renewRemedy = "tls.mode generated: csi-controller renews it, and its log says why it has not; certManager: see its Certificate; " +
	"existing: put a new one there"

func (c *Cluster) certificate(data []byte) checklist.Result {
	leaf, err := parseCertificate(data)
	if err != nil {
		return checklist.Badf(checklist.Failed, renewRemedy, "its tls.crt is no certificate: %v", err)
	}
	return checklist.Certificate(leaf, leaf.Subject.CommonName, renewRemedy, c.Now())
}

func parseCertificate(data []byte) (*x509.Certificate, error) {
	block, _ := pem.Decode(data)
	if block == nil {
		return nil, errors.New("it is not PEM")
	}
	return x509.ParseCertificate(block.Bytes)
}
