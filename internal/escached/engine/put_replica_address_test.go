package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// at is a request for the usual two hosts at these addresses.
func at(own, peer string) escache.ReplicaRequest {
	req := withSecret(oldSecret)
	req.Nodes = []escache.ReplicaNode{{Name: "n1", Address: own}, {Name: "n2", Address: peer}}
	return req
}

// used is a host with a replica that was in use before, and is in this state of DRBD now.
func used(t *testing.T, st drbd.Status) (*world, *Engine) {
	t.Helper()
	w := newWorld(t)
	e := w.engine()
	mustPut(t, e, withSecret(oldSecret))
	w.blocks("/dev/drbd100")[0] = 'E'
	w.minors[100] = st
	return w, e
}

// moveTo gives the host another address.
func (w *world) moveTo(e *Engine, address string) {
	w.address, e.Config.Address = address, address
}

// hasAddresses fails unless tags, file and kernel have these addresses of the two hosts.
func (w *world) hasAddresses(t *testing.T, what, own, peer string) {
	t.Helper()
	name := volume.NameOf(ref)
	v, err := volume.Parse(w.lvs[name])
	if err != nil || v.Self != (escache.ReplicaNode{Name: "n1", Address: own}) || v.Peer != (escache.ReplicaNode{Name: "n2", Address: peer}) {
		t.Errorf("%s: the tags have %v and %v, %v", what, v.Self, v.Peer, err)
	}
	for where, r := range map[string]drbd.Resource{"the file": w.files[name], "the kernel": w.running[name]} {
		if r.LocalAddress != own || r.PeerAddress != peer || r.PeerHost != "n2" {
			t.Errorf("%s: %s has %s and %s (%s)", what, where, r.LocalAddress, r.PeerAddress, r.PeerHost)
		}
	}
}

func TestACopyWithoutALinkTakesTheNewAddressesOfTheSameHosts(t *testing.T) {
	for _, disk := range []escache.DiskState{drbd.UpToDate, drbd.Consistent, drbd.Outdated, drbd.Inconsistent, drbd.Diskless} {
		for _, link := range []escache.LinkState{"WFConnection", drbd.StandAlone} {
			for what, want := range map[string][2]string{
				"the partner's": {"10.0.0.1", "10.0.0.12"}, "its own": {"10.0.0.11", "10.0.0.2"}, "both": {"10.0.0.11", "10.0.0.12"},
			} {
				for _, confirmed := range []bool{true, false} {
					what := fmt.Sprintf("%s, %s, %s address, must exist: %v", disk, link, what, confirmed)
					st := cut(disk)
					st.Connection = link
					w, e := used(t, st)
					w.moveTo(e, want[0])
					req := at(want[0], want[1])
					req.MustExist = confirmed
					if err := e.PutReplica(t.Context(), req); err != nil {
						t.Errorf("%s: %v", what, err)
						continue
					}
					w.hasAddresses(t, what, want[0], want[1])
					st.Connection = "WFConnection"
					if got := w.minors[100]; disk != drbd.Diskless && got != st {
						t.Errorf("%s: it is %+v, not %+v", what, got, st)
					}
					if w.files[volume.NameOf(ref)].Secret != oldSecret || w.outdated[volume.NameOf(ref)] {
						t.Errorf("%s: more than the addresses has changed", what)
					}
					steps := len(w.steps)
					mustPut(t, e, req)
					if got := w.steps[steps:]; disk != drbd.Diskless && len(got) > 0 {
						t.Errorf("%s, repeated: %q", what, got)
					}
				}
			}
		}
	}
}

// Both hosts of a link take the new secret, or none. One may still be linked when it is told, and the other not.
func TestNewAddressesChangeTheSecretOnlyAsAConfirmationDoes(t *testing.T) {
	for name, st := range map[string]drbd.Status{
		"no link": cut(drbd.Consistent), "linked": linked(drbd.Connected, drbd.UpToDate), "Primary": primaryWith(cut(drbd.UpToDate)),
	} {
		for must, want := range map[bool]escache.Secret{true: oldSecret, false: newSecret} {
			w, e := used(t, st)
			req := at("10.0.0.1", "10.0.0.12")
			req.Secret, req.MustExist = newSecret, must
			mustPut(t, e, req)
			w.hasAddresses(t, name, "10.0.0.1", "10.0.0.12")
			if got := w.files[volume.NameOf(ref)].Secret; got != want {
				t.Errorf("%s, must exist: %v: the new secret is taken: %v", name, must, got == newSecret)
			}
		}
	}
}

