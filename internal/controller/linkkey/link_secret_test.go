package linkkey_test

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/test/csitest"
)

// secrets returns the secret of a volume's link, which both hosts must have.
func (w *world) secret(id string) escache.Secret {
	w.T.Helper()
	v := w.Volume(id)
	one, two := w.Host(v.Spec.Replicas[0]).Secret(csitest.Ref(v)), w.Host(v.Spec.Replicas[1]).Secret(csitest.Ref(v))
	if one != two {
		w.T.Fatalf("volume %s, generation %d: its hosts have different secrets", id, v.Spec.LinkGeneration)
	}
	return one
}

func TestBothHostsGetASecretThatIsOnNoRecord(t *testing.T) {
	w := newWorld(t)
	for _, id := range []string{"pvc-1", "pvc-2"} {
		v := w.Create(id)
		_, err := w.Publish(id, v.Spec.Replicas[0])
		csitest.Must(t, err)
	}
	one, two := w.secret("pvc-1"), w.secret("pvc-2")
	if !one.Valid() || !two.Valid() || one == two {
		t.Error("each link needs a secret of its own")
	}
	record, err := json.Marshal(w.Volume("pvc-1"))
	csitest.Must(t, err)
	if strings.Contains(string(record), string(one)) {
		t.Error("the record has the secret")
	}
}

func TestTheSecretChangesWhenReplicasAreLaidAnew(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	seen := map[escache.Secret]string{}
	attach := func(what, node string) {
		t.Helper()
		_, err := w.Publish("pvc-1", node)
		csitest.Must(t, err)
		secret := w.secret("pvc-1")
		if other, was := seen[secret]; was {
			t.Errorf("%s: the secret is that of %q", what, other)
		}
		seen[secret] = what
		before := secret
		_, err = w.Publish("pvc-1", node)
		csitest.Must(t, err)
		if w.secret("pvc-1") != before {
			t.Errorf("%s: a repeated call changed the secret", what)
		}
		csitest.Must(t, w.Unpublish("pvc-1", node))
		csitest.Must(t, w.Unpublish("pvc-1", node))
	}
	attach("laid", v.Spec.Replicas[0])
	attach("moved to the third host", csitest.Other(v))
	v = w.Volume("pvc-1")
	v.Status.Outdated = []string{v.Spec.Replicas[1]}
	csitest.Must(t, w.API.Status().Update(context.Background(), v))
	attach("one replica laid anew", v.Spec.Replicas[0])
}

func TestASubstituteAndTheHolderGetANewSecret(t *testing.T) {
	w := newWorld(t)
	v, holder, lost, third := w.Widow("pvc-1")
	w.TakeEpoch(holder, "pvc-1")
	old := w.Host(holder).Secret(csitest.Ref(v))
	csitest.Must(t, w.Locked.Substitute(t.Context(), "pvc-1", v.Status.Epoch, lost, third, volumes.ElsewhereIfAway))
	_, err := w.Locked.Copy(t.Context(), "pvc-1", v.Status.Epoch)
	csitest.Must(t, err)
	if now := w.secret("pvc-1"); now == old || !now.Valid() {
		t.Error("who had the lost replica knows the secret of the new link")
	}
}

// The key of the Kubernetes cluster was lost and re-created. Volumes in use go on with what their hosts
// have, also when the partner is away; the next clean attachment gives both hosts the new one.
func TestAnotherKeyDoesNotBreakVolumesInUse(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	node, partner := v.Spec.Replicas[0], v.Spec.Replicas[1]
	_, err := w.Publish("pvc-1", node)
	csitest.Must(t, err)
	w.Host(node).Stage(csitest.Ref(v), "10.0.0.1:0/1", 1, escache.ModeWriteback)
	w.Host(node).Write(csitest.Ref(v), 1<<20)
	before := w.secret("pvc-1")

	w.Links = csitest.Key(t, "another key of the Kubernetes cluster")
	w.Restart()
	_, err = w.Publish("pvc-1", node)
	csitest.Must(t, err)
	if w.secret("pvc-1") != before {
		t.Error("attached again, the hosts have another secret")
	}
	w.Host(partner).Stop()
	w.Poll()
	_, err = w.Publish("pvc-1", node)
	csitest.Must(t, err)
	w.Host(partner).Restart(t)
	if w.secret("pvc-1") != before {
		t.Error("the partner that comes back would be kept out")
	}

	w.Poll()
	w.Host(node).Write(csitest.Ref(v), 0)
	w.Host(node).Release(csitest.Ref(v))
	csitest.Must(t, w.Unpublish("pvc-1", node))
	_, err = w.Publish("pvc-1", node)
	csitest.Must(t, err)
	if got := w.secret("pvc-1"); got != w.Links.Secret("pvc-1", 1) {
		t.Error("at a clean attachment both hosts take the new secret")
	}
}

// Replicas of an earlier version have no secret. If only one of two hosts got one, the link would be
// lost.
func TestReplicasOfAnEarlierVersionGetASecretWhenTheyAreLaidAnew(t *testing.T) {
	w := newWorld(t)
	v := w.Create("pvc-1")
	v.Spec.LinkGeneration = 0
	csitest.Must(t, w.API.Update(context.Background(), v))
	note := w.Images.Notes[volumes.ImageOf(v)]
	note.Spec.LinkGeneration = 0
	w.Images.Notes[volumes.ImageOf(v)] = note
	_, err := w.Publish("pvc-1", v.Spec.Replicas[0])
	csitest.Must(t, err)
	if w.secret("pvc-1") != "" {
		t.Error("a link in use got a secret")
	}
	csitest.Must(t, w.Unpublish("pvc-1", v.Spec.Replicas[0]))
	_, err = w.Publish("pvc-1", csitest.Other(v))
	csitest.Must(t, err)
	if got := w.Volume("pvc-1"); !w.secret("pvc-1").Valid() || got.Spec.LinkGeneration != 1 ||
		got.Status.Authority != v1alpha1.AuthorityCache {
		t.Errorf("laid anew: generation %d", got.Spec.LinkGeneration)
	}
}
