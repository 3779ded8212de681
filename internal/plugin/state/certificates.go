package state

import (
	"context"
	"fmt"
	"slices"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/plugin/installed"
	"github.com/escache/escache-csi/internal/preflight"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// Certificates are those of the driver. They are read once: the Secrets contain keys, and --watch
// would read them every other second.
type Certificates struct {
	read bool
	ends []preflight.End
}

// Of returns when the certificates of the workloads end, those of each namespace in the order of
// their ends.
func (c *Certificates) Of(ctx context.Context, api client.Reader, all installed.Workloads) ([]preflight.End, error) {
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

// AllEnds returns when certificates end: those that were read, and those of the hosts that are on
// record.
func (s *State) AllEnds() []preflight.End {
	ends := slices.Clone(s.Ends)
	for i := range s.Groups {
		for _, m := range s.Groups[i].Status.Members {
			if m.CertificateEnd != nil {
				ends = append(ends, preflight.End{Of: "host " + m.Name, At: m.CertificateEnd.Time})
			}
		}
	}
	return ends
}
