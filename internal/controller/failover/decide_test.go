package failover

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

var now = time.Unix(1_800_000_000, 0)

// fleet is two groups of three; n1 has been proven dead for long, then it is changed.
func fleet(change func(map[string]*Member)) []Member {
	all := map[string]*Member{}
	for name, group := range map[string]string{"n1": "a", "n2": "a", "n3": "a", "m1": "b", "m2": "b", "m3": "b"} {
		all[name] = &Member{Name: name, Group: group}
	}
	dead(all["n1"], time.Hour)
	change(all)
	var out []Member
	for _, name := range slices.Sorted(maps.Keys(all)) {
		out = append(out, *all[name])
	}
	return out
}

func dead(m *Member, since time.Duration) {
	m.NotReady, m.Silent, m.Links, m.ProvenSince = true, true, Links{Down: 2}, now.Add(-since)
}

func TestDecide(t *testing.T) {
	for _, tc := range []struct {
		name    string
		change  func(map[string]*Member)
		taint   string
		release []string
		says    string // why n1 is not tainted
	}{
		{"proven for long", func(map[string]*Member) {}, "n1", nil, ""},
		{"not for long enough", func(m map[string]*Member) { dead(m["n1"], time.Minute) }, "", nil, ""},
		{"Ready", func(m map[string]*Member) { m["n1"].NotReady, m["n1"].ProvenSince = false, time.Time{} }, "", nil, ""},
		{"escached answers", func(m map[string]*Member) { m["n1"].Silent, m["n1"].ProvenSince = false, time.Time{} }, "", nil, ""},
		{"others reach it", func(m map[string]*Member) {
			m["n1"].Links, m["n1"].ProvenSince = Links{Down: 1, Up: 1, By: []string{"n2"}}, time.Time{}
		}, "", nil, "links to it are up on n2"},
		{"nobody replicates with it", func(m map[string]*Member) { m["n1"].Links, m["n1"].ProvenSince = Links{}, time.Time{} }, "", nil, "nobody confirms"},
		{"another of its group is not Ready", func(m map[string]*Member) { m["n2"].NotReady = true }, "", nil, "node n2 of the same group"},
		{"another of its group is silent", func(m map[string]*Member) { m["n3"].Silent = true }, "", nil, "node n3 of the same group"},
		{"another group has a suspect", func(m map[string]*Member) { m["m1"].Silent = true }, "n1", nil, ""},
		{"half look dead", func(m map[string]*Member) { m["m1"].Silent, m["m2"].NotReady = true, true }, "", nil, "the controller is cut off"},
		{"another is out of service, by whomever", func(m map[string]*Member) { m["m1"].OutOfService = true }, "", nil, "m1 is out of service already"},
		{"two are dead: the first goes first", func(m map[string]*Member) { dead(m["m1"], 2*time.Hour) }, "m1", nil, "m1 is tainted now"},
		{"two are dead at once", func(m map[string]*Member) { dead(m["m1"], time.Hour) }, "m1", nil, "m1 is tainted now"},
		{"tainted", func(m map[string]*Member) { m["n1"].OutOfService, m["n1"].Ours = true, true }, "", nil, ""},
		{"back", func(m map[string]*Member) { *m["n1"] = Member{Name: "n1", Group: "a", OutOfService: true, Ours: true} }, "", []string{"n1"}, ""},
		{"back, with a volume", func(m map[string]*Member) {
			*m["n1"] = Member{Name: "n1", Group: "a", OutOfService: true, Ours: true, Volumes: 1}
		}, "", nil, ""},
		{"back, and silent", func(m map[string]*Member) {
			*m["n1"] = Member{Name: "n1", Group: "a", OutOfService: true, Ours: true, Silent: true}
		}, "", nil, ""},
		{"back, tainted by somebody else", func(m map[string]*Member) { *m["n1"] = Member{Name: "n1", Group: "a", OutOfService: true} }, "", nil, ""},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := Decide(fleet(tc.change), Policy{After: 2 * time.Minute}, now)
			if d.Taint != tc.taint || (d.Taint != "") != (d.Reason != "") || !slices.Equal(d.Release, tc.release) {
				t.Errorf("got %+v", d)
			}
			if says := d.StandDown["n1"]; (says == "") != (tc.says == "") || !strings.Contains(says, tc.says) {
				t.Errorf("stands down because %q, want %q", says, tc.says)
			}
		})
	}
}

func TestOneGroupAlone(t *testing.T) {
	three := fleet(func(m map[string]*Member) {
		for _, name := range []string{"m1", "m2", "m3"} {
			delete(m, name)
		}
	})
	if d := Decide(three, Policy{After: time.Minute}, now); d.Taint != "n1" {
		t.Errorf("one dead of three: %+v", d)
	}
}

func TestLinksTo(t *testing.T) {
	status := func(peer string, state escache.LinkState) escache.VolumeStatus {
		return escache.VolumeStatus{Peers: []escache.Peer{{Name: peer, ConnectionState: state}}}
	}
	for state, want := range map[escache.LinkState]Links{
		"WFConnection": {Down: 1}, "NetworkFailure": {Down: 1}, "Connected": {Up: 1}, "SyncTarget": {Up: 1}, "StandAlone": {}, "": {},
		"AStateOfTomorrow": {Up: 1},
	} {
		var got Links
		LinksTo("n1", "n2", []escache.VolumeStatus{status("n1", state), status("n3", "WFConnection")}, &got)
		if got.Down != want.Down || got.Up != want.Up || (got.Up > 0) != slices.Contains(got.By, "n2") {
			t.Errorf("%q: %+v", state, got)
		}
	}
}
