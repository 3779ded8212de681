package overview

import (
	"slices"
	"time"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/records/choice"
	"github.com/escache/escache-csi/internal/records/trouble"
)

type host struct {
	Name, Group, State, Message, Cache, Dirty, Seen, Version string
	Filled, Replicas, Attached                               int // Filled in percent
	Links                                                    []link
}

// link is the replication between this host and another one.
type link struct {
	To            string
	Volumes, Lost int
}

// States of a host.
const (
	stateReady, stateNotReady, stateCordoned, stateUnknown = "ready", "not ready", "cordoned", "unknown"
)

// seenOften is longer than the time between two updates of LastSeen of a host that answers all
// the time.
const seenOften = 2 * time.Minute

// hosts shows the hosts of the chosen groups. Of many, those that are ready are left out.
func (v *view) hosts(chosen choice.Objects, b *board) {
	versions := map[string][]string{}
	var all []host
	for i := range chosen.Groups {
		g := &chosen.Groups[i]
		for _, name := range g.Spec.Nodes {
			if !v.Query.HostShown(name, b.Faults) {
				continue
			}
			h := hostOf(g, name, b.made)
			if h.Version != "" {
				versions[h.Version] = append(versions[h.Version], name)
			}
			v.Totals.Ready += b2i(h.State == stateReady)
			all = append(all, h)
		}
	}
	v.Totals.Hosts = len(all)
	if len(versions) > 0 {
		v.Escached = trouble.Versions(versions)
	}
	if len(all) > mostHosts {
		all = slices.DeleteFunc(all, func(h host) bool {
			return h.State == stateReady && !b.Faults.Wrong(trouble.Host, h.Name)
		})
		v.WellHosts = v.Totals.Hosts - len(all)
	}
	v.Hosts, v.MoreHosts = limited(all, mostHosts)
	v.links(b)
}

func hostOf(g *v1alpha1.NodeGroup, name string, now time.Time) host {
	h := host{Name: name, Group: g.Name, State: stateUnknown, Seen: "never"}
	at := slices.IndexFunc(g.Status.Members, func(m v1alpha1.NodeGroupMember) bool { return m.Name == name })
	if at < 0 {
		return h
	}
	m := &g.Status.Members[at]
	h.State, h.Message, h.Version = stateNotReady, m.Message, m.Version
	if m.Ready {
		h.State = stateReady
	}
	if slices.Contains(g.Spec.CordonedNodes, name) {
		h.State = stateCordoned
	}
	if m.CacheCapacityBytes > 0 {
		h.Cache = v1alpha1.HumanBytes(m.CacheAllocatedBytes) + " of " + v1alpha1.HumanBytes(m.CacheCapacityBytes)
	}
	h.Dirty, h.Replicas, h.Attached = v1alpha1.HumanBytes(m.DirtyBytes), int(m.Volumes), int(m.Primaries)
	h.Filled = share(m.CacheAllocatedBytes, m.CacheCapacityBytes)
	if m.LastSeen != nil {
		h.Seen = moment(m.LastSeen.Time)
		if m.Ready && now.Sub(m.LastSeen.Time) < seenOften {
			h.Seen = ""
		}
	}
	return h
}

// links adds to each shown host with which others it shares volumes.
func (v *view) links(b *board) {
	shared := map[[2]string]*link{}
	for i := range b.Volumes {
		one := &b.Volumes[i]
		if one.Status.Epoch == 0 {
			continue
		}
		lost := slices.ContainsFunc(one.Spec.Replicas, one.Status.IsOutdated)
		for _, from := range one.Spec.Replicas {
			for _, to := range one.Spec.Replicas {
				if from == to {
					continue
				}
				l := shared[[2]string{from, to}]
				if l == nil {
					l = &link{To: to}
					shared[[2]string{from, to}] = l
				}
				l.Volumes++
				l.Lost += b2i(lost)
			}
		}
	}
	for i := range v.Hosts {
		h := &v.Hosts[i]
		for _, other := range b.groupOf[h.Group].Spec.Nodes {
			if l := shared[[2]string{h.Name, other}]; l != nil {
				h.Links = append(h.Links, *l)
			}
		}
	}
}