func TestALinkThatWorksAndAPrimaryKeepTheRulesOfAnotherPartner(t *testing.T) {
	peerHasIt := linked(drbd.Connected, drbd.UpToDate)
	peerHasIt.PeerRole = drbd.Primary
	behind := primaryWith(cut(drbd.Consistent))
	for name, c := range map[string]struct {
		st   drbd.Status
		want escache.Code
	}{
		"linked":                           {linked(drbd.Connected, drbd.UpToDate), ""},
		"linked, the partner has it":       {peerHasIt, escache.CodeReplicaMismatch},
		"being filled":                     {linked("SyncTarget", drbd.Inconsistent), escache.CodeReplicaMismatch},
		"linked and outdated":              {linked(drbd.Connected, drbd.Outdated), escache.CodeReplicaMismatch},
		"Primary":                          {primaryWith(cut(drbd.UpToDate)), ""},
		"Primary, with a link":             {primaryWith(linked(drbd.Connected, drbd.UpToDate)), ""},
		"Primary, not known to be current": {behind, escache.CodeReplicaMismatch},
	} {
		w, e := used(t, c.st)
		steps, before := len(w.steps), w.files[volume.NameOf(ref)]
		if err := e.PutReplica(t.Context(), at("10.0.0.1", "10.0.0.12")); code(err) != c.want {
			t.Errorf("%s: %v", name, err)
		}
		if got := w.steps[steps:]; c.want != "" && (len(got) > 0 || w.files[volume.NameOf(ref)] != before) {
			t.Errorf("%s: refused, and %q", name, got)
		} else if c.want == "" && !slices.Equal(got, []string{"disconnect", "retag", "adjust"}) {
			t.Errorf("%s: %q", name, got)
		}
	}
}

func TestAnotherNameIsAnotherPartnerWhateverItsAddress(t *testing.T) {
	for _, disk := range []escache.DiskState{drbd.Consistent, drbd.Outdated, drbd.Inconsistent} {
		for _, address := range []string{"10.0.0.2", "10.0.0.12"} {
			w, e := used(t, cut(disk))
			steps := len(w.steps)
			err := e.PutReplica(t.Context(), withPartner("n3", address))
			if code(err) != escache.CodeReplicaMismatch || len(w.steps) != steps || w.files[volume.NameOf(ref)].PeerHost != "n2" {
				t.Errorf("%s, n3 at %s: %v, %q", disk, address, err, w.steps[steps:])
			}
		}
	}
}

func TestAChangeOfAddressesSucceedsWhenRepeatedAfterAFailureOrAKillAtEveryStep(t *testing.T) {
	for _, how := range []string{"failed", "killed"} {
		for n := 1; ; n++ {
			w, e := used(t, cut(drbd.Consistent))
			req := at("10.0.0.1", "10.0.0.12")
			req.MustExist = true
			if how == "failed" {
				w.failAt = len(w.steps) + n
			} else {
				w.killAt = len(w.steps) + n
			}
			died, err := dieAt(func() error { return e.PutReplica(context.Background(), req) })
			if !died && err == nil {
				if n <= 3 {
					t.Errorf("%s: only %d steps", how, n-1)
				}
				break
			}
			what := fmt.Sprintf("%s at step %d (%s)", how, n, w.steps[len(w.steps)-1])
			if !died && !errors.Is(err, errInjected) {
				t.Fatalf("%s: %v", what, err)
			}
			w.failAt, w.killAt = 0, 0
			if died {
				e = w.restarted()
			}
			mustPut(t, e, req)
			w.hasAddresses(t, what, "10.0.0.1", "10.0.0.12")
			if got := w.minors[100]; got != cut(drbd.Consistent) {
				t.Errorf("%s: %+v", what, got)
			}
		}
	}
}

// A start of the host leaves DRBD without devices, and drbdadm brings none up with an address that the
// host does not have.
func TestAHostThatIsRebootedWithAnotherAddressBringsItsReplicasUp(t *testing.T) {
	for _, c := range []struct{ address, partner string }{
		{"10.0.0.11", "10.0.0.2"},
		{"10.0.0.2", "10.0.0.1"}, // the partner's old one: drbdadm refuses two ends with the same address
	} {
		for n := 1; ; n++ { // its n-th step fails
			w, _ := used(t, cut(drbd.UpToDate))
			clear(w.minors)
			w.address = c.address
			before := len(w.steps)
			w.failAt = before + n
			if err := w.engine().Recover(t.Context()); err != nil {
				t.Fatal(err)
			}
			failed := len(w.steps) >= w.failAt
			if !failed && n <= 2 {
				t.Errorf("at %s: only %q", c.address, w.steps[before:])
			}
			e := w.restarted()
			what := fmt.Sprintf("at %s, failed at step %d: %v", c.address, n, failed)
			w.hasAddresses(t, what, c.address, c.partner)
			if node, err := e.Node(t.Context()); err != nil || !node.Healthy {
				t.Errorf("%s: %v, %v", what, node.Reasons, err)
			}
			w.minors[100] = cut(drbd.Consistent)
			mustPut(t, e, at(c.address, "10.0.0.12"))
			w.hasAddresses(t, what+", then put", c.address, "10.0.0.12")
			if !failed {
				break
			}
		}
	}
}

func TestAStartWithAnotherAddressLeavesALinkThatWorksAndAPrimaryAlone(t *testing.T) {
	for name, st := range map[string]drbd.Status{
		"linked": linked(drbd.Connected, drbd.UpToDate), "Primary": primaryWith(cut(drbd.UpToDate)),
	} {
		w, e := used(t, linked(drbd.Connected, drbd.UpToDate))
		if st.Role == drbd.Primary {
			w.minors[100] = linked(drbd.Connected, drbd.UpToDate)
			w.blocks("/dev/drbd100")[0] = 0
			if _, err := connectWith(e, 1); err != nil {
				t.Fatal(name, err)
			}
		}
		w.minors[100] = st
		w.address = "10.0.0.11"
		w.restarted()
		w.hasAddresses(t, name, "10.0.0.1", "10.0.0.2")
		if w.minors[100] != st {
			t.Errorf("%s: %+v", name, w.minors[100])
		}
	}
}
