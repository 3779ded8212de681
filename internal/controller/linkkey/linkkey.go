// Package linkkey derives the secrets of all replication links from one key of the Kubernetes cluster.
// So no record holds a secret of a link, and a new leader derives the same ones.
package linkkey

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"

	"github.com/escache/escache-csi/api/escache"
)

// minBytes is the length of the shortest key. Less could be guessed.
const minBytes = 32

// Key is the cluster's key. It prints nothing of itself.
type Key struct{ bytes []byte }

// Read reads a key from a file, without the white space around it.
func Read(path string) (*Key, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("key of the replication links: %w; the chart keeps it in a Secret and mounts it", err)
	}
	return New(path, text)
}

// New returns a key of these bytes. name says in an error where they are from.
func New(name string, text []byte) (*Key, error) {
	text = bytes.TrimSpace(text)
	if len(text) < minBytes {
		return nil, fmt.Errorf("key of the replication links: %s holds %d bytes; write %d random ones or more (openssl rand -hex 32)",
			name, len(text), minBytes)
	}
	return &Key{bytes: text}, nil
}

// String hides the key.
func (*Key) String() string { return "(key)" }

// GoString hides the key.
func (*Key) GoString() string { return "(key)" }

// Secret returns the secret of a volume's link in one generation of its replicas.
func (k *Key) Secret(volume string, generation int64) escache.Secret {
	mac := hmac.New(sha256.New, k.bytes)
	_, _ = fmt.Fprintf(mac, "escache replication link\x00%s\x00%d", volume, generation) // a hash takes everything
	return escache.Secret(base64.RawURLEncoding.EncodeToString(mac.Sum(nil)))
}
