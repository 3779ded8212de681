package preflight

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/checklist"
)

// fresh is how old the record that a host answers may be. csi-controller renews it every minute.
const fresh = 2 * time.Minute

// groups checks each NodeGroup and each of its hosts.
func (c *Cluster) groups(ctx context.Context) []checklist.Result {
	all := &v1alpha1.NodeGroupList{}
	if err := c.API.List(ctx, all); err != nil {
		return []checklist.Result{unread(err)}
	}
	slices.SortFunc(all.Items, func(a, b v1alpha1.NodeGroup) int { return cmp.Compare(a.Name, b.Name) })
	owner, addresses := map[string]string{}, map[string]string{}
	var results []checklist.Result
	for i := range all.Items {
		g := &all.Items[i]
		var found []checklist.Result
		for _, name := range g.Spec.Nodes {
			host := &host{Cluster: c, group: g, name: name}
			found = append(found, host.check(ctx, owner, addresses)...)
			owner[name] = cmp.Or(owner[name], g.Name)
		}
		if c.Group == "" || c.Group == g.Name {
			results = append(append(results, wholeGroup(g).Of("group "+g.Name)), found...)
		}
	}
	switch {
	case len(results) > 0:
		return results
	case c.Group != "":
		return []checklist.Result{checklist.Badf(checklist.Failed, "kubectl get nodegroups lists them", "there is no NodeGroup %s",
			c.Group)}
	}
	return []checklist.Result{checklist.Badf(checklist.Failed,
		"make one of 3 to 16 hosts: nodeGroups in the chart's values, or a NodeGroup object",
		"there is none: no volume can be placed")}
}

func wholeGroup(g *v1alpha1.NodeGroup) checklist.Result {
	blocked := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupDeletionBlocked)
	ready := meta.FindStatusCondition(g.Status.Conditions, v1alpha1.GroupReady)
	switch {
	case blocked != nil && blocked.Status == metav1.ConditionTrue:
		return checklist.Badf(checklist.Warning, "do what the message says; docs/hosts has the commands", "%s", blocked.Message)
	case g.Closed():
		return checklist.Badf(checklist.Warning, "kubectl escache uncordon "+g.Name+" opens it for new volumes",
			"cordoned: it takes no new volumes")
	case ready == nil:
		return checklist.Badf(checklist.Failed, "see why csi-controller does not lead", "csi-controller has not looked at it yet")
	case ready.Status != metav1.ConditionTrue:
		return checklist.Badf(checklist.Failed, "see its hosts, below", "no volume can be placed: %s", ready.Message)
	}
	return checklist.Goodf("%d hosts, takes new volumes", len(g.Spec.Nodes))
}

// host is one host of a group.
type host struct {
	*Cluster

	group *v1alpha1.NodeGroup
	name  string
	found []checklist.Result
}

func (h *host) sayf(state checklist.State, remedy, format string, args ...any) {
	h.found = append(h.found, checklist.Badf(state, remedy, format, args...).Of("host "+h.name))
}

// check returns all that is wrong with a host, or one result that nothing is. owner and addresses have the
// hosts that were checked before, and their groups; it adds the address of this one.
func (h *host) check(ctx context.Context, owner, addresses map[string]string) []checklist.Result {
	if other := owner[h.name]; other != "" {
		h.sayf(checklist.Failed, "take it out of one of them", "it is in group %s and in %s", other, h.group.Name)
		return h.found
	}
	node := &corev1.Node{}
	switch err := h.API.Get(ctx, client.ObjectKey{Name: h.name}, node); {
	case apierrors.IsNotFound(err):
		h.sayf(checklist.Failed, "correct spec.nodes of NodeGroup "+h.group.Name+", or join the host to the cluster",
			"Kubernetes has no node %s", h.name)
		return h.found
	case err != nil:
		return []checklist.Result{unread(err).Of("host " + h.name)}
	}
	h.checkNode(node)
	address, err := replicationAddress(node)
	switch {
	case err != nil:
		h.sayf(checklist.Failed,
			"set the annotation "+v1alpha1.AnnotationReplicationAddress+" of the node to its address on the replication network",
			"%v", err)
	case addresses[address] != "":
		h.sayf(checklist.Failed, "give each host an address of its own", "it replicates over %s, as %s does", address, addresses[address])
	default:
		addresses[address] = h.name
	}
	if err := h.checkRegistration(ctx); err != nil {
		return append(h.found, unread(err).Of("host "+h.name))
	}
	member := h.checkMember()
	if len(h.found) == 0 {
		return []checklist.Result{checklist.Goodf("ready; escached %s answers, %s of cache free, replicates over %s",
			cmp.Or(member.Version, "(no version)"), v1alpha1.HumanBytes(member.CacheCapacityBytes-member.CacheAllocatedBytes),
			address).Of("host " + h.name)}
	}
	return h.found
}

