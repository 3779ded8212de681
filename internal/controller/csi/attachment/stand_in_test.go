package attachment_test

import (
	"slices"
	"testing"

	"google.golang.org/grpc/codes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/csitest"
)

const (
	putCall    = "PUT " + escache.PathReplica
	deleteCall = "DELETE " + escache.PathReplica
)

// outdate puts a host's replica on record as outdated.
func (w *world) outdate(id, host string) {
	w.T.Helper()
	v := w.Volume(id)
	v.Status.Outdated = []string{host}
	csitest.Must(w.T, w.API.Status().Update(w.T.Context(), v))
}

// stale returns the hosts of replicas that the group has to clean up.
func (w *world) stale() (hosts []string) {
	w.T.Helper()
	group := &v1alpha1.NodeGroup{}
	csitest.Must(w.T, w.API.Get(w.T.Context(), client.ObjectKey{Name: "g1"}, group))
	for _, s := range group.Status.StaleReplicas {
		hosts = append(hosts, s.Node)
	}
	return hosts
}

// TestAThirdHostStandsInForAPartnerThatAnswersWithAnError: Ceph has everything, and the partner answers and is
// healthy at every poll, but cannot lay or remove this replica. What it still has is removed later.
func TestAThirdHostStandsInForAPartnerThatAnswersWithAnError(t *testing.T) {
	for name, tc := range map[string]struct {
		call    string
		code    escache.Code
		current bool
	}{
		"a bug":                         {putCall, escache.CodeInternal, false},
		"a command stuck in the kernel": {putCall, escache.CodeStuck, false},
		"a slow disk":                   {putCall, escache.CodeTimeout, false},
		"a cache that reports an error": {putCall, escache.CodeCacheError, false},
		"a port that somebody else has": {putCall, escache.CodePortInUse, false},
		"a full disk":                   {putCall, escache.CodeNoRoom, false},
		"a bug when it is removed":      {deleteCall, escache.CodeInternal, false},
		"a stuck removal":               {deleteCall, escache.CodeStuck, false},
		"a removal that takes too long": {deleteCall, escache.CodeTimeout, false},
		"a bug when it is confirmed":    {putCall, escache.CodeInternal, true},
		"a stuck confirmation":          {putCall, escache.CodeStuck, true},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, holder, partner := w.UsedBefore("pvc-1")
			if !tc.current {
				w.outdate("pvc-1", partner) // so it is removed and laid again
			}
			w.Host(partner).Refuse(tc.call, tc.code)
			_, err := w.Publish("pvc-1", holder)
			csitest.Must(t, err)
			now := w.Volume("pvc-1")
			if !now.Spec.HasReplica(holder) || !now.Spec.HasReplica(csitest.Other(v)) || !w.Host(csitest.Other(v)).Has(csitest.Ref(v)) ||
				len(now.Status.Outdated) > 0 {
				t.Errorf("record %+v %+v, replicas on %v", now.Spec, now.Status, w.Fleet.On(csitest.Ref(v)))
			}
			if got := w.stale(); !slices.Equal(got, []string{partner}) {
				t.Errorf("to clean up: %v", got)
			}
			w.Host(partner).Refuse(tc.call, "")
			w.Poll()
			if got := w.stale(); len(got) > 0 || w.Host(partner).Has(csitest.Ref(v)) {
				t.Errorf("left on %v, to clean up: %v", w.Fleet.On(csitest.Ref(v)), got)
			}
		})
	}
}

// TestANodeWithoutAReplicaGetsAPartnerThatWorks: both hosts with a replica are there, and one of them cannot
// remove it, or cannot tell what it holds. It may be the one that was to be the partner, or the one that is to go.
func TestANodeWithoutAReplicaGetsAPartnerThatWorks(t *testing.T) {
	for _, tc := range []struct {
		call string
		code escache.Code
	}{{putCall, escache.CodeInternal}, {deleteCall, escache.CodeInternal}, {deleteCall, escache.CodeDirtyUnknown}} {
		for i := range 2 {
			w := newWorld(t)
			v, _, _ := w.UsedBefore("pvc-1")
			bad, good := v.Spec.Replicas[i], v.Spec.Replicas[1-i]
			w.Host(bad).Refuse(tc.call, tc.code)
			_, err := w.Publish("pvc-1", csitest.Other(v))
			csitest.Must(t, err)
			now := w.Volume("pvc-1")
			if !now.Spec.HasReplica(csitest.Other(v)) || !now.Spec.HasReplica(good) || !w.Host(good).Has(csitest.Ref(v)) {
				t.Errorf("%s fails on %s (%s): replicas on %v, by the record on %v", tc.call, bad, tc.code, w.Fleet.On(csitest.Ref(v)), now.Spec.Replicas)
			}
		}
	}
}

// TestWhatSpeaksOfDataKeepsTheVolumeWhereItIs: a host that has more than the record knows is no host that
// another one can stand in for. Nor is there one for the node that gets the volume.
func TestWhatSpeaksOfDataKeepsTheVolumeWhereItIs(t *testing.T) {
	for name, tc := range map[string]struct {
		call string
		code escache.Code
		node bool
		want codes.Code
	}{
		"the partner has seen a later attachment":           {putCall, escache.CodeStaleEpoch, false, codes.FailedPrecondition},
		"the partner has a later attachment, when removed":  {deleteCall, escache.CodeStaleEpoch, false, codes.FailedPrecondition},
		"the partner has the device":                        {deleteCall, escache.CodeConnected, false, codes.FailedPrecondition},
		"the partner has another image's":                   {putCall, escache.CodeIdentityMismatch, false, codes.FailedPrecondition},
		"the partner is busy":                               {putCall, escache.CodeBusy, false, codes.Aborted},
		"the node that gets the volume cannot lay its copy": {putCall, escache.CodeInternal, true, codes.Internal},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			v, holder, partner := w.UsedBefore("pvc-1")
			w.outdate("pvc-1", partner)
			failing := partner
			if tc.node {
				failing = holder
			}
			w.Host(failing).Refuse(tc.call, tc.code)
			_, err := w.Publish("pvc-1", holder)
			csitest.Wants(t, err, tc.want, failing)
			if now := w.Volume("pvc-1"); !slices.Equal(now.Spec.Replicas, v.Spec.Replicas) || len(w.stale()) > 0 {
				t.Errorf("replicas on %v, to clean up: %v", now.Spec.Replicas, w.stale())
			}
		})
	}
}

// Both other hosts fail, so there is no second copy, and the answer says why.
func TestWithoutAnyHostThatWorksThePartnersErrorIsTold(t *testing.T) {
	w := newWorld(t)
	v, holder, partner := w.UsedBefore("pvc-1")
	w.Host(partner).Refuse(putCall, escache.CodeInternal)
	w.Host(csitest.Other(v)).Refuse(putCall, escache.CodeInternal)
	_, err := w.Publish("pvc-1", holder)
	csitest.Wants(t, err, codes.Internal, "no other host can stand in")
}
