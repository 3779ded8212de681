package drbd

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/atomicfile"
	"github.com/escache/escache-csi/internal/escached/listing"
)

// Resource is one replicated device with its two ends. The caller has checked all strings: names
// are host names, addresses are IP addresses, Disk is an absolute path, FencePeer and
// DiskFailed begin with one, and none of them has quotes.
type Resource struct {
	Name  string
	Minor int
	Port  int
	// Disk is the local backing device. The peer's path is not needed.
	Disk string
	// LocalHost is this host's name as uname prints it. drbdadm finds its own section by that name.
	LocalHost    string
	LocalAddress string
	PeerHost     string
	PeerAddress  string
	// Secret is what both hosts know and nobody else does. Empty: only names tell the peer.
	Secret escache.Secret
	// ResyncRate is the fixed rate in DRBD's notation. The default controller is eight times
	// slower.
	ResyncRate string
	// FencePeer is the command line that the kernel runs before it goes on without the peer.
	FencePeer string
	// NoFreeze keeps the kernel from freezing I/O when the peer is lost. It runs FencePeer all the same.
	NoFreeze bool
	// DiskFailed is the command line that the kernel runs when the local disk has failed.
	DiskFailed string
}

// maxBuffers is how many pages of 4 KiB DRBD may use for what is in flight on one link. A resync takes up to half of them, ten times a
// second: with DRBD's default of 2048 none is faster than 40 MiB/s, whatever its rate is. With this many that is 312 MiB/s.
const maxBuffers = 16000

// Text is the resource in drbd.conf's language.
func (r Resource) Text() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# written by escached; changes are lost\nresource %s {\n", r.Name)
	fmt.Fprintf(&b, "  net { protocol C; ping-int 1; ping-timeout 10; timeout 20; connect-int 1; max-buffers %d;\n", maxBuffers)
	fmt.Fprintf(&b, "    cram-hmac-alg sha256; shared-secret %q; }\n", r.secret())
	fmt.Fprintf(&b, "  disk { on-io-error call-local-io-error; fencing %s;\n", fencing(!r.NoFreeze))
	fmt.Fprintf(&b, "    c-plan-ahead 0; resync-rate %s; }\n", r.ResyncRate)
	fmt.Fprintf(&b, "  handlers { fence-peer %q; local-io-error %q; }\n", r.FencePeer, r.DiskFailed)
	fmt.Fprintf(&b, "  device /dev/drbd%d minor %d;\n  disk %q;\n  meta-disk internal;\n", r.Minor, r.Minor, r.Disk)
	fmt.Fprintf(&b, "  on %q { address %s; }\n", r.LocalHost, endpoint(r.LocalAddress, r.Port))
	fmt.Fprintf(&b, "  on %q { address %s; }\n}\n", r.PeerHost, endpoint(r.PeerAddress, r.Port))
	return b.Bytes()
}

// longestWord is how many characters drbdadm's scanner takes for one word or quoted text.
const longestWord = 255

// Check fails if drbdadm would refuse the resource's file because a command line is too long. Such a
// file must not be written: drbdadm reads the files of all resources when the kernel runs a handler,
// and refuses them all.
func (r Resource) Check() error {
	for _, line := range []string{r.FencePeer, r.DiskFailed} {
		if over := len(line) - longestWord; over > 0 {
			return fmt.Errorf("%d characters too long: drbdadm reads at most %d, and these are the handler's %q", over, longestWord, line)
		}
	}
	return nil
}

// fencing is DRBD's word for whether it freezes I/O while the fence-peer handler runs.
func fencing(freeze bool) string {
	if freeze {
		return "resource-and-stonith"
	}
	return "resource-only"
}

// secret returns the shared secret of the handshake, at most 64 characters. It is made of the names of
// the two ends of the link, and is the same on both hosts. DRBD 8.4 accepts any host that connects to the
// port as the peer. So a former partner that returns would be filled, and reported, in place of the
// present one, even if it knows Secret. Without Secret everybody can compute it, so it keeps out
// hosts that are mistaken, not hosts that lie.
func (r Resource) secret() string {
	ends := []string{end(r.LocalAddress, r.Port), end(r.PeerAddress, r.Port)}
	slices.Sort(ends)
	names := []byte(r.Name + " " + strings.Join(ends, " "))
	if r.Secret == "" {
		sum := sha256.Sum256(names)
		return hex.EncodeToString(sum[:16])
	}
	mac := hmac.New(sha256.New, []byte(r.Secret))
	_, _ = mac.Write(names) // a hash takes everything
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
}

