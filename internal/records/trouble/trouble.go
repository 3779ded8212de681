// Package trouble finds what is wrong in the records of the driver, and says what to do about it. It
// is pure.
package trouble

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/records/remedy"
	"github.com/escache/escache-csi/internal/shortlist"
)

// Kinds of what can have a trouble.
const (
	Driver = "driver"
	Host   = "host"
	Group  = "group"
	Volume = "volume"
	Flush  = "flush"
)

// Trouble is one thing that is wrong.
type Trouble struct {
	// Kind and Name say which object has it.
	Kind, Name string
	// Reason is one word for it.
	Reason string
	// What is wrong, and what to do about it.
	What, Todo string
	// Several is what to do if several objects have the same trouble: nothing is named in it.
	Several string
	// Gravity orders troubles: the lower, the graver.
	Gravity int
}

// At returns the trouble that a condition of that type with that reason tells of. what is its message.
func At(kind, name, condition, reason, what string, at remedy.Place, how remedy.Escached) Trouble {
	return Trouble{
		Kind: kind, Name: name, Reason: reason, What: what, Todo: remedy.Of(condition, reason, at, how),
		Several: remedy.Of(condition, reason, remedy.Place{}, how), Gravity: remedy.Gravity(condition, reason),
	}
}

// OfGroup returns what is wrong with a group, and with its hosts.
func OfGroup(g *v1alpha1.NodeGroup, how remedy.Escached, now time.Time) []Trouble {
	var all []Trouble
	for _, m := range g.Status.Members {
		if !m.Ready && !slices.Contains(g.Spec.CordonedNodes, m.Name) {
			all = append(all, At(Host, m.Name, "", hostReason(g, m), m.Message, remedy.Place{Host: m.Name, Group: g.Name}, how))
		}
		if end := m.CertificateEnd; end != nil && end.Sub(now) < checklist.CertificateEndsSoon {
			all = append(all, At(Host, m.Name, "", remedy.HostCertificateEnds, "the certificate of its escached "+Ends(end.Time, now),
				remedy.Place{Host: m.Name, Group: g.Name}, how))
		}
	}
	add := func(condition, reason, what string) {
		all = append(all, At(Group, g.Name, condition, reason, what, remedy.Place{Group: g.Name}, how))
	}
	if n := len(g.Status.StaleReplicas); n > 0 {
		add("", remedy.StaleReplicas, fmt.Sprintf("%d stale replicas wait for their host, to be removed", n))
	}
	for kind, wrong := range map[string]metav1.ConditionStatus{
		v1alpha1.GroupReady: metav1.ConditionFalse, v1alpha1.GroupRedundant: metav1.ConditionFalse,
		v1alpha1.GroupDeletionBlocked: metav1.ConditionTrue, v1alpha1.GroupFormerMembers: metav1.ConditionTrue,
	} {
		c := meta.FindStatusCondition(g.Status.Conditions, kind)
		if c != nil && c.Status == wrong && !meant(kind, c.Reason) {
			add(kind, c.Reason, c.Message)
		}
	}
	return all
}

// Ends says when a certificate ends, as a part of a sentence.
func Ends(at, now time.Time) string {
	day := at.UTC().Format(time.DateOnly)
	if now.After(at) {
		return fmt.Sprintf("ended %s ago (%s)", duration.HumanDuration(now.Sub(at)), day)
	}
	return fmt.Sprintf("ends in %s (%s)", duration.HumanDuration(at.Sub(now)), day)
}

// meant reports whether a group takes nothing new because somebody wants it so: the table of hosts, or
// another condition, says that.
func meant(kind, reason string) bool {
	return kind == v1alpha1.GroupReady && (reason == "Cordoned" || reason == "Deleted")
}

// hostReason returns the reason why a host is not ready. The group's condition has only one: it is the
// host's own if no other host is in the same message.
func hostReason(g *v1alpha1.NodeGroup, m v1alpha1.NodeGroupMember) string {
	c := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupDegraded)
	if c != nil && c.Status == metav1.ConditionTrue && c.Message == m.Message && c.Reason != "" {
		return c.Reason
	}
	return remedy.NotReady
}

// silence is how old the newest record of a host may be: longer than the minute after which
// csi-controller records that a host goes on answering.
const silence = 3 * time.Minute

// OfDriver returns what is wrong with the driver as a whole.
func OfDriver(groups []v1alpha1.NodeGroup, how remedy.Escached, now time.Time) []Trouble {
	var newest time.Time
	versions := map[string][]string{}
	for i := range groups {
		for _, m := range groups[i].Status.Members {
			if m.Ready && m.LastSeen != nil && m.LastSeen.After(newest) {
				newest = m.LastSeen.Time
			}
			if m.Ready && m.Version != "" {
				versions[m.Version] = append(versions[m.Version], m.Name)
			}
		}
	}
	var all []Trouble
	if !newest.IsZero() && now.Sub(newest) > silence {
		all = append(all, At(Driver, "csi-controller", "", remedy.NoController, "no host has been on record as seen for "+
			now.Sub(newest).Truncate(time.Second).String()+": no csi-controller works, and all that follows is as old",
			remedy.Place{}, how))
	}
	if len(versions) > 1 {
		all = append(all, At(Driver, "escached", "", remedy.VersionsDiffer, Versions(versions), remedy.Place{}, how))
	}
	return all
}

// Versions says which versions hosts have, the most frequent first.
func Versions(hosts map[string][]string) string {
	names := make([]string, 0, len(hosts))
	for version := range hosts {
		names = append(names, version)
	}
	slices.SortFunc(names, func(a, b string) int {
		return cmp.Or(cmp.Compare(len(hosts[b]), len(hosts[a])), cmp.Compare(a, b))
	})
	parts := make([]string, 0, len(names))
	for i, version := range names {
		where := fmt.Sprintf("%d hosts", len(hosts[version]))
		if few := Few(hosts[version]); i > 0 || len(names) == 1 && len(hosts[version]) == 1 {
			where = few
		}
		parts = append(parts, version+" on "+where)
	}
	return strings.Join(parts, ", ")
}

// few is how many names are told before "and N more".
const few = 3

// Few joins names, at most three.
func Few(names []string) string {
	slices.Sort(names)
	return shortlist.First(few, names)
}

// OfFlush returns the volumes that could not be written back, or else why the whole flush failed.
func OfFlush(f *v1alpha1.CacheFlush, how remedy.Escached) []Trouble {
	var all []Trouble
	add := func(reason, what string) {
		all = append(all, At(Flush, f.Name, v1alpha1.FlushConditionComplete, reason, what, remedy.Place{}, how))
	}
	for _, v := range f.Status.Volumes {
		if v.Phase == v1alpha1.FlushFailed {
			reason := "VolumesFailed"
			if f.Spec.Mode == v1alpha1.FlushModeTrim {
				reason = "NotTrimmed"
			}
			add(reason, v.Name+": "+v.Message)
		}
	}
	c := meta.FindStatusCondition(f.Status.Conditions, v1alpha1.FlushConditionComplete)
	if len(all) == 0 && f.Status.Phase == v1alpha1.FlushFailed && c != nil {
		add(c.Reason, c.Message)
	}
	return all
}
