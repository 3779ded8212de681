package preflight

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// socket is a TCP socket that listens.
type socket struct {
	port int
	// inode names the socket in /proc/PID/fd.
	inode string
}

// listening reads what listens on this host, over IPv4 and IPv6.
func (s System) listening() ([]socket, error) {
	var all []socket
	for _, path := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		file, err := os.Open(s.path(path))
		if errors.Is(err, fs.ErrNotExist) && path == "/proc/net/tcp6" {
			continue // a kernel without IPv6
		}
		if err != nil {
			return nil, err
		}
		found, err := parseSockets(file)
		_ = file.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, found...)
	}
	return all, nil
}

// stateListen is TCP_LISTEN in /proc/net/tcp.
const stateListen = "0A"

// parseSockets reads the sockets that listen from /proc/net/tcp or tcp6. Its columns are described in
// Documentation/networking/proc_net_tcp.rst of Linux.
func parseSockets(r io.Reader) ([]socket, error) {
	var all []socket
	scan := bufio.NewScanner(r)
	for first := true; scan.Scan(); first = false {
		fields := strings.Fields(scan.Text())
		switch {
		case first: // headings
			continue
		case len(fields) < 10:
			return nil, fmt.Errorf("%q is not a line of a socket", scan.Text())
		case fields[3] != stateListen:
			continue
		}
		_, port, found := strings.Cut(fields[1], ":")
		n, err := strconv.ParseUint(port, 16, 16)
		if !found || err != nil {
			return nil, fmt.Errorf("%q is not an address with a port", fields[1])
		}
		all = append(all, socket{int(n), fields[9]})
	}
	return all, scan.Err()
}

// owner names the program that has a socket, with its process. No process has those of the kernel itself, such
// as DRBD's: then the name is "".
func (s System) owner(of socket) (program string, pid int) {
	links, _ := filepath.Glob(s.path("/proc/[0-9]*/fd/*"))
	for _, link := range links {
		if target, err := os.Readlink(link); err != nil || target != "socket:["+of.inode+"]" {
			continue
		}
		process := filepath.Dir(filepath.Dir(link))
		name, err := os.ReadFile(filepath.Join(process, "comm"))
		if err != nil {
			continue
		}
		pid, _ = strconv.Atoi(filepath.Base(process))
		return strings.TrimSpace(string(name)), pid
	}
	return "", 0
}

// user says for people who listens on a port.
func (s System) user(of socket) string {
	program, pid := s.owner(of)
	if program == "" {
		return fmt.Sprintf("%d (no process; the kernel?)", of.port)
	}
	return fmt.Sprintf("%d (%s, process %d)", of.port, program, pid)
}