// end is an end of the link in the names that the secret is made of: with the address as it was
// given, as earlier versions have it. Another text would cut the link between hosts of different
// versions.
func end(address string, port int) string {
	if ip := net.ParseIP(address); ip != nil && ip.To4() == nil {
		return fmt.Sprintf("ipv6 [%s]:%d", address, port)
	}
	return fmt.Sprintf("%s:%d", address, port)
}

const fileMode = 0o600

// endpoint writes an address in its usual form. drbdadm's scanner does not know every form: not
// ::ffff:10.0.0.1, 64:ff9b::10.0.0.1 or 1:2:3:4:5:6:7::.
func endpoint(address string, port int) string {
	ip := net.ParseIP(address)
	switch {
	case ip == nil:
		return fmt.Sprintf("%s:%d", address, port)
	case ip.To4() == nil:
		return fmt.Sprintf("ipv6 [%s]:%d", ip, port)
	}
	return fmt.Sprintf("%s:%d", ip, port)
}

// Files writes two files per resource into one directory: NAME.res, which the host's drbd.conf
// includes, and NAME.conf, a drbd.conf for this resource only.
type Files struct{ Dir string }

func (f Files) path(name string) string { return filepath.Join(f.Dir, name+".res") }

func (f Files) configPath(name string) string { return filepath.Join(f.Dir, name+".conf") }

// config returns the path of a drbd.conf that includes this resource only, and writes the file if
// it is missing. With the host's own drbd.conf, drbdadm opens the files of all resources, and fails
// if one is removed after drbdadm has listed the directory.
func (f Files) config(name string) (string, error) {
	text := fmt.Appendf(nil, "# written by escached; changes are lost\nglobal { usage-count no; }\ninclude %q;\n", f.path(name))
	_, err := f.put(f.configPath(name), text)
	return f.configPath(name), err
}

// Write writes a resource's file atomically, and reports whether the file has changed. Only root may
// read it: it has the secret of the link.
func (f Files) Write(r Resource) (changed bool, err error) { return f.put(f.path(r.Name), r.Text()) }

// put writes text to a file atomically, and reports whether the file has changed.
func (f Files) put(path string, text []byte) (changed bool, err error) {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return false, os.Chmod(path, fileMode) // an earlier version let everybody read it
	}
	if err := os.MkdirAll(f.Dir, 0o755); err != nil {
		return false, fmt.Errorf("directory of DRBD resources: %w", err)
	}
	if err := atomicfile.Write(path, halfWritten, text, fileMode); err != nil {
		return false, fmt.Errorf("write DRBD resource: %w", err)
	}
	return true, nil
}

// halfWritten names the files that put writes first. drbd.conf's *.res does not match them, so they
// are never parsed.
const halfWritten = ".escache-*.new"

// Tidy removes what a killed escached has left half-written. Nobody may call Write meanwhile.
func (f Files) Tidy() error { return atomicfile.Tidy(f.Dir, halfWritten) }

// Forget removes a resource's files. NAME.res, which List finds, is removed last. Forget succeeds
// if there are no files.
func (f Files) Forget(name string) error {
	for _, path := range []string{f.configPath(name), f.path(name)} {
		if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fmt.Errorf("remove DRBD resource: %w", err)
		}
	}
	return nil
}

// List returns the names of the resources that begin with the prefix, sorted.
func (f Files) List(prefix string) ([]string, error) {
	files, err := listing.Names(f.Dir)
	if err != nil {
		return nil, fmt.Errorf("list DRBD resources: %w", err)
	}
	var names []string
	for _, file := range files {
		if name, is := strings.CutSuffix(file, ".res"); is && strings.HasPrefix(name, prefix) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}
