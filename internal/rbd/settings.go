package rbd

import (
	"bufio"
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// Files of a cluster's directory. A mounted Secret has them as symbolic links that change together.
const (
	confFile    = "ceph.conf"
	keyringFile = "keyring"
)

// settings are what a connection is made from.
type settings struct {
	confPath string
	user     string // with "client." in front
	key      string
	sum      [sha256.Size]byte // of both files: it changes when either does
}

var clusterIDs = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$`)

// readSettings reads DIR/CLUSTERID. The key is taken out of the keyring here, so that a connection
// never sees one file of the old and one of the new settings.
func readSettings(dir, clusterID string) (settings, error) {
	if !clusterIDs.MatchString(clusterID) {
		return settings{}, fmt.Errorf("cluster ID %q: only letters, digits and ._- are allowed: %w", clusterID, ErrClusterNotFound)
	}
	dir = filepath.Join(dir, clusterID)
	if strings.ContainsAny(dir, ",; \t") {
		return settings{}, fmt.Errorf("cluster %s: %w: Ceph takes the path %q for a list: no commas, semicolons or blanks",
			clusterID, ErrConfig, dir)
	}
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		return settings{}, fmt.Errorf("cluster %s: make the directory %s with %s and %s: %w",
			clusterID, dir, confFile, keyringFile, ErrClusterNotFound)
	}
	s := settings{confPath: filepath.Join(dir, confFile)}
	conf, err := os.ReadFile(s.confPath)
	if err != nil {
		return settings{}, fmt.Errorf("cluster %s: %w: %w", clusterID, ErrConfig, err)
	}
	ring, err := os.ReadFile(filepath.Join(dir, keyringFile))
	if err != nil {
		return settings{}, fmt.Errorf("cluster %s: %w: %w", clusterID, ErrConfig, err)
	}
	if s.user, s.key, err = parseKeyring(ring); err != nil {
		return settings{}, fmt.Errorf("cluster %s: %w: %s: %w", clusterID, ErrConfig, filepath.Join(dir, keyringFile), err)
	}
	s.sum = sha256.Sum256(append(append(conf, 0), ring...))
	return s, nil
}

// parseKeyring returns the first client and its key. What is wrong is said without quoting the
// file: it holds a secret.
func parseKeyring(ring []byte) (user, key string, err error) {
	lines := bufio.NewScanner(bytes.NewReader(ring))
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if section, ok := strings.CutPrefix(line, "["); ok {
			if user != "" && key != "" {
				break
			}
			user, key = strings.TrimSuffix(section, "]"), ""
			if !strings.HasPrefix(user, "client.") {
				user = ""
			}
			continue
		}
		if name, value, ok := strings.Cut(line, "="); ok && user != "" && strings.TrimSpace(name) == "key" {
			key = strings.TrimSpace(value)
		}
	}
	switch {
	case lines.Err() != nil:
		return "", "", lines.Err()
	case user == "":
		return "", "", errors.New("it has no [client.NAME] section")
	case key == "":
		return "", "", fmt.Errorf("the section of %s has no key", user)
	}
	return user, key, nil
}
