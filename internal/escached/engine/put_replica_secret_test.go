package engine

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/volume"
)

const (
	oldSecret escache.Secret = "uZ0cRQh7bqkq3yNf5mV2W8sXa1tLd4eGj6oPiKrTnHw"
	newSecret escache.Secret = "aZ0cRQh7bqkq3yNf5mV2W8sXa1tLd4eGj6oPiKrTnHw"
)

func withSecret(secret escache.Secret) escache.ReplicaRequest {
	req := putReq
	req.Secret = secret
	return req
}

func mustPut(t *testing.T, e *Engine, req escache.ReplicaRequest) {
	t.Helper()
	if err := e.PutReplica(t.Context(), req); err != nil {
		t.Fatal(err)
	}
}

func TestAReplicaTakesAnotherSecretUnlessItsLinkIsInUse(t *testing.T) {
	lonely := primaryWith(cut(drbd.UpToDate))
	lonely.PeerDisk = drbd.Outdated
	peerHasIt := linked(drbd.Connected, drbd.UpToDate)
	peerHasIt.PeerRole = drbd.Primary
	must := withSecret(newSecret)
	must.MustExist = true
	for name, c := range map[string]struct {
		laid  escache.Secret
		state drbd.Status
		req   escache.ReplicaRequest
		want  escache.Secret
	}{
		"the same":                         {oldSecret, linked(drbd.Connected, drbd.UpToDate), withSecret(oldSecret), oldSecret},
		"nobody uses it":                   {oldSecret, linked(drbd.Connected, drbd.UpToDate), withSecret(newSecret), newSecret},
		"no link":                          {oldSecret, cut(drbd.UpToDate), withSecret(newSecret), newSecret},
		"in use here without a link":       {oldSecret, lonely, withSecret(newSecret), newSecret},
		"in use here":                      {oldSecret, primaryWith(linked(drbd.Connected, drbd.UpToDate)), withSecret(newSecret), oldSecret},
		"in use on the peer":               {oldSecret, peerHasIt, withSecret(newSecret), oldSecret},
		"confirmed in a take-over":         {oldSecret, cut(drbd.UpToDate), must, oldSecret},
		"an earlier version's":             {"", cut(drbd.UpToDate), withSecret(newSecret), newSecret},
		"an earlier version's, confirmed":  {"", cut(drbd.UpToDate), must, ""},
		"an earlier version's, in use":     {"", primaryWith(linked(drbd.Connected, drbd.UpToDate)), withSecret(newSecret), ""},
		"an earlier csi-controller":        {oldSecret, cut(drbd.UpToDate), putReq, ""},
		"an earlier csi-controller, again": {"", cut(drbd.UpToDate), putReq, ""},
	} {
		w := newWorld(t)
		e := w.engine()
		mustPut(t, e, withSecret(c.laid))
		w.minors[100] = c.state
		steps := len(w.steps)
		mustPut(t, e, c.req)
		if got := w.files[volume.NameOf(ref)].Secret; got != c.want {
			t.Errorf("%s: DRBD has %q, not %q", name, string(got), string(c.want))
		}
		if c.want == c.laid && len(w.steps) != steps {
			t.Errorf("%s: nothing is to change: %q", name, w.steps[steps:])
		}
		before := w.files[volume.NameOf(ref)]
		if _ = w.restarted(); w.files[volume.NameOf(ref)] != before {
			t.Errorf("%s: a restart changed the resource from %+v to %+v", name, before, w.files[volume.NameOf(ref)])
		}
	}
}

func TestTheSecretIsInNoTagAndGoesWithTheReplica(t *testing.T) {
	w := newWorld(t)
	e := w.engine()
	mustPut(t, e, withSecret(oldSecret))
	for key, value := range w.lvs[volume.NameOf(ref)].Tags {
		if strings.Contains(key+value, string(oldSecret)) {
			t.Errorf("tag %s", key)
		}
	}
	if err := e.DeleteReplica(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(filepath.Join(w.dir, "state", "link-secrets")); err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

func TestANewPartnerGetsANewSecretAndTheOldOneDoesNot(t *testing.T) {
	w, e := running(t)
	req := withPartner("n3", "10.0.0.3")
	req.Secret = newSecret
	mustPut(t, e, req)
	if got := w.files[volume.NameOf(ref)]; got.Secret != newSecret || got.PeerHost != "n3" {
		t.Errorf("%s, secret %v", got.PeerHost, got.Secret == newSecret)
	}
}

// The root disk was re-created, and the disks of the caches were not.
func TestAHostThatHasLostTheSecretSaysSoAndTakesTheNextOne(t *testing.T) {
	w := newWorld(t)
	mustPut(t, w.engine(), withSecret(oldSecret))
	w.minors[100] = cut(drbd.UpToDate)
	if err := os.RemoveAll(filepath.Join(w.dir, "state")); err != nil {
		t.Fatal(err)
	}
	clear(w.files)
	clear(w.minors)
	e := w.restarted()
	told := func() escache.Code {
		t.Helper()
		status, err := e.Status(t.Context(), &ref)
		if err != nil || status.Volumes[0].State != escache.StateStandby {
			t.Fatalf("the copy must be usable: %+v, %v", status, err)
		}
		if status.Volumes[0].Error == nil {
			return ""
		}
		return status.Volumes[0].Error.Code
	}
	if got := w.files[volume.NameOf(ref)].Secret; told() != escache.CodeSecretMissing || got == "" || got == oldSecret {
		t.Errorf("%q: without the secret nobody may be let in", told())
	}
	if n, err := e.Node(t.Context()); err != nil || !n.Healthy {
		t.Errorf("others can still be laid here: %v, %v", n.Reasons, err)
	}
	must := putReq
	must.MustExist = true
	if err := e.PutReplica(t.Context(), must); code(err) != escache.CodeSecretMissing {
		t.Errorf("confirmed without a secret: %v", err)
	}
	must.Secret = oldSecret
	mustPut(t, e, must)
	if got := w.files[volume.NameOf(ref)].Secret; told() != "" || got != oldSecret {
		t.Errorf("given again: %q", told())
	}
}
