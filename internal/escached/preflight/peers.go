package preflight

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strconv"
	"syscall"
	"time"

	"github.com/escache/escache-csi/internal/checklist"
)

// peersTimeout bounds the check of the links to 15 hosts, which is the largest group without this one.
const peersTimeout = 15 * 2 * (dialTimeout + time.Second)

// dialTimeout is how long another host may take to answer on one port.
const dialTimeout = 3 * time.Second

// peers tries the way to other hosts on the first and the last port of replication. Before there are volumes
// nobody listens there: a host that refuses the connection answers, and one that a firewall hides does not.
func (h *Host) peers(ctx context.Context) []checklist.Result {
	if len(h.Peers) == 0 {
		return []checklist.Result{checklist.Badf(checklist.Unknown,
			"name the replication addresses of the group's other hosts with --peer, once each",
			"not checked: no other host is named")}
	}
	var all []checklist.Result
	for _, peer := range h.Peers {
		all = append(all, h.peer(ctx, peer).Of("link to "+peer))
	}
	return all
}

func (h *Host) peer(ctx context.Context, peer string) checklist.Result {
	ports := h.Config.DRBD.Ports
	for _, port := range []int{ports.First, ports.Last} {
		err := h.System.Dial(ctx, h.Config.Address, net.JoinHostPort(peer, strconv.Itoa(port)))
		if err != nil && !errors.Is(err, syscall.ECONNREFUSED) {
			return checklist.Badf(checklist.Failed,
				fmt.Sprintf("open TCP %d-%d in the firewalls between the hosts, and check routes and the network",
					ports.First, ports.Last), "no answer on port %d: %v", port, err)
		}
	}
	return checklist.Goodf("answers on the ports %d and %d", ports.First, ports.Last)
}

// Dial is what System.Dial is but in tests: it connects from a local address, which may be empty, and hangs
// up.
func Dial(ctx context.Context, from, address string) error {
	dialer := &net.Dialer{Timeout: dialTimeout}
	if ip := net.ParseIP(from); ip != nil {
		dialer.LocalAddr = &net.TCPAddr{IP: ip}
	}
	conn, err := dialer.DialContext(ctx, "tcp", address)
	if err != nil {
		return err
	}
	return conn.Close()
}
