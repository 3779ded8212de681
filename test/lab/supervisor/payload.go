package supervisor

import (
	"archive/tar"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/testca"
)

// Files of the lab's certificates, below LAB_STATE/tls.
const (
	caFile         = "ca.pem"
	clientCertFile = "client.pem"
	clientKeyFile  = "client-key.pem"
	otherCertFile  = "other-client.pem"
	otherKeyFile   = "other-client-key.pem"
)

// credentials are the lab's certificates: one for each node's escached, with the node's name, one
// for csi-controller and the tests that call in its place, and one for a client that may not call.
type credentials struct {
	ca    []byte
	nodes []testca.Pair
}

// newCredentials makes an authority and writes what clients need into a directory.
func newCredentials(dir string, nodes []*node) (*credentials, error) {
	authority, err := testca.NewAuthority("escache lab")
	if err != nil {
		return nil, err
	}
	c := &credentials{ca: authority.Certificate()}
	for _, n := range nodes {
		pair, err := authority.Server(n.name, dataAddress(n.index), mgmtAddress(n.index))
		if err != nil {
			return nil, err
		}
		c.nodes = append(c.nodes, pair)
	}
	client, err := authority.Client("csi-controller")
	if err != nil {
		return nil, err
	}
	other, err := authority.Client("webshop")
	if err != nil {
		return nil, err
	}
	err = errors.Join(os.MkdirAll(dir, 0o755),
		os.WriteFile(filepath.Join(dir, caFile), c.ca, 0o644),
		os.WriteFile(filepath.Join(dir, clientCertFile), client.Certificate, 0o644),
		os.WriteFile(filepath.Join(dir, clientKeyFile), client.Key, 0o600),
		os.WriteFile(filepath.Join(dir, otherCertFile), other.Certificate, 0o644),
		os.WriteFile(filepath.Join(dir, otherKeyFile), other.Key, 0o600))
	if err != nil {
		return nil, fmt.Errorf("certificates: %w", err)
	}
	return c, nil
}

// file is one that a node gets at boot.
type file struct {
	path string // without a leading slash
	mode int64
	data string
}

// writeConfig writes the node's configuration disk: a tar that is unpacked over its root at every
// boot.
func (n *node) writeConfig() error {
	var content bytes.Buffer
	kubernetes, err := n.kubernetesFiles()
	if err != nil {
		return fmt.Errorf("configuration of %s: %w", n.name, err)
	}
	if err := writeTar(&content, slices.Concat(n.configFiles(), n.lab.cephFiles(), kubernetes)); err != nil {
		return err
	}
	if err := os.WriteFile(n.path("config.tar"), content.Bytes(), 0o600); err != nil {
		return fmt.Errorf("configuration of %s: %w", n.name, err)
	}
	return nil
}

func (n *node) configFiles() []file {
	var hosts strings.Builder
	fmt.Fprintln(&hosts, "127.0.0.1 localhost")
	for _, other := range n.lab.nodes {
		fmt.Fprintln(&hosts, dataAddress(other.index), other.name)
	}
	env := fmt.Sprintf("LAB_NODE=%s\nLAB_DATA_ADDRESS=%s\nLAB_MGMT_ADDRESS=%s\nLAB_CENTRAL_ADDRESS=%s\n",
		n.name, dataAddress(n.index), mgmtAddress(n.index), CentralAddress)
	files := []file{
		{"etc/lab/node.env", 0o644, env},
		{"etc/hostname", 0o644, n.name + "\n"},
		{"etc/hosts", 0o644, hosts.String()},
	}
	if n.lab.plan.HasEscached {
		files = append(files, n.escachedFiles()...)
	}
	return files
}

// arbiterURL is csi-node's socket where that runs, and elsewhere the record that the lab itself
// keeps.
func (l *lab) arbiterURL() string {
	if l.plan.Driver {
		return "unix:///run/escache/arbiter.sock"
	}
	return recordURL()
}

func (n *node) escachedFiles() []file {
	config := fmt.Sprintf(`node: %s
address: %s
volumeGroup: escache
listen: 0.0.0.0:%d
tls:
  cert: /etc/escache/tls/server.pem
  key: /etc/escache/tls/server-key.pem
  clientCA: /etc/escache/tls/ca.pem
socket: /run/escache/escached.sock
arbiter: %s
ceph:
  conf: /etc/ceph/ceph.conf
  keyring: /%s
  user: %s
drbd:
  ports: {first: %d, last: %d}
  minors: {first: %d, last: %d}
`, n.name, dataAddress(n.index), EscachedPort, n.lab.arbiterURL(), nodeKeyring, cephUser,
		drbdFirstPort, drbdLastPort, drbdFirstMinor, drbdLastMinor)
	service := "#!/bin/sh\n" +
		"# Without Ceph's keyring there is nothing to serve; it comes when the lab's Ceph is up.\n" +
		"while [ ! -e /" + nodeKeyring + " ]; do sleep 0.1; done\n" +
		"exec /usr/local/bin/escached --config /etc/escache/escached.yaml\n"
	pair := n.lab.tls.nodes[n.index]
	return []file{
		{"etc/escache/escached.yaml", 0o600, config},
		{"etc/escache/tls/ca.pem", 0o644, string(n.lab.tls.ca)},
		{"etc/escache/tls/server.pem", 0o644, string(pair.Certificate)},
		{"etc/escache/tls/server-key.pem", 0o600, string(pair.Key)},
		{"etc/lab/services/escached", 0o755, service},
	}
}

const nodeKeyring = "etc/ceph/ceph.client." + cephUser + ".keyring"

// cephFiles are none until Ceph is up, and none for bare hosts. The keyring comes last: its being
// there means that all is.
func (l *lab) cephFiles() []file {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.keyring == nil || l.ceph == nil || l.plan.Bare {
		return nil
	}
	conf := fmt.Sprintf("[global]\nfsid = %s\nmon host = v1:%s\n", l.ceph.FSID(), l.ceph.MonitorV1())
	return []file{{"etc/ceph/ceph.conf", 0o644, conf}, {nodeKeyring, 0o600, string(l.keyring)}}
}

func writeTar(to io.Writer, files []file) error {
	out := tar.NewWriter(to)
	for _, f := range files {
		header := tar.Header{Name: f.path, Mode: f.mode, Size: int64(len(f.data)), ModTime: time.Now()}
		if err := out.WriteHeader(&header); err != nil {
			return fmt.Errorf("pack %s: %w", f.path, err)
		}
		if _, err := io.WriteString(out, f.data); err != nil {
			return fmt.Errorf("pack %s: %w", f.path, err)
		}
	}
	if err := out.Close(); err != nil {
		return fmt.Errorf("pack files: %w", err)
	}
	return nil
}
