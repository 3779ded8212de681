package labtest

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/lab/labclient"
)

// Record is the lab arbiter's record of a volume: who may write it, and whose replica must not be
// used.
type Record = labclient.Record

// recordLimit bounds a call to the lab's arbiter.
const recordLimit = time.Minute

// Attach records that a node may write from an epoch on, as csi-controller does before anything
// else.
func (l *Lab) Attach(ctx context.Context, r Record) error {
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	return l.client.Attach(ctx, r)
}

// Record returns the record of a volume.
func (l *Lab) Record(ctx context.Context, ref escache.VolumeRef) (Record, error) {
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	return l.client.Record(ctx, ref)
}

func (l *Lab) forget(ctx context.Context, ref escache.VolumeRef) error {
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	return l.client.Forget(ctx, ref)
}

// resynced takes a node off the outdated list: the caller has seen that its replica is current.
func (l *Lab) resynced(ctx context.Context, ref escache.VolumeRef, node string) error {
	ctx, cancel := context.WithTimeout(ctx, recordLimit)
	defer cancel()
	return l.client.Resynced(ctx, ref, node)
}

// MustBeOutdated fails the test unless a host's replica is on record as one that must not be used.
func (v *Volume) MustBeOutdated(t T, h *Host) {
	t.Helper()
	r, err := v.lab.Record(t.Context(), v.VolumeRef)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if !slices.Contains(r.Outdated, h.Name) {
		t.Fatalf("%s goes on alone, and the record is %+v", v, r)
	}
}

// WaitUntilOutdated waits until a host's replica is on record as one that must not be used.
func (v *Volume) WaitUntilOutdated(t T, h *Host, limit time.Duration) {
	t.Helper()
	WaitFor(t, fmt.Sprintf("%s of %s is on record as outdated", v, h.Name), limit, func(ctx context.Context) error {
		r, err := v.lab.Record(ctx, v.VolumeRef)
		if err == nil && !slices.Contains(r.Outdated, h.Name) {
			err = fmt.Errorf("the record is %+v", r)
		}
		return err
	})
}
