package authority

import (
	"errors"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
)

func TestMapGone(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	client := v1alpha1.FencedClient{Node: "n1", Address: "10.0.0.1:0/1", Epoch: 6, Time: metav1.NewTime(now.Add(-time.Hour))}
	later := holding(escache.StateConnected)
	later.Status.ClientAddress, later.Status.Epoch = "10.0.0.1:0/2", 7
	spelt := later
	spelt.Status.ClientAddress = "[fd00::5efe:10.0.0.1]:0/2"
	strange := later
	strange.Status.Epoch = 6
	confirmed := standby(nil)
	confirmed.Status.Epoch = 7
	thawed, thawedLater := standby(nil), confirmed
	thawed.Status.Connecting, thawedLater.Status.Connecting = true, true
	unknown := func(s *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) {
		c.Address, c.Time = "", metav1.NewTime(now)
	}
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.CacheVolumeStatus, *v1alpha1.FencedClient)
		host   answer
		want   bool
	}{
		{"no device", nil, standby(nil), true},
		{"no replica", nil, answer{Status: escache.VolumeStatus{State: escache.StateAbsent}}, true},
		{"its own device", nil, holding(escache.StateConnected), false},
		{"its own device, of a later attachment, in another spelling", func(_ *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) {
			c.Address = "[fd00::5efe:a00:1]:0/2"
		}, spelt, false},
		{"its own device, in error", nil, holding(escache.StateError), false},
		{"a device of a later attachment", nil, later, true},
		{"a device of the same attachment, and of another client", nil, strange, false},
		{"silent", nil, answer{Err: errors.New("no route")}, false},
		{"not asked", nil, answer{}, false},
		{"nobody knows whose it is", func(_ *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) { c.Node = "" }, standby(nil), false},
		{"fenced just now: it may be connecting", func(_ *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) { c.Time = metav1.NewTime(now) },
			standby(nil), false},
		{"the hand-over is not over", func(s *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) { s.AttachedNode, c.Epoch = "n1", s.Epoch },
			standby(nil), false},
		{"another has it by now", func(s *v1alpha1.CacheVolumeStatus, _ *v1alpha1.FencedClient) { s.AttachedNode = "n2" }, standby(nil), true},
		{"confirmed for a later attachment, fenced just now", func(_ *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) {
			c.Time = metav1.NewTime(now)
		}, confirmed, false},
		{"no client was known", func(_ *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) { c.Address = "" }, standby(nil), true},
		{"no client was known, fenced just now", unknown, standby(nil), false},
		{"no client was known, confirmed for a later attachment", unknown, confirmed, true},
		{"no client was known, and it has the device", func(_ *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) { c.Address = "" },
			holding(escache.StateConnected), false},
		{"no client was known, a device of a later attachment", unknown, later, true},
		{"it was frozen in a dev_connect, which goes on", nil, thawed, false},
		{"no client was known, and it was frozen in a dev_connect", func(_ *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) {
			c.Address = ""
		}, thawed, false},
		{"no client was known, and a later dev_connect goes on", unknown, thawedLater, false},
		{"no client was known, silent", func(_ *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) { c.Address = "" },
			answer{Err: errors.New("no route")}, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := client
			v := volume(func(s *v1alpha1.CacheVolumeStatus) {
				if tc.change != nil {
					tc.change(s, &c)
				}
			})
			if got := MapGone(v, c, HeardOf(v, c, tc.host.Status, tc.host.Err), now); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

func TestLate(t *testing.T) {
	lost := v1alpha1.FencedClient{Node: "n1", Address: "10.0.0.1:0/1", Epoch: 6}
	unknown := func(s *v1alpha1.CacheVolumeStatus) { s.Fenced[0].Address = "" }
	known := map[string][]string{"n1": {"10.0.1.1", "10.0.1.3:0/4"}, "n2": {"10.0.1.2"}}
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.CacheVolumeStatus)
		open   string
		want   string
	}{
		{"another client of the host that lost it", nil, "10.0.0.1:0/2", "n1"},
		{"the same one", nil, "10.0.0.1:0/1", "n1"},
		{"a client of the holder, or of nobody known", nil, "10.0.0.2:0/1", ""},
		{"the holder was connected, and its client is gone", func(s *v1alpha1.CacheVolumeStatus) { s.ClientAddress = "10.0.0.2:0/1" },
			"10.0.0.1:0/2", "n1"},
		{"nobody has it", func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "" }, "10.0.0.1:0/2", ""},
		{"the host has it again", func(s *v1alpha1.CacheVolumeStatus) { s.AttachedNode = "n1" }, "10.0.0.1:0/2", ""},
		{"nobody knows whose the fenced one was", func(s *v1alpha1.CacheVolumeStatus) { s.Fenced[0].Node = "" }, "10.0.0.1:0/2", ""},
		{"no client was known: the node's address", unknown, "10.0.1.1:0/2", "n1"},
		{"no client was known: the address of another client of the node", unknown, "10.0.1.3:0/2", "n1"},
		{"no client was known: the holder's address", unknown, "10.0.1.2:0/2", ""},
		{"no client was known: the address of nobody known", unknown, "10.0.1.9:0/2", ""},
		{"no client was known, and the holder is connected", func(s *v1alpha1.CacheVolumeStatus) { unknown(s); s.ClientAddress = "10.0.9.2:0/1" },
			"10.0.1.1:0/2", "n1"},
		{"no client was known: the holder's own client", func(s *v1alpha1.CacheVolumeStatus) { unknown(s); s.ClientAddress = "10.0.1.1:0/2" },
			"10.0.1.1:0/2", ""},
		{"no client was known: the host has it again", func(s *v1alpha1.CacheVolumeStatus) { unknown(s); s.AttachedNode = "n1" },
			"10.0.1.1:0/2", ""},
		{"the holder was once at that address", func(s *v1alpha1.CacheVolumeStatus) {
			s.Fenced = append(s.Fenced, v1alpha1.FencedClient{Node: "n2", Address: "10.0.0.1:0/7"})
		}, "10.0.0.1:0/2", ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := volume(func(s *v1alpha1.CacheVolumeStatus) {
				s.AttachedNode, s.ClientAddress, s.Fenced = "n2", "", []v1alpha1.FencedClient{lost}
				if tc.change != nil {
					tc.change(s)
				}
			})
			got := Late(v, []string{tc.open}, known)
			if tc.want == "" && len(got) > 0 || tc.want != "" && (len(got) != 1 || got[0].Node != tc.want || got[0].Address != tc.open || got[0].Epoch != 6) {
				t.Errorf("got %+v", got)
			}
		})
	}
}

