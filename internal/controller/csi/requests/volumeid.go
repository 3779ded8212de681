package requests

import (
	"crypto/sha256"
	"encoding/hex"
	"regexp"
	"strings"
)

// hashedPrefix marks ids that are made from names that cannot be ids. No name that begins with it
// is accepted as an id.
const hashedPrefix = "x-"

// A readable id must be a valid name of a Kubernetes object and, behind a prefix, of an RBD image
// and a label.
var readable = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// VolumeID returns the id of the volume with this CSI name. It is always the same, so that a
// repeated CreateVolume finds what the first one left. Names "pvc-…" stay as they are; others
// become a hash.
func VolumeID(name string) string {
	if readable.MatchString(name) && !strings.HasPrefix(name, hashedPrefix) {
		return name
	}
	sum := sha256.Sum256([]byte(name))
	return hashedPrefix + hex.EncodeToString(sum[:16])
}
