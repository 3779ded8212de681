// Package unixsocket makes listening unix sockets that appear in one step.
package unixsocket

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
)

// Modes are the permissions of a socket and of its directory.
type Modes struct {
	// Directory applies only if the directory is not there yet; the umask applies too.
	Directory fs.FileMode
	Socket    fs.FileMode
}

// Listen listens on a unix socket at the path. The socket is made under another name and moved into
// place: whoever finds it can connect at once, it has its mode from the first moment, and it
// replaces an older socket without a gap. Close does not remove the file, because a successor may
// have replaced it.
func Listen(path string, modes Modes) (net.Listener, error) {
	if err := os.MkdirAll(filepath.Dir(path), modes.Directory); err != nil {
		return nil, fmt.Errorf("make the directory of socket %s: %w", path, err)
	}
	// The kubelet's plugin watcher passes over names that begin with a dot.
	hidden := filepath.Join(filepath.Dir(path), "."+filepath.Base(path)+".new")
	if err := os.Remove(hidden); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("remove the unfinished socket of an earlier start: %w", err)
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: hidden, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", path, err)
	}
	listener.SetUnlinkOnClose(false)
	if err = os.Chmod(hidden, modes.Socket); err == nil {
		err = os.Rename(hidden, path)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("move socket %s into place: %w", path, err), listener.Close(), os.Remove(hidden))
	}
	return listener, nil
}
