package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/plugin/installed"
	"github.com/escache/escache-csi/internal/preflight"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// certificates are those of the driver. They are read once: the Secrets contain keys, and --watch would
// read them every other second.
type certificates struct {
	read bool
	ends []preflight.End
}

// of returns when the certificates of the workloads end, those of each namespace in the order of their ends.
func (c *certificates) of(ctx context.Context, api client.Reader, all installed.Workloads) ([]preflight.End, error) {
	if c.read {
		return c.ends, nil
	}
	seen := map[string]bool{}
	for _, w := range all {
		if seen[w.Namespace] {
			continue
		}
		seen[w.Namespace] = true
		ends, err := (&preflight.Cluster{API: api, Namespace: w.Namespace}).Ends(ctx)
		if err != nil {
			return nil, fmt.Errorf("read the certificates in namespace %s: %w", w.Namespace, err)
		}
		c.ends = append(c.ends, ends...)
	}
	c.read = true
	return c.ends, nil
}

// certificateLine says when the first certificate ends; "" if none is known.
func certificateLine(ends []preflight.End, now time.Time) string {
	if len(ends) == 0 {
		return ""
	}
	first := slices.MinFunc(ends, func(a, b preflight.End) int { return a.At.Compare(b.At) })
	return fmt.Sprintf("Certificates: %d, the first (%s) %s", len(ends), first.Of, trouble.Ends(first.At, now))
}

// endsOf adds when the certificates of the hosts end that are on record.
func endsOf(ends []preflight.End, groups []v1alpha1.NodeGroup) []preflight.End {
	ends = slices.Clone(ends)
	for i := range groups {
		for _, m := range groups[i].Status.Members {
			if m.CertificateEnd != nil {
				ends = append(ends, preflight.End{Of: "host " + m.Name, At: m.CertificateEnd.Time})
			}
		}
	}
	return ends
}

// ofCertificates tells of certificates that end soon.
func ofCertificates(ends []preflight.End, how remedy.Escached, now time.Time) []trouble.Trouble {
	var out []trouble.Trouble
	for _, e := range ends {
		if e.At.Sub(now) < checklist.CertificateEndsSoon {
			out = append(out, trouble.At(trouble.Driver, "certificate of "+e.Of, "", remedy.CertificateEnds, "it "+trouble.Ends(e.At, now),
				remedy.Place{}, how))
		}
	}
	return out
}
