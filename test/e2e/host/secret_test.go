//go:build e2e

package host

import (
	"path"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/labtest"
)

// secretKeepsStrangersOut follows the secret of a link through its life on two hosts: who does not
// know it is no peer, nobody can read it, and it survives a reboot. It changes without a pause, and
// a host that has lost it says so.
func secretKeepsStrangersOut(t *testing.T, lab *labtest.Lab) {
	n1, n2 := lab.Hosts[0], lab.Hosts[1]
	v, device, writer := written(t, lab, n1)
	for _, h := range lab.Hosts[:2] {
		onlyRootReads(t, v, h)
	}

	// n2 gets a copy with another secret.
	if err := n2.API.DiscardReplica(t.Context(), v.VolumeRef, v.Epoch()); err != nil {
		t.Fatal(err)
	}
	right := v.Secret
	v.Secret = labtest.NewSecret()
	v.Join(t, n2)
	strangerIsTurnedAway(t, v, n1, n2)
	v.Secret = right
	v.Join(t, n2)
	t.Logf("with the right secret n2 was current %s later", v.WaitForPeer(t, n1))
	writer.WaitForMore(t, 20, time.Minute)

	lab.PowerOff(t, n2)
	lab.PowerOn(t, n2)
	n2.WaitForService(t, rebootLimit)
	t.Logf("after a reboot the link was up by itself %s later", v.WaitForPeer(t, n1))

	// In use, the link keeps its secret and goes on.
	before := linkSecret(t, v, n1)
	v.Secret = labtest.NewSecret()
	mark := writer.Count()
	v.Lay(t)
	writer.WaitForMore(t, 20, time.Minute)
	for _, h := range []*labtest.Host{n1, n2} {
		if linkSecret(t, v, h) != before {
			t.Errorf("%s has changed the secret of a link in use", h.Name)
		}
	}
	v.WaitForPeer(t, n1)
	t.Logf("the slowest write while another secret was offered took %s", writer.Acks()[mark:].Slowest())
	acks := writer.Stop(t)
	n1.Verify(t, device, acks)

	// Out of use, both take the new one over a link that stays up, and know it after a reboot.
	v.Flush(t, n1)
	v.Stop(t, n1)
	v.Lay(t)
	for _, h := range []*labtest.Host{n1, n2} {
		if linkSecret(t, v, h) == before {
			t.Errorf("%s has kept the old secret", h.Name)
		}
		v.WaitForStatus(t, h, "is linked and redundant", noticeLimit, labtest.Redundant)
	}
	lab.PowerOff(t, n2)
	lab.PowerOn(t, n2)
	n2.WaitForService(t, rebootLimit)
	v.WaitForPeer(t, n1)

	losesItsSecret(t, lab, v, n1, n2)
	v.Remove(t, n1)
}

// losesItsSecret: the root disk of n2 is re-created, and the disk of the caches is not.
func losesItsSecret(t *testing.T, lab *labtest.Lab, v *labtest.Volume, n1, n2 *labtest.Host) {
	t.Helper()
	n2.Shell(t, "rm -r /var/lib/escache/link-secrets; rm /etc/drbd.d/"+path.Base(v.LogicalVolume())+".*; sync")
	lab.PowerOff(t, n2)
	lab.PowerOn(t, n2)
	n2.WaitForService(t, rebootLimit)
	v.WaitForStatus(t, n2, "says that it has lost the secret", noticeLimit, func(s escache.VolumeStatus) bool {
		return s.Error != nil && s.Error.Code == escache.CodeSecretMissing && s.State == escache.StateStandby
	})
	strangerIsTurnedAway(t, v, n1, n2)
	v.Lay(t)
	v.Connect(t, n1)
	v.WaitForPeer(t, n1)
	onlyRootReads(t, v, n2)
}

// linkSecret returns what DRBD on this host proves itself with.
func linkSecret(t *testing.T, v *labtest.Volume, h *labtest.Host) string {
	t.Helper()
	line := h.Shell(t, "grep shared-secret /etc/drbd.d/"+path.Base(v.LogicalVolume())+".res")
	_, after, _ := strings.Cut(line, `shared-secret "`)
	secret, _, found := strings.Cut(after, `"`)
	if !found || len(secret) != len(v.Secret) {
		t.Fatalf("%s: the resource file has no secret of %d characters", h.Name, len(v.Secret))
	}
	return secret
}

// onlyRootReads looks for the secrets of a link everywhere on a host.
func onlyRootReads(t *testing.T, v *labtest.Volume, h *labtest.Host) {
	t.Helper()
	name := path.Base(v.LogicalVolume())
	resource, stored := "/etc/drbd.d/"+name+".res", "/var/lib/escache/link-secrets/"+name
	if modes := strings.Fields(h.Shell(t, "stat -c %a "+resource+" "+stored)); len(modes) != 2 || modes[0] != "600" || modes[1] != "600" {
		t.Errorf("%s: modes %q", h.Name, modes)
	}
	h.Write(t, "/run/wanted", linkSecret(t, v, h)+"\n"+string(v.Secret)+"\n")
	h.Shell(t, "lvs -a -o+lv_all,tags >/run/seen; dmesg >>/run/seen; cat /proc/drbd >>/run/seen; grep -q "+name+" /run/seen")
	found := strings.Fields(h.Shell(t,
		"grep -rlFf /run/wanted /etc /var /run /tmp /proc/[0-9]*/cmdline /proc/[0-9]*/environ 2>/dev/null; rm /run/wanted /run/seen"))
	var others []string
	for _, file := range found {
		if file != resource && file != stored && file != "/run/wanted" {
			others = append(others, file)
		}
	}
	if len(found)-len(others) != 3 || len(others) > 0 {
		t.Errorf("%s: a secret is in %q, of %q", h.Name, others, found)
	}
}