func (h *host) checkNode(node *corev1.Node) {
	at := slices.IndexFunc(node.Status.Conditions, func(c corev1.NodeCondition) bool { return c.Type == corev1.NodeReady })
	if at < 0 || node.Status.Conditions[at].Status != corev1.ConditionTrue {
		why := "its kubelet has not reported yet"
		if at >= 0 {
			why = cmp.Or(node.Status.Conditions[at].Message, node.Status.Conditions[at].Reason)
		}
		h.sayf(checklist.Failed, "see its kubelet: kubectl describe node "+h.name, "the node is not Ready: %s", why)
	}
	// The kubelet's own idea of the name, unless it was told another one.
	for _, name := range []string{addressOf(node, corev1.NodeHostName), node.Labels[corev1.LabelHostname]} {
		if name != "" && !strings.EqualFold(name, h.name) {
			h.sayf(checklist.Warning,
				"run uname -n on the host; if that is not "+h.name+", rename the host or the node: DRBD needs both names to be one",
				"its host name seems to be %s", name)
			return
		}
	}
}

func (h *host) checkRegistration(ctx context.Context) error {
	drivers := &storagev1.CSINode{}
	err := h.API.Get(ctx, client.ObjectKey{Name: h.name}, drivers)
	if client.IgnoreNotFound(err) != nil {
		return err
	}
	if !slices.ContainsFunc(drivers.Spec.Drivers, func(d storagev1.CSINodeDriver) bool { return d.Name == v1alpha1.DriverName }) {
		h.sayf(checklist.Failed,
			"label the node (kubectl label node "+h.name+" escache.io/host=true), then see its csi-node: kubectl -n "+h.Namespace+
				" get pods -o wide --field-selector spec.nodeName="+h.name, "csi-node has not registered there")
	}
	return nil
}

// checkMember looks at what csi-controller has heard of the host's escached.
func (h *host) checkMember() v1alpha1.NodeGroupMember {
	at := slices.IndexFunc(h.group.Status.Members, func(m v1alpha1.NodeGroupMember) bool { return m.Name == h.name })
	if at < 0 {
		h.sayf(checklist.Failed, "wait for csi-controller's next poll; if that does not help, see why it does not lead",
			"csi-controller has not called it yet")
		return v1alpha1.NodeGroupMember{}
	}
	m := h.group.Status.Members[at]
	switch {
	case slices.Contains(h.group.Spec.CordonedNodes, h.name):
		h.sayf(checklist.Warning, "kubectl escache uncordon "+h.name+" ends that",
			"cordoned, as for an evacuation: it takes no new replicas")
	case !m.Ready:
		h.sayf(checklist.Failed, "run escached preflight on the host (docs/install.md), and see its log", "%s", cmp.Or(m.Message,
			"escached is not ready"))
	case m.LastSeen == nil || h.Now().Sub(m.LastSeen.Time) > fresh:
		h.sayf(checklist.Failed, "see why no csi-controller works", "what is known of it is older than %s", fresh)
	}
	return m
}

// replicationAddress is where a host's links end, as csi-controller reads it.
func replicationAddress(node *corev1.Node) (string, error) {
	given := node.Annotations[v1alpha1.AnnotationReplicationAddress]
	address := cmp.Or(given, addressOf(node, corev1.NodeInternalIP))
	switch ip := net.ParseIP(address); {
	case address == "":
		return "", errors.New("the node has no InternalIP and no annotation with a replication address")
	case ip == nil:
		return "", fmt.Errorf("its replication address %q is not an IP address", address)
	case ip.IsLoopback() || ip.IsUnspecified():
		return "", fmt.Errorf("no other host reaches its replication address %s", ip)
	default:
		return ip.String(), nil
	}
}

func addressOf(node *corev1.Node, kind corev1.NodeAddressType) string {
	for _, a := range node.Status.Addresses {
		if a.Type == kind {
			return a.Address
		}
	}
	return ""
}
