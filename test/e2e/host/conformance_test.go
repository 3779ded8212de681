//go:build e2e

package host

import (
	"context"
	"os"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/escache/conformance"
	"github.com/escache/escache-csi/test/internal/shard"
	"github.com/escache/escache-csi/test/labtest"
)

// escachedConforms runs the suite that any implementation of the API can be checked with.
func escachedConforms(t *testing.T, lab *labtest.Lab) {
	target := conformance.Target{
		Pool: lab.Pools[0], Storage: labtest.Storage{Lab: lab, Stranger: lab.Hosts[2]},
		Other: conformance.TLSFiles{Cert: os.Getenv("LAB_OTHER_CERT"), Key: os.Getenv("LAB_OTHER_KEY")},
		// The upper ends of what the lab's hosts give away.
		FirstPort: 7900, FirstMinor: 200, Engine: labtest.Engine(),
		Chosen: func(number int) bool { return shard.Has(t, number) },
		Record: func(ctx context.Context, ref escache.VolumeRef, imageID, host string, epoch int64) error {
			return lab.Attach(ctx, labtest.Record{VolumeRef: ref, ImageID: imageID, AttachedNode: host, Epoch: epoch})
		},
		Restart: func(ctx context.Context, host string) error {
			for _, h := range lab.Hosts {
				if h.Name == host {
					return h.RestartService(ctx)
				}
			}
			return conformance.ErrUnsupported
		},
	}
	for i := range target.Hosts {
		h := lab.Hosts[i]
		target.Hosts[i] = conformance.Host{
			Name: h.Name, Address: h.Address, URL: h.URL, Devices: labtest.Devices{Host: h},
			TLS: conformance.TLSFiles{CA: h.TLS.CA, Cert: h.TLS.Cert, Key: h.TLS.Key},
		}
	}
	conformance.Run(t, target)
}
