package engine

import (
	"testing"

	"github.com/escache/escache-csi/api/escache"
)

// TestAVolumeThatIsBeingConnectedDoesNotStayClean: csi-node is started again in the middle of a stage, and the
// pod is deleted. The kubelet unstages, and the volume is detached, while the call to escached goes on. A
// standby that answers zero would be left as it is by the one, and be taken for clean for good by the other.
func TestAVolumeThatIsBeingConnectedDoesNotStayClean(t *testing.T) {
	w, e := groupWorld(t)
	for _, verb := range verbsOfALife()[:2] {
		if err := verb.do(e); err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Stop(t.Context(), escache.StopRequest{VolumeRef: ref}); err != nil {
		t.Fatal(err)
	}
	if s := one(t, e); s.State != escache.StateStandby || s.DirtyBytes == nil || *s.DirtyBytes != 0 || s.Connecting {
		t.Errorf("before: %+v", s)
	}
	mapped := false
	w.mapping = func() {
		mapped = true
		if s := one(t, e); s.State != escache.StateStandby || s.DirtyBytes != nil || !s.Connecting {
			t.Errorf("while it is connected: %+v", s)
		}
		if all, err := e.Status(t.Context(), nil); err != nil || all.Volumes[0].DirtyBytes != nil ||
			!all.Volumes[0].Connecting {
			t.Errorf("while it is connected, all: %+v, %v", all, err)
		}
	}
	if _, err := connectWith(e, 2); err != nil || !mapped {
		t.Fatal(err)
	}
	if s := one(t, e); s.State != escache.StateConnected || s.Connecting {
		t.Errorf("afterwards: %+v", s)
	}
}
