package csi_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// What csi-controller writes into a record by itself must not refuse a call: its sidecar would repeat it
// after seconds or minutes.
func TestACallWaitsForAReport(t *testing.T) {
	for _, report := range volumes.Reports() {
		t.Run(report, func(t *testing.T) {
			w := newWorld(t)
			v := w.Create("pvc-1")
			done, err := w.Locks.Begin("pvc-1", report)
			csitest.Must(t, err)
			time.AfterFunc(200*time.Millisecond, done)
			_, err = w.Publish("pvc-1", v.Spec.Replicas[0])
			csitest.Must(t, err)
		})
	}
}

func TestACallIsRefusedAtOnceWhileAnythingElseRuns(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	done, err := w.Locks.Begin("pvc-1", "replica copy")
	csitest.Must(t, err)
	defer done()
	_, err = w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Wants(t, err, codes.Aborted, "replica copy")
}
