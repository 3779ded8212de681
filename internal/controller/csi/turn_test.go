package csi_test

import (
	"testing"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/internal/controller/volumes"
)

// What csi-controller writes into a record by itself must not refuse a call: its sidecar would repeat it
// after seconds or minutes.
func TestACallWaitsForAReport(t *testing.T) {
	for _, report := range volumes.Reports() {
		t.Run(report, func(t *testing.T) {
			w := newWorld(t)
			v := w.create("pvc-1")
			done, err := w.locks.Begin("pvc-1", report)
			must(t, err)
			time.AfterFunc(200*time.Millisecond, done)
			_, err = w.publish("pvc-1", v.Spec.Replicas[0])
			must(t, err)
		})
	}
}

func TestACallIsRefusedAtOnceWhileAnythingElseRuns(t *testing.T) {
	w := newWorld(t)
	v := w.create("pvc-1")
	done, err := w.locks.Begin("pvc-1", "replica copy")
	must(t, err)
	defer done()
	_, err = w.publish("pvc-1", v.Spec.Replicas[0])
	wants(t, err, codes.Aborted, "replica copy")
}
