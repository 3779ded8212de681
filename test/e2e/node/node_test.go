//go:build e2e

// Package node tests csi-node where it belongs: on hosts with real kernels, beside a real escached,
// a real kubelet and a real Ceph. It runs inside a lab with the driver: `lab up --driver`, `lab run
// -- node.test`.
package node

import "testing"

// TestNode runs everything in one lab, one after the other, because most of it breaks the lab on
// purpose. Each test puts right what it broke.
func TestNode(t *testing.T) {
	w := open(t)
	tests := []struct {
		name string
		run  func(*testing.T, *world)
	}{
		{"claim to running pod, block and filesystem, removal", lifeOfAClaim},
		{"a volume grows under a writer", growth},
		{"snapshots under constant writes, and volumes made of them", snapshots},
		{"a snapshot under constant writes is read on two hosts at once", readOnlyVolumes},
		{"a data mover copies a snapshot's files into another claim", dataMover},
		{"a group snapshot of three volumes written in a fixed order by one writer shows a prefix of that order", groupSnapshots},
		{"a group snapshot of volumes of both cache engines shows a prefix of that order", mixedGroupSnapshots},
		{"a volume under constant fsync writes is cloned, and all are deleted in several orders", clones},
		{"an image of ceph-csi is adopted, used and released, and nothing is copied", ofCephCSI},
		{"the space of a deleted file comes back to Ceph, with discard and with fstrim", trim},
		{"the space of a deleted file comes back to Ceph from a volume that is detached, and it is cached again", trimDetached},
		{"a pod with a generic ephemeral volume, which goes with it", ephemeral},
		{"a pod moves between all three hosts with its data", moves},
		{"a claim gets a larger and a smaller cache when its pod moves", cacheResize},
		{"mode and dirty age of a cache in use are changed, and its heir has them", modifiedInUse},
		{"the kubelet is restarted while an xfs is mounted with discard and several options in one", restagedOptions},
		{"csi-node, escached and kubelet are killed under load and no I/O fails", restarts},
		{"the kubelet is restarted while a volume is unstaged, and another node gets the volume", forgotten},
		{"csi-node is killed at every step of staging and unstaging", killedAtEveryStep},
		{"a lost replica is told within five seconds and once, put on record, and taken off after the resync", lostReplica},
		{"without the Kubernetes API a primary that lost its peer stays frozen", frozenWithoutAPI},
		{"a host that was cut off gives up what another has taken over", takenOver},
		{"a host that loses power stages again what its pods need", reboot},
		{"a change of group is registered with the kubelet", groupChange},
		{"csi-sanity's node tests on a host", sanity},
		{"an idle csi-node is small, asks little and writes nothing", idle},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			defer w.cleanUp(t)
			test.run(t, w)
		})
	}
}
