//go:build e2e

package controller

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	trace "go.opentelemetry.io/proto/otlp/trace/v1"

	"github.com/escache/escache-csi/test/tracetest"
)

// traces looks at what arrives at an OpenTelemetry collector of calls that need Ceph and hosts.
func traces(t *testing.T, w *world) {
	spans := collected{tracetest.New(t)}
	d := leader(t, time.Minute, w.launch(t, "a", append(slices.Clone(soon), "--otlp-endpoint="+spans.Address)...))
	s := &search{planted: map[string]string{
		"Ceph's key": keyOf(t, filepath.Join(w.cephDir, clusterID, "keyring")), "a secret in a CSI call": "planted-in-a-call-0123456789",
	}}
	given := map[string]string{"userKey": s.planted["a secret in a CSI call"]}
	request := creation(crashed)
	request.Secrets = given
	until(t, func() error { _, err := d.CreateVolume(t.Context(), request); return err })
	node := w.one(t).Spec.Replicas[0]
	until(t, func() error {
		_, err := d.ControllerPublishVolume(t.Context(), &csi.ControllerPublishVolumeRequest{
			VolumeId: crashed, NodeId: node, VolumeCapability: capability(), Secrets: given,
		})
		return err
	})
	for _, call := range []struct{ name, part string }{
		{"CreateVolume", "ceph image_create"}, {"ControllerPublishVolume", "ceph image_mark"}, {"ControllerPublishVolume", "escached put_replica"},
	} {
		id := d.requestID(t, call.name)
		eventually(t, 30*time.Second, func() bool { return spans.has("csi.v1.Controller/"+call.name, id, call.part) }, func() string {
			return fmt.Sprintf("no span of request %s with the part %q:\n%s", id, call.part, spans)
		})
	}
	s.checkNoSecret(t, "the traces", spans.String(), "CreateVolume")
	until(t, func() error { return d.unpublish(t.Context(), crashed, node) })
	until(t, func() error { return d.delete(t.Context(), crashed) })
}

// requestID is the id of the last such call, as it stands in the log.
func (d *driver) requestID(t *testing.T, call string) string {
	t.Helper()
	log, err := os.ReadFile(filepath.Join(d.dir, "log"))
	must(t, err)
	id := ""
	for line := range bytes.Lines(log) {
		var entry struct {
			Call string `json:"call"`
			ID   string `json:"request_id"`
		}
		if json.Unmarshal(line, &entry) == nil && entry.Call == call {
			id = entry.ID
		}
	}
	if id == "" {
		t.Fatalf("no %s in the log", call)
	}
	return id
}

// collected is what a collector was sent.
type collected struct{ *tracetest.Collector }

// has reports whether there is a span of that call and request, and below it one of that part.
func (c collected) has(call, request, part string) bool {
	spans := c.Spans()
	for _, whole := range spans {
		if whole.GetName() != call || tracetest.Attribute(whole, "escache.request_id") != request {
			continue
		}
		return slices.ContainsFunc(spans, func(s *trace.Span) bool {
			return s.GetName() == part && bytes.Equal(s.GetTraceId(), whole.GetTraceId()) && bytes.Equal(s.GetParentSpanId(), whole.GetSpanId())
		})
	}
	return false
}
