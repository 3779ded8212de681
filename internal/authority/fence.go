package authority

import (
	"slices"
	"strings"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/clientaddress"
)

// FenceSeconds is how long a fenced client stays on Ceph's blocklist: ten years. If an entry
// expired, the old map would come back to life and write into an image that another node owns.
const FenceSeconds = 315360000

// Clients returns the addresses of the Ceph clients to fence so that the holder cannot write any
// more: the one on record, and those that have the image open now. Clients that were fenced earlier
// stay fenced and are left out.
func Clients(v *v1alpha1.CacheVolume, open []string) []string {
	candidates := slices.Clone(open)
	if v.Status.ClientAddress != "" {
		candidates = append(candidates, v.Status.ClientAddress)
	}
	slices.SortFunc(candidates, func(a, b string) int {
		return strings.Compare(clientaddress.Canonical(a), clientaddress.Canonical(b))
	})
	return slices.DeleteFunc(slices.CompactFunc(candidates, clientaddress.Same), func(address string) bool {
		return IsFenced(v, address)
	})
}

// ClientOf returns the node if the client is known to be the node's, and "" if not: somebody else
// may have had the image open. The known addresses are the node's own and those of its other
// clients.
func ClientOf(node, client string, known ...string) string {
	for _, address := range known {
		if address != "" && clientaddress.SameHost(hostOf(address), hostOf(client)) {
			return node
		}
	}
	return ""
}

// hostOf returns the host of "IP", "IP:PORT" or "IP:PORT/NONCE", of an IPv6 address without its
// brackets.
func hostOf(address string) string {
	address, _, _ = strings.Cut(address, "/")
	if rest, bracketed := strings.CutPrefix(address, "["); bracketed {
		host, _, _ := strings.Cut(rest, "]")
		return host
	}
	if strings.Count(address, ":") == 1 {
		address, _, _ = strings.Cut(address, ":")
	}
	return address
}

// TakenFrom returns the node that lost the volume by force in the last attachment, if no node has
// it now. The node is "" if nobody knows whose the fenced clients are.
func TakenFrom(v *v1alpha1.CacheVolume) (node string, forced bool) {
	if v.Status.AttachedNode != "" {
		return "", false
	}
	for _, client := range v.Status.Fenced {
		if client.Epoch == v.Status.Epoch {
			node, forced = client.Node, true
		}
		if node != "" {
			break
		}
	}
	return node, forced
}

// MayBeLate reports whether clients may have the image of an attached volume open that [Late] finds.
func MayBeLate(v *v1alpha1.CacheVolume) bool {
	return v.Status.AttachedNode != "" && len(v.Status.Fenced) > 0
}

// Late returns clients to fence that have the image open although their host lost the volume by
// force in an earlier attachment. A dev_connect that was under way there has mapped the image
// since, and keeps the holder out. As long as the holder's client on record has the image open, it has
// the exclusive lock. The record alone does not say that: it keeps the address when the stage was undone, or
// the holder has died. Then the map of a node whose clients were known comes no more, and that of a node
// of which none was known still may. A late client is recognised by its host's address, which an earlier
// fenced client had, or which is among those that are known of nodes.
func Late(v *v1alpha1.CacheVolume, open []string, known map[string][]string) []v1alpha1.FencedClient {
	if !MayBeLate(v) {
		return nil
	}
	var late []v1alpha1.FencedClient
	held := clientaddress.In(open, v.Status.ClientAddress)
	for _, address := range open {
		lost := v1alpha1.FencedClient{}
		for _, earlier := range v.Status.Fenced {
			itself := ClientOf(earlier.Node, address, earlier.Address)
			if held && earlier.Address != "" || itself == "" && ClientOf(earlier.Node, address, known[earlier.Node]...) == "" {
				continue
			}
			if earlier.Node == v.Status.AttachedNode {
				lost = v1alpha1.FencedClient{}
				break
			}
			lost = earlier
		}
		holder := append([]string{v.Status.ClientAddress}, known[v.Status.AttachedNode]...)
		if lost.Node != "" && ClientOf(v.Status.AttachedNode, address, holder...) == "" {
			late = append(late, v1alpha1.FencedClient{Node: lost.Node, HostID: lost.HostID, Address: address, Epoch: lost.Epoch})
		}
	}
	return late
}

// HasFenced reports whether clients of the volume are on record that have to be on the blocklist.
func HasFenced(v *v1alpha1.CacheVolume) bool {
	return slices.ContainsFunc(v.Status.Fenced, func(client v1alpha1.FencedClient) bool { return client.Address != "" })
}

// fencedLeast is the shortest time for which a fenced client has to be on the blocklist from now on.
const fencedLeast = 365 * 24 * time.Hour

// Lapsed reports whether a fenced client of the volume has to be fenced again: it is not on the blocklist, or
// its entry ends too early. The time is the end of its entry, or nil. Somebody may have removed the entry, or
// csi-controller died before it made one. As long as the take-over has not ended, the client's node has the
// volume, and who takes it fences the client.
func Lapsed(v *v1alpha1.CacheVolume, client v1alpha1.FencedClient, until *time.Time, now time.Time) bool {
	if client.Address == "" || v.Status.AttachedNode != "" && client.Epoch == v.Status.Epoch {
		return false
	}
	return until == nil || until.Sub(now) < fencedLeast
}

// Foreign reports whether the client's entry on the blocklist is somebody else's: it was there before
// the fence, and its own end has not come. Such an entry is not the driver's to remove.
func Foreign(client v1alpha1.FencedClient, now time.Time) bool {
	return client.EarlierUntil != nil && now.Before(client.EarlierUntil.Time)
}

// connectTime is longer than a dev_connect can take. Within it a host may have mapped the image
// already and not report a device yet.
const connectTime = 5 * time.Minute

// MapGone decides whether a fenced client's map is certainly gone, so that its entry can leave the
// blocklist. The proof is its host's answer that it has no device of the volume, or one of a later
// attachment (connecting unmaps everything before it). A host that does not answer proves nothing, and
// neither does one on which a dev_connect has not ended.
// If the owner of a client is not known, no host's answer proves anything about it. The report is of [HeardOf].
//
// Of an entry without a client it decides whether no map can come any more. A host that has no device, and
// has confirmed a later attachment, refuses a dev_connect of an earlier one.
func MapGone(v *v1alpha1.CacheVolume, client v1alpha1.FencedClient, host Report, now time.Time) bool {
	s := host.status
	later := s.Epoch > client.Epoch
	switch {
	case client.Node == "" || !host.known || client.Address != "" && clientaddress.Same(s.ClientAddress, client.Address):
		return false
	case v.Status.AttachedNode != "" && client.Epoch == v.Status.Epoch:
		return false // the take-over has not ended
	case s.ClientAddress != "" && later:
		return true
	case host.connected():
		return false
	}
	return client.Address == "" && later || now.Sub(client.Time.Time) > connectTime
}

// KeepsOut reports whether the host keeps its peer from being promoted for certain: its replica is
// Primary, and the link between the two is up.
func KeepsOut(holder Report) bool {
	return holder.known && holder.status.Role == escache.RolePrimary && slices.ContainsFunc(holder.status.Peers, escache.Peer.Linked)
}
