package supervisor

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/escache/escache-csi/internal/escached"
)

func TestEscachedAcceptsTheConfigurationOfEveryNode(t *testing.T) {
	l := newLab(Plan{Options: Options{Nodes: 3}, Location: place(t), HasEscached: true})
	var err error
	if l.tls, err = newCredentials(filepath.Join(t.TempDir(), "tls"), l.nodes); err != nil {
		t.Fatal(err)
	}
	for _, n := range l.nodes {
		files := unpack(t, append(n.configFiles(), l.cephFiles()...))
		path := filepath.Join(t.TempDir(), "escached.yaml")
		if err := os.WriteFile(path, []byte(files["etc/escache/escached.yaml"]), 0o600); err != nil {
			t.Fatal(err)
		}
		config, err := escached.LoadConfig(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := config.Validate(); err != nil {
			t.Error(err)
		}
		if config.Node != n.name || config.Address != dataAddress(n.index) {
			t.Errorf("%s is told that it is %s with %s", n.name, config.Node, config.Address)
		}
		for _, path := range []string{config.TLS.Cert, config.TLS.Key, config.TLS.ClientCA} {
			if files[path[1:]] == "" {
				t.Errorf("%s names %s, which it does not get", n.name, path)
			}
		}
	}
}

func TestWithoutCephNoKeyringIsWritten(t *testing.T) {
	l := newLab(Plan{Options: Options{Nodes: 1}, Location: place(t)})
	if files := l.cephFiles(); len(files) != 0 {
		t.Errorf("files of a Ceph that is not there: %v", files)
	}
}

func unpack(t *testing.T, files []file) map[string]string {
	t.Helper()
	var packed bytes.Buffer
	if err := writeTar(&packed, files); err != nil {
		t.Fatal(err)
	}
	found := map[string]string{}
	for from := tar.NewReader(&packed); ; {
		header, err := from.Next()
		if errors.Is(err, io.EOF) {
			return found
		}
		if err != nil {
			t.Fatal(err)
		}
		data, err := io.ReadAll(from)
		if err != nil {
			t.Fatal(err)
		}
		found[header.Name] = string(data)
	}
}