// TestNoClientIsLateWhileTheHolderHasTheImage: the holder has the lock, and the map of a node whose clients
// were known comes no more. That of a node of which none was known may still come.
func TestNoClientIsLateWhileTheHolderHasTheImage(t *testing.T) {
	v := volume(func(s *v1alpha1.CacheVolumeStatus) {
		s.AttachedNode, s.ClientAddress = "n2", "10.0.0.2:0/1"
		s.Fenced = []v1alpha1.FencedClient{{Node: "n1", Address: "10.0.0.1:0/1", Epoch: 6}}
	})
	if got := Late(v, []string{"10.0.0.1:0/2", "10.0.0.2:0/1"}, nil); len(got) > 0 {
		t.Errorf("got %+v", got)
	}
	v.Status.Fenced[0].Address = ""
	got := Late(v, []string{"10.0.0.1:0/2", "10.0.0.2:0/1"}, map[string][]string{"n1": {"10.0.0.1:0/9"}})
	if len(got) != 1 || got[0].Address != "10.0.0.1:0/2" {
		t.Errorf("no client was known: got %+v", got)
	}
}

func TestClientOf(t *testing.T) {
	for _, tc := range []struct {
		client string
		known  []string
		want   string
	}{
		{"10.0.0.1:0/1", []string{"10.0.0.1:0/9"}, "n1"},
		{"10.0.0.1:0/1", []string{"", "10.0.0.1"}, "n1"},
		{"10.0.0.11:0/1", []string{"10.0.0.1:0/9", "10.0.0.1"}, ""},
		{"10.0.0.1:0/1", []string{"", ""}, ""},
		{"[fd00::1]:0/1", []string{"fd00::1"}, "n1"},
		{"[fd00::5efe:a00:1]:0/1", []string{"[fd00::5efe:10.0.0.1]:0/9"}, "n1"},
		{"[fd00::5efe:a00:1]:0/1", []string{"FD00:0::5EFE:a00:1"}, "n1"},
		{"[fd00::1]:0/1", []string{"fd00::2", "[fd00::3]:0/7"}, ""},
	} {
		if got := ClientOf("n1", tc.client, tc.known...); got != tc.want {
			t.Errorf("%s beside %v: got %q", tc.client, tc.known, got)
		}
	}
}

