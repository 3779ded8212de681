package node

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/cachevolume"
	"github.com/escache/escache-csi/internal/node/comparison"
)

// setBack is a host that has booted, and whose record gives it the volume in epoch 3 again. The image was
// attached elsewhere in epoch 4.
func setBack() *host {
	h := newHost()
	h.attached("v")
	h.noted = 4
	return h
}

func (h *host) stage(t *testing.T) error {
	t.Helper()
	_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), blockCapability()))
	return err
}

func TestARecordThatWasSetBackConnectsNothing(t *testing.T) {
	h := setBack()
	if err := h.stage(t); Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "older than") {
		t.Errorf("got %v", err)
	}
	if slices.Contains(h.did, "connect") {
		t.Errorf("did %q", h.did)
	}
	h.volumes["v"].Status.Epoch = 4 // as docs/restore-etcd.md says
	if err := h.stage(t); Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "epoch") {
		t.Errorf("a publish context of epoch 3: %v", err)
	}
	h.noted, h.volumes["v"].Status.Epoch = 3, 3
	if err := h.stage(t); err != nil {
		t.Error(err)
	}
}

// After a reboot the kubelet unstages what pods had that are gone. What is dirty by an old record has been
// written elsewhere since.
func TestARecordThatWasSetBackWritesNothingBack(t *testing.T) {
	h := setBack()
	dirty := int64(8192)
	h.change("v", withDirty(&dirty))
	_, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(t.TempDir()))
	if Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "older than") || slices.Contains(h.did, "connect") {
		t.Errorf("%v; did %q", err, h.did)
	}
}

// TestOnlyANewAnswerCounts: nobody compares the record now. What is on record of earlier comparisons came with
// the backup.
func TestOnlyANewAnswerCounts(t *testing.T) {
	for name, old := range map[string]*v1alpha1.RecordComparison{
		"never asked":     nil,
		"answered before": {Question: "before", Answered: "before"},
	} {
		t.Run(name, func(t *testing.T) {
			h := setBack()
			h.silent, h.volumes["v"].Status.Comparison = true, old
			dir := t.TempDir()
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				_, err := h.service().NodeStageVolume(t.Context(), stageOf("v", dir, blockCapability()))
				if Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "csi-controller") {
					t.Errorf("got %v", err)
				}
				if waited := time.Since(begun); waited != comparison.AnswerTime || slices.Contains(h.did, "connect") {
					t.Errorf("after %s; did %q", waited, h.did)
				}
			})
		})
	}
}

// Neither Ceph nor csi-controller has to answer for a device that this attachment has connected.
func TestADeviceThatIsHereGoesOnWithoutAnAnswer(t *testing.T) {
	h := newHost()
	h.attached("v")
	if err := h.stage(t); err != nil {
		t.Fatal(err)
	}
	h.did, h.silent = nil, true
	if err := h.stage(t); err != nil || slices.Contains(h.did, "ask") {
		t.Errorf("%v; did %q", err, h.did)
	}
}

// A device of an earlier attachment is none of this one's: a connect would give it the later epoch.
func TestADeviceOfAnEarlierAttachmentWaitsForAnAnswer(t *testing.T) {
	h := newHost()
	h.attached("v")
	if err := h.stage(t); err != nil {
		t.Fatal(err)
	}
	h.did, h.noted = nil, 5
	h.volumes["v"].Status.Epoch = 4
	r := stageOf("v", t.TempDir(), blockCapability())
	r.PublishContext[v1alpha1.PublishContextEpoch] = "4"
	if _, err := h.service().NodeStageVolume(t.Context(), r); Code(err) != codes.FailedPrecondition || slices.Contains(h.did, "connect") {
		t.Errorf("%v; did %q", err, h.did)
	}
}

func TestTheVolumeIsGivenToAnotherNodeBeforeTheAnswer(t *testing.T) {
	h := newHost()
	h.attached("v")
	h.before["ask"] = func() {
		h.before["read"] = func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			s := &h.volumes["v"].Status
			s.AttachedNode, s.Epoch = "n2", 4
		}
	}
	if err := h.stage(t); Code(err) != codes.FailedPrecondition || slices.Contains(h.did, "connect") {
		t.Errorf("%v; did %q", err, h.did)
	}
}

// The arbiter of this host need not have the record compared once more when the device is promoted without its peer.
func TestTheArbiterHearsOfTheComparisonBeforeTheDeviceIsConnected(t *testing.T) {
	dirty := int64(8192)
	for name, call := range map[string]func(h *host, s *Service) error{
		"stage": func(_ *host, s *Service) error {
			_, err := s.NodeStageVolume(t.Context(), stageOf("v", t.TempDir(), blockCapability()))
			return err
		},
		"unstage after a reboot": func(h *host, s *Service) error {
			h.change("v", withDirty(&dirty))
			_, err := s.NodeUnstageVolume(t.Context(), unstageOf(t.TempDir()))
			return err
		},
	} {
		h := newHost()
		h.attached("v")
		s, heard := h.service(), 0
		s.Compared = func(volume escache.VolumeRef, epoch int64) {
			heard++
			if v := h.volumes["v"]; volume != cachevolume.Ref(v) || epoch != v.Status.Epoch || slices.Contains(h.did, "connect") {
				t.Errorf("%s: heard of %v in epoch %d after %q", name, volume, epoch, h.did)
			}
		}
		if err := call(h, s); err != nil || heard != 1 || !slices.Contains(h.did, "connect") {
			t.Errorf("%s: heard %d times, did %q, %v", name, heard, h.did, err)
		}
	}
}

func TestAnotherWriterIsInTheWayOfTheQuestion(t *testing.T) {
	h := newHost()
	h.attached("v")
	h.before["ask"] = func() { h.volumes["v"].ResourceVersion = "another" }
	if err := h.stage(t); err != nil {
		t.Error(err)
	}
}

func TestAnOlderCRDIsSaid(t *testing.T) {
	h := newHost()
	h.attached("v")
	h.oldCRD = true
	if err := h.stage(t); Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "apply the chart's CRDs") {
		t.Errorf("got %v", err)
	}
}
