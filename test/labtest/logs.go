package labtest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/lab/labclient"
)

// said prints what a host has to say of itself; services that do not run there have no log.
const said = `set +e
for service in escached csi-node kubelet containerd; do
  [ -e /var/log/$service.log ] && echo "== $service" && tail -n 400 /var/log/$service.log && echo
done
echo == kernel; dmesg | tail -n 120; echo
echo == drbd; cat /proc/drbd; dmsetup table; dmsetup status --noflush; tail -n 20 /run/escache/fence-peer.log`

// SaveLogs keeps what the hosts and csi-controller said, for a test that failed: `lab down` leaves
// it there. Before what the test broke is mended, because a host that boots has forgotten.
func SaveLogs(t T, client *labclient.Client) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTimeout)
	defer cancel()
	status, err := client.Status(ctx)
	if err != nil {
		t.Logf("no logs are kept: %v", err)
		return
	}
	dir := filepath.Join(status.StateDir+labclient.FailedSuffix, time.Now().Format("150405"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Logf("%v", err)
		return
	}
	keep := func(name string, text []byte) {
		if err := os.WriteFile(filepath.Join(dir, name+".log"), text, 0o644); err != nil {
			t.Logf("%v", err)
		}
	}
	for _, node := range status.Nodes {
		if node.State == labclient.NodeOff || node.State == labclient.NodeFrozen {
			continue
		}
		out, err := client.Shell(ctx, node.Name, said)
		if err != nil {
			out += fmt.Sprintf("\n%v", err)
		}
		keep(node.Name, []byte(out))
	}
	for _, part := range status.Parts {
		if !strings.HasPrefix(part.Name, "csi-controller") || part.Log == "" {
			continue
		}
		text, err := os.ReadFile(part.Log)
		if err != nil {
			t.Logf("%v", err)
			continue
		}
		keep(part.Name, text)
	}
	t.Logf("what all had to say: %s", dir)
}
