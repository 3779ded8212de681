//go:build e2e

package node

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/escache/escache-csi/test/kubetest"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

// sanityTime bounds one run of the suite on an emulated host.
const sanityTime = 25 * time.Minute

// managementAddress is where the lab's hosts reach what runs beside them.
const managementAddress = "10.78.0.1"

// sanity runs csi-sanity on a host: its node calls go to the csi-node there, its controller calls
// to the leading csi-controller.
func sanity(t *testing.T, w *world) {
	node := w.nodes[0]
	socket := leader(t)
	controller := forward(t, socket)
	w.discard(t, socket)
	defer w.discard(t, socket)
	binary, err := os.ReadFile(kubetest.Tools(t, "csi-sanity")["csi-sanity"])
	check(t, err)
	w.write(t, node, "/tmp/csi-sanity", binary)
	w.write(t, node, "/tmp/parameters.yaml", []byte(fmt.Sprintf("clusterID: %q\npool: rbd\ncacheSize: 64Mi\n", w.fsid)))
	defer w.shell(t, node, "rm -rf /tmp/csi-sanity /tmp/parameters.yaml /tmp/sanity")
	for _, access := range []string{"mount", "block"} {
		t.Run(access, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), sanityTime)
			defer cancel()
			out, err := w.lab.Output(ctx, node, "sh", "-c", "chmod 755 /tmp/csi-sanity; mkdir -p /tmp/sanity; /tmp/csi-sanity --ginkgo.no-color --ginkgo.v "+
				"--ginkgo.focus='Node Service|Identity Service' --csi.testvolumeaccesstype="+access+" "+
				"--csi.endpoint=unix:///var/lib/kubelet/plugins/csi.escache.io/csi.sock --csi.controllerendpoint=dns:///"+controller+" "+
				"--csi.testvolumeparameters=/tmp/parameters.yaml --csi.testvolumesize=536870912 --csi.testvolumeexpandsize=805306368 "+
				"--csi.mountdir=/tmp/sanity/mount --csi.stagingdir=/tmp/sanity/staging 2>&1; echo exit code $?")
			check(t, err)
			if !strings.HasSuffix(strings.TrimSpace(out), "exit code 0") {
				t.Fatalf("%s", out)
			}
			for _, skip := range regexp.MustCompile(`\[SKIPPED\] \[[0-9.]+ seconds\]\n([^\n]*)`).FindAllStringSubmatch(out, -1) {
				t.Errorf("skipped: %s", skip[1])
			}
			t.Log(regexp.MustCompile(`Ran \d+ of \d+ Specs[^\n]*\n[^\n]*`).FindString(out))
		})
	}
}

// discard removes volumes that a failed run has left attached: csi-sanity forgets those whose
// attachment failed.
func (w *world) discard(t *testing.T, socket string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), podTime)
	defer cancel()
	names, err := w.try(ctx, "", "get", "cachevolumes", "-o", "jsonpath={.items[*].metadata.name}")
	check(t, err)
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer conn.Close()
	client := csi.NewControllerClient(conn)
	for name := range strings.FieldsSeq(names) {
		if _, err := client.ControllerUnpublishVolume(ctx, &csi.ControllerUnpublishVolumeRequest{VolumeId: name}); err != nil {
			t.Errorf("%v", err)
		}
		if _, err := client.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: name}); err != nil {
			t.Errorf("%v", err)
		}
	}
}

// write makes a file on a host.
func (w *world) write(t *testing.T, node, path string, content []byte) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), commandTime)
	defer cancel()
	var stderr bytes.Buffer
	code, err := w.lab.Exec(ctx, node, labclient.Command{Args: []string{"sh", "-c", "cat > " + path}},
		labclient.Streams{In: bytes.NewReader(content), Out: io.Discard, Err: &stderr})
	if err != nil || code != 0 {
		t.Fatalf("write %s on %s: exit code %d, %v: %s", path, node, code, err, stderr.String())
	}
}

// leader returns the socket of the csi-controller that serves.
func leader(t *testing.T) string {
	t.Helper()
	found := ""
	labtest.WaitForCommand(t, "a csi-controller leads", commandTime, func(ctx context.Context) error {
		sockets, err := filepath.Glob(filepath.Join(filepath.Dir(os.Getenv(labclient.EnvSocket)), "csi-*.sock"))
		for _, socket := range sockets {
			conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
			check(t, err)
			asking, cancel := context.WithTimeout(ctx, 2*time.Second)
			probe, err := csi.NewIdentityClient(conn).Probe(asking, &csi.ProbeRequest{})
			cancel()
			_ = conn.Close()
			if err == nil && probe.GetReady().GetValue() {
				found = socket
				return nil
			}
		}
		return fmt.Errorf("none of %q serves: %w", sockets, err)
	})
	return found
}

// forward makes a unix socket reachable for the hosts, until the test ends.
func forward(t *testing.T, socket string) (address string) {
	t.Helper()
	listener, err := net.Listen("tcp", managementAddress+":0")
	check(t, err)
	t.Cleanup(func() { _ = listener.Close() })
	go func() {
		for {
			from, err := listener.Accept()
			if err != nil {
				return
			}
			to, err := net.Dial("unix", socket)
			if err != nil {
				_ = from.Close()
				continue
			}
			go func() { _, _ = io.Copy(to, from); _ = to.Close() }()
			go func() { _, _ = io.Copy(from, to); _ = from.Close() }()
		}
	}()
	return listener.Addr().String()
}
