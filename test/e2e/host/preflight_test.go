//go:build e2e

package host

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/test/labtest"
)

// preflightTime bounds one run on an emulated host. Ceph's part may take most of it.
const preflightTime = 4 * time.Minute

// preflightNamesWhatIsWrong runs escached preflight beside an escached that has a volume, and after things
// were broken by hand.
func preflightNamesWhatIsWrong(t *testing.T, lab *labtest.Lab) {
	n1, pool := lab.Hosts[0], lab.Pools[0]
	v := lab.NewVolume(t, labtest.VolumeSpec{})
	v.Lay(t)

	peer := lab.Hosts[1].Address
	found := preflight(t, n1, 0, "--pool", pool, "--server-name", "{node}", "--peer", peer)
	t.Logf("%s", n1.Run(t, "escached", "preflight", "--pool", pool))
	for check, r := range found {
		// An emulated host has a small disk, and no service for its clock.
		if r.State != checklist.OK && check != "clock" && check != "volume group" {
			t.Errorf("%s: %+v", check, r)
		}
	}
	for check, word := range map[string]string{
		"module drbd": "8.4", "drbd-utils": "9.", "volume group": "escache: ", "replication ports": "1 of replicas", "API port": "escached listens",
		"Ceph pool": pool, "link to " + peer: "answers",
	} {
		if !strings.Contains(found[check].Found, word) {
			t.Errorf("%s does not say %q: %+v", check, word, found[check])
		}
	}
	v.Remove(t, nil)

	for what, c := range map[string]struct {
		spoil        func(*testing.T) (args []string)
		check, found string
	}{
		"a pool that is not there": {func(*testing.T) []string { return []string{"--pool", "nosuchpool"} }, "Ceph pool", "no pool nosuchpool"},
		"a user without caps":      {func(t *testing.T) []string { return userWithoutCaps(t, lab, n1, pool) }, "Ceph pool", "refuses"},
		"another name":             {func(t *testing.T) []string { return otherName(t, n1) }, "name", `"n9"`},
		"another host's address": {
			func(*testing.T) []string { return []string{"--address", lab.Hosts[1].Address} }, "replication address", lab.Hosts[1].Address,
		},
		"a port that is in use": {func(t *testing.T) []string { return listener(t, n1) }, "replication ports", "7900 ("},
		"a module that cannot be loaded": {
			func(t *testing.T) []string { return append(withoutModule(t, n1), "--pool", pool) }, "module rbd", "modprobe rbd",
		},
	} {
		t.Run(what, func(t *testing.T) { onlyFails(t, preflight(t, n1, 1, c.spoil(t)...), c.check, c.found) })
	}

	lab.CutFrom(t, n1, lab.Hosts[1])
	onlyFails(t, preflight(t, n1, 1, "--peer", peer), "link to "+peer, "no answer on port")
	lab.Heal(t)
}

// preflight runs the checks on a host, and wants that exit code.
func preflight(t *testing.T, h *labtest.Host, exit int, args ...string) map[string]checklist.Result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), preflightTime)
	defer cancel()
	out, err := h.Try(ctx, nil, append([]string{"escached", "preflight", "-o", "json"}, args...)...)
	if (exit == 0) != (err == nil) || exit != 0 && !strings.Contains(err.Error(), fmt.Sprintf("exit status %d", exit)) {
		t.Fatalf("preflight %q: %v\n%s", args, err, out)
	}
	var list struct {
		Checks []checklist.Result `json:"checks"`
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		t.Fatalf("preflight %q: %v\n%s", args, err, out)
	}
	found := map[string]checklist.Result{}
	for _, r := range list.Checks {
		found[r.Check] = r
	}
	return found
}

// onlyFails wants that one check has failed, that it says so, and that it says what to do.
func onlyFails(t *testing.T, results map[string]checklist.Result, check, found string) {
	t.Helper()
	for name, r := range results {
		if name != check && r.State == checklist.Failed {
			t.Errorf("this is not wrong: %+v", r)
		}
	}
	if r := results[check]; r.State != checklist.Failed || r.Remedy == "" || !strings.Contains(r.Found, found) {
		t.Errorf("%s does not fail, or does not say %q: %+v", check, found, r)
	}
}

// undo runs a script on the host when the test is over.
func undo(t *testing.T, h *labtest.Host, script string) {
	t.Helper()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), preflightTime)
		defer cancel()
		if _, err := h.Try(ctx, nil, "sh", "-c", script); err != nil {
			t.Error(err)
		}
	})
}

// userWithoutCaps makes a Ceph user that may talk to the monitors only.
func userWithoutCaps(t *testing.T, lab *labtest.Lab, h *labtest.Host, pool string) []string {
	t.Helper()
	const user, file = "e2e-preflight", "/tmp/e2e-preflight.keyring"
	keyring := lab.Command(t, "ceph", "auth", "get-or-create", "client."+user, "mon", "profile rbd")
	t.Cleanup(func() { lab.Command(t, "ceph", "auth", "rm", "client."+user) })
	h.Write(t, file, keyring+"\n")
	undo(t, h, "rm -f "+file)
	return []string{"--pool", pool, "--ceph-user", user, "--ceph-keyring", file}
}

// otherName is a configuration with another name for the host.
func otherName(t *testing.T, h *labtest.Host) []string {
	t.Helper()
	const file = "/tmp/e2e-preflight.yaml"
	h.Shell(t, "sed 's/^node: .*/node: n9/' /etc/escache/escached.yaml >"+file)
	undo(t, h, "rm -f "+file)
	return []string{"--config", file}
}

// listener has a program listen on a port of replication.
func listener(t *testing.T, h *labtest.Host) []string {
	t.Helper()
	pid := h.Shell(t, `busybox nc -l -p 7900 >/dev/null 2>&1 </dev/null & echo $!`)
	undo(t, h, "kill "+pid+" 2>/dev/null || true")
	labtest.WaitFor(t, "something listens on port 7900", preflightTime, func(ctx context.Context) error {
		_, err := h.Try(ctx, nil, "grep", "-q", ":1EDC 0*:0000 0A", "/proc/net/tcp", "/proc/net/tcp6")
		return err
	})
	return nil
}

// withoutModule unloads krbd, which no image is mapped with, and keeps it from being loaded again.
func withoutModule(t *testing.T, h *labtest.Host) []string {
	t.Helper()
	const file = "/etc/modprobe.d/e2e.conf"
	h.Write(t, file, "install rbd /bin/false\n")
	undo(t, h, "rm -f "+file+" && modprobe rbd")
	h.Run(t, "modprobe", "-r", "rbd")
	return nil
}
