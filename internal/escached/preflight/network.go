package preflight

import (
	"context"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/escached/volume"
	"github.com/escache/escache-csi/internal/shortlist"
)

func (h *Host) address(context.Context) checklist.Result {
	const remedy = "set address to this host's IP address on the replication network (in the chart: escached.addresses, and the node's " +
		"annotation escache.io/replication-address)"
	if h.Config.Address == "" {
		return checklist.Badf(checklist.Unknown, "name it with --address", "not checked: no configuration names it")
	}
	ip := net.ParseIP(h.Config.Address)
	all, err := h.System.Addresses()
	switch {
	case err != nil:
		return checklist.Badf(checklist.Failed, "run ip address by hand", "the interfaces cannot be read: %v", err)
	case ip == nil:
		return checklist.Badf(checklist.Failed, remedy, "%q is not an IP address", h.Config.Address)
	case ip.IsLoopback():
		return checklist.Badf(checklist.Failed, remedy, "%s is the loopback address: other hosts do not reach it", ip)
	case !among(all, ip):
		return checklist.Badf(checklist.Failed, remedy, "no interface has %s; this host has %s", ip, strings.Join(all, ", "))
	}
	return checklist.Goodf("%s is this host's", ip)
}

// among reports whether an address is one of several.
func among(addresses []string, ip net.IP) bool {
	return slices.ContainsFunc(addresses, func(a string) bool { return ip.Equal(net.ParseIP(a)) })
}

// replicationPorts checks that nobody else listens where the replication links will. DRBD listens on
// those of the replicas that are here.
func (h *Host) replicationPorts(ctx context.Context) checklist.Result {
	ports := h.Config.DRBD.Ports
	sockets, err := h.System.listening()
	if err != nil {
		return checklist.Badf(checklist.Failed, "run ss -ltn by hand", "the ports in use cannot be read: %v", err)
	}
	ours := h.portsOfReplicas(ctx)
	var others []string
	for _, s := range sockets {
		if !ports.Contains(s.port) {
			continue
		}
		if program, _ := h.System.owner(s); program != "" || !ours[s.port] {
			others = append(others, h.System.user(s))
		}
	}
	slices.Sort(others)
	others = slices.Compact(others) // over IPv4 and IPv6
	if len(others) > 0 {
		return checklist.Badf(checklist.Failed, "stop what listens there, or choose other ports for all hosts: drbd.ports "+
			"(in the chart: escached.drbd.ports)", "in use within %d-%d: %s", ports.First, ports.Last, shortlist.Of(others))
	}
	return checklist.Goodf("%d-%d are free, but for %d of replicas here; they must be open between the hosts of a group", ports.First,
		ports.Last, len(ours))
}

// portsOfReplicas are the ports of the replicas on this host. Without a volume group there are none.
func (h *Host) portsOfReplicas(ctx context.Context) map[int]bool {
	ours := map[int]bool{}
	volumes, err := h.Store.Volumes(ctx, true)
	if err != nil {
		return ours // the check of the volume group says so
	}
	for _, lv := range volumes {
		if v, err := volume.Parse(lv); err == nil {
			ours[v.Port] = true
		}
	}
	return ours
}

// program is escached's name in /proc.
const program = "escached"

func (h *Host) apiPort(context.Context) checklist.Result {
	listen := h.Config.Listen
	switch {
	case listen == "" && h.unread():
		return checklist.Badf(checklist.Unknown, "name it with --listen IP:PORT (in the chart: escached.port, 7443)",
			"not checked: no configuration names it")
	case listen == "":
		return checklist.Badf(checklist.Warning, "set listen: IP:7443 and tls", "listen is not set: csi-controller cannot call this host")
	}
	host, port, err := net.SplitHostPort(listen)
	number, numberErr := strconv.ParseUint(port, 10, 16)
	if err != nil || numberErr != nil {
		return checklist.Badf(checklist.Failed, "set listen to IP:PORT", "%q is not IP:PORT", listen)
	}
	addresses, err := h.System.Addresses()
	if ip := net.ParseIP(host); err == nil && ip != nil && !ip.IsUnspecified() && !among(addresses, ip) {
		return checklist.Badf(checklist.Failed, "set listen to an address of this host, or to 0.0.0.0:"+port, "no interface has %s", host)
	}
	sockets, err := h.System.listening()
	if err != nil {
		return checklist.Badf(checklist.Failed, "run ss -ltn by hand", "the ports in use cannot be read: %v", err)
	}
	at := slices.IndexFunc(sockets, func(s socket) bool { return s.port == int(number) })
	if at < 0 {
		return checklist.Goodf("%s is free; it must be open to csi-controller", listen)
	}
	if name, pid := h.System.owner(sockets[at]); name == program {
		return checklist.Goodf("escached listens on %s (process %d); it must be open to csi-controller", listen, pid)
	}
	return checklist.Badf(checklist.Failed,
		"stop what listens there, or choose another port for all hosts (listen; in the chart: escached.port)",
		"in use: %s", h.System.user(sockets[at]))
}
