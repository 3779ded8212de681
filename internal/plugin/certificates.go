package plugin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/duration"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/plugin/installed"
	"github.com/escache/escache-csi/internal/preflight"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/records/trouble"
)

// endsSoon is how long before its end a certificate is trouble. cert-manager and csi-node have renewed
// theirs by then.
const endsSoon = 14 * 24 * time.Hour

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
	return fmt.Sprintf("Certificates: %d, the first (%s) %s", len(ends), first.Of, endsIn(first, now))
}

// endsIn says when a certificate ends, as a part of a sentence.
func endsIn(e preflight.End, now time.Time) string {
	day := e.At.UTC().Format(time.DateOnly)
	if now.After(e.At) {
		return fmt.Sprintf("ended %s ago (%s)", duration.HumanDuration(now.Sub(e.At)), day)
	}
	return fmt.Sprintf("ends in %s (%s)", duration.HumanDuration(e.At.Sub(now)), day)
}

// ofCertificates tells of certificates that end soon.
func ofCertificates(ends []preflight.End, how remedy.Escached, now time.Time) []trouble.Trouble {
	var out []trouble.Trouble
	for _, e := range ends {
		if e.At.Sub(now) < endsSoon {
			out = append(out, trouble.At(trouble.Driver, "certificate of "+e.Of, "", remedy.CertificateEnds, "it "+endsIn(e, now),
				remedy.Place{}, how))
		}
	}
	return out
}
