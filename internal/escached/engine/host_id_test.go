package engine

import (
	"strings"
	"testing"
)

func TestTheHostIsTheOneOfItsVolumeGroup(t *testing.T) {
	w := newWorld(t)
	w.groupID = "group-1"
	e := w.restarted()
	if err := e.PutReplica(t.Context(), putReq); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		n, err := e.Node(t.Context())
		if err != nil || n.HostID != "group-1" || e.HostID() != "group-1" {
			t.Errorf("the node's identity is %q (%v), the host's %q", n.HostID, err, e.HostID())
		}
		status, err := e.Status(t.Context(), &ref)
		if err != nil || status.Volumes[0].HostID != "group-1" || status.Volumes[0].Node != n.Name {
			t.Errorf("%+v, %v", status, err)
		}
		// The group is re-created under a running escached. What escached knows is of the old one.
		w.groupID = "group-2"
		if err := e.space.Refresh(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	n, _ := e.Node(t.Context())
	if n.Healthy || !strings.Contains(strings.Join(n.Reasons, " "), "re-created") {
		t.Errorf("%+v", n)
	}
	if id := w.restarted().HostID(); id != "group-2" {
		t.Errorf("after a restart the host is %q", id)
	}
}