// TestAClientIsFencedInAnySpelling: the record may have an address as Ceph writes it, and the host asks about it
// as the kernel does.
func TestAClientIsFencedInAnySpelling(t *testing.T) {
	v := volume(func(s *v1alpha1.CacheVolumeStatus) {
		s.ClientAddress, s.Fenced = "[fd00::5efe:10.0.0.2]:0/1", []v1alpha1.FencedClient{{Address: "[fd00::5efe:a00:1]:0/1"}}
	})
	for address, want := range map[string]bool{
		"[fd00::5efe:10.0.0.1]:0/1": true, "[fd00::5efe:10.0.0.1]:0/2": false, "[fd00::5efe:10.0.0.2]:0/1": false, "": false,
	} {
		if got := IsFenced(v, address); got != want {
			t.Errorf("%s: %v", address, got)
		}
	}
	if got := Clients(v, []string{"[fd00::5efe:a00:1]:0/1", "[fd00::5efe:a00:2]:0/1"}); len(got) != 1 {
		t.Errorf("to be fenced are %v: one client", got)
	}
}

func TestTakenFrom(t *testing.T) {
	fenced := func(clients ...v1alpha1.FencedClient) func(*v1alpha1.CacheVolumeStatus) {
		return func(s *v1alpha1.CacheVolumeStatus) { s.Fenced = clients }
	}
	for _, tc := range []struct {
		name   string
		status func(*v1alpha1.CacheVolumeStatus)
		node   string
		forced bool
	}{
		{"in the last attachment", fenced(v1alpha1.FencedClient{Epoch: 7}, v1alpha1.FencedClient{Node: "n1", Epoch: 7}), "n1", true},
		{"in the last one, and no client was known", fenced(v1alpha1.FencedClient{Node: "n1", Epoch: 7}), "n1", true},
		{"in an earlier one", fenced(v1alpha1.FencedClient{Node: "n1", Epoch: 6}), "", false},
		{"never", fenced(), "", false},
		{"it is attached", func(s *v1alpha1.CacheVolumeStatus) {
			fenced(v1alpha1.FencedClient{Node: "n1", Epoch: 7})(s)
			s.AttachedNode = "n1"
		}, "", false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if node, forced := TakenFrom(volume(tc.status)); node != tc.node || forced != tc.forced {
				t.Errorf("got %q, %v", node, forced)
			}
		})
	}
}

func TestLapsed(t *testing.T) {
	now := time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)
	at := func(d time.Duration) *time.Time { return new(now.Add(d)) }
	const year = 365 * 24 * time.Hour
	client := v1alpha1.FencedClient{Node: "n1", Address: "10.0.0.1:0/1", Epoch: 6}
	for _, tc := range []struct {
		name   string
		change func(*v1alpha1.CacheVolumeStatus, *v1alpha1.FencedClient)
		until  *time.Time
		want   bool
	}{
		{"as the driver makes it", nil, at(FenceSeconds * time.Second), false},
		{"two years are left of it", nil, at(2 * year), false},
		{"its last year", nil, at(year - time.Hour), true},
		{"an hour is left, as of krbd's own", nil, at(time.Hour), true},
		{"it has ended", nil, at(-time.Hour), true},
		{"not on the list", nil, nil, true},
		{"nobody has the volume", func(s *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) {
			s.AttachedNode, c.Epoch = "", s.Epoch
		}, nil, true},
		{"its node has the volume: it is about to be fenced", func(s *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) {
			s.AttachedNode, c.Epoch = "n1", s.Epoch
		}, nil, false},
		{"its node has the volume again", func(s *v1alpha1.CacheVolumeStatus, _ *v1alpha1.FencedClient) { s.AttachedNode = "n1" }, nil, true},
		{"nobody knows whose it is", func(_ *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) { c.Node = "" }, nil, true},
		{"no client was known", func(_ *v1alpha1.CacheVolumeStatus, c *v1alpha1.FencedClient) { c.Address = "" }, nil, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := client
			v := volume(func(s *v1alpha1.CacheVolumeStatus) {
				if tc.change != nil {
					tc.change(s, &c)
				}
			})
			if got := Lapsed(v, c, tc.until, now); got != tc.want {
				t.Errorf("got %v", got)
			}
		})
	}
}
