//go:build e2e

package controller

import (
	"flag"
	"testing"
)

// TestController runs everything in one world, for starting one takes longer than most of the
// tests.
func TestController(t *testing.T) {
	w := start(t)
	for _, tc := range []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"a claim binds to a volume with the asked features, and deleting it leaves nothing", claimLife},
		{"a VolumeAttributesClass changes a claim's volume, attached and not", modifyLife},
		{"a VolumeSnapshot is taken, and a claim made of it has what was in it", snapshotLife},
		{"a VolumeGroupSnapshot is taken of three claims, and a claim made of each of its snapshots", groupLife},
		{"all volumes of a group snapshot are held before its first snapshot, and until its last", groupHeld},
		{"a claim is made as a clone of another one, which may go first", cloneLife},
		{"fifty claims are made at once as clones of one", manyClones},
		{"a volume, its snapshot and a clone are deleted in every order, and leave nothing", everyOrder},
		{"a released volume leaves its image and nothing else", releaseLife},
		{"an image of others is adopted, released and adopted again, with its data", adoptLife},
		{"a volume moves to another group and back, and its claim stays bound", moveLife},
		{"a claim is deleted in the middle of a move", deletedWhileMoving},
		{"only a move changes the group of a volume", groupIsNotEdited},
		{"lost records are made anew of images and hosts, and what is not proven is stopped", rebuildLife},
		{"objects that make no sense are refused by the API server", badObjects},
		{"csi-sanity", sanity},
		{"a hundred creations of one name make one volume", oneName},
		{"storms of creations and deletions leave nothing", storm},
		{"volumes spread evenly over groups and hosts", spread},
		{"group status tells of hosts", groupStatus},
		{"orphans are listed, and removed only by name", orphanCommand},
		{"two Kubernetes clusters with one pool leave each other's images alone", twoClusters},
		{"failures of others have the right code, in time, and pass", trouble},
		{"secrets are in no log, argv, Event, record, answer or support bundle", secrets},
		{"killed at every side effect of every call, the repeated call converges", crashes},
		{"traces of calls arrive at a collector, with their parts", traces},
		{"a holder that is on no record is fenced", unknown},
		{"a client that was fenced is let in again once its map is gone", fences},
		{"another replica serves soon, and the old leader does nothing any more", takeOver},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Cleanup(func() {
				if t.Failed() {
					w.purge(t) // so that the next one fails only by its own fault
				}
			})
			tc.run(t, w)
			w.empty(t)
		})
	}
	if run := flag.Lookup("test.run").Value.String(); run == "" { // all of them use all rights, some do not
		w.kube.CheckRights(t, w.account, notShown...)
	}
}

// notShown are the rights that the driver needs and that nothing here shows.
var notShown = []string{
	// The sidecars look for the Deployment that owns their pod, to have it own the storage
	// capacities: here is no pod.
	"get pods", "get apps/replicasets",
	// Capacities change and go with groups and StorageClasses, later than these tests last.
	"update storage.k8s.io/csistoragecapacities", "delete storage.k8s.io/csistoragecapacities",
	// external-provisioner takes the chosen node off a claim whose volume does not fit there, so
	// that the scheduler chooses again.
	"update persistentvolumeclaims",
	// The hosts' certificates, which test/e2e/nodeapi shows.
	"list certificates.k8s.io/certificatesigningrequests", "watch certificates.k8s.io/certificatesigningrequests",
	"update certificates.k8s.io/certificatesigningrequests/approval", "update certificates.k8s.io/certificatesigningrequests/status",
	"approve certificates.k8s.io/signers", "sign certificates.k8s.io/signers",
	// The renewal of the certificates that Helm has made, which test/chart shows.
	"get secrets", "update secrets", "get configmaps", "update configmaps",
	// Flushes and discards, which test/e2e/operators shows.
	"get escache.io/cacheflushes", "update escache.io/cacheflushes", "delete escache.io/cacheflushes", "update escache.io/cacheflushes/status",
	"get escache.io/cachediscards", "update escache.io/cachediscards/status", "get persistentvolumeclaims", "get persistentvolumes",
}
