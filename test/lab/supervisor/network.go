package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"sync"

	"github.com/escache/escache-csi/test/lab/labclient"
)

// Bridges: over data goes what a cut can stop, over mgmt only the lab's own commands.
const (
	dataBridge = "data"
	mgmtBridge = "mgmt"
)

// controlPlanePorts are the ones that tell the control plane's traffic from Ceph's, since both are
// at CentralAddress: the Kubernetes API, the arbiter, and what controllers call on the nodes
// (escached and the kubelet).
const controlPlanePorts = "{ 443, 6443, 7443, 7790, 10250 }"

// network is the lab's: two bridges with a tap for each node. It lives in the supervisor's network
// namespace and ends with it.
type network struct {
	mu   sync.Mutex
	cuts []cut
}

// cut is one that is in force.
type cut struct {
	labclient.Cut

	node int
	peer int // index of the node that From names, or -1
}

func (c cut) String() string {
	target := c.From
	if target == "" {
		target = "everything"
	}
	switch {
	case c.Slow:
		return "slow to " + target
	case c.OneWay:
		return "sends nothing to " + target
	}
	return "cut from " + target
}

// create makes bridges and taps for some nodes.
func (n *network) create(ctx context.Context, nodes int) error {
	var script strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&script, format+"\n", args...) }
	line("link set lo up")
	for bridge, network := range map[string]string{dataBridge: dataNetwork, mgmtBridge: mgmtNetwork} {
		line("link add %s type bridge mcast_snooping 0", bridge)
		line("addr add %s/24 dev %s", network+hostNumber, bridge)
		line("link set %s up", bridge)
	}
	for i := range nodes {
		for tap, bridge := range map[string]string{dataTap(i): dataBridge, mgmtTap(i): mgmtBridge} {
			line("tuntap add %s mode tap vnet_hdr", tap)
			line("link set %s master %s up", tap, bridge)
		}
		// A known neighbour is reached with the first packet after its boot; one that has to be
		// asked for costs a second.
		line("neigh add %s lladdr %s dev %s nud permanent", mgmtAddress(i), mgmtMAC(i), mgmtBridge)
	}
	return feed(ctx, script.String(), "ip", "-batch", "-")
}

// add puts a cut in force beside those that are.
func (n *network) add(ctx context.Context, c cut) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if slices.Contains(n.cuts, c) {
		return nil
	}
	cuts := append(slices.Clone(n.cuts), c)
	if err := apply(ctx, cuts); err != nil {
		return err
	}
	n.cuts = cuts
	return nil
}

// heal undoes all cuts.
func (n *network) heal(ctx context.Context) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if err := apply(ctx, nil); err != nil {
		return err
	}
	n.cuts = nil
	return nil
}

// of lists the cuts that a node feels.
func (n *network) of(node int) []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	var texts []string
	for _, c := range n.cuts {
		switch {
		case c.node == node:
			texts = append(texts, c.String())
		case c.peer == node && c.Slow:
			texts = append(texts, "slow to "+nodeName(c.node))
		case c.peer == node && c.OneWay:
			texts = append(texts, "hears nothing from "+nodeName(c.node))
		case c.peer == node:
			texts = append(texts, "cut from "+nodeName(c.node))
		}
	}
	return texts
}

// apply replaces all rules in one transaction.
func apply(ctx context.Context, cuts []cut) error { return feed(ctx, ruleset(cuts), "nft", "-f", "-") }

// ruleset writes rules that drop packets on the data bridge: between nodes they are forwarded by
// it, between a node and the centre they come in or go out.
func ruleset(cuts []cut) string {
	var rules strings.Builder
	rules.WriteString("table bridge lab\ndelete table bridge lab\n")
	if len(cuts) == 0 {
		return rules.String()
	}
	rules.WriteString("table bridge lab {\n")
	for _, hook := range []string{"input", "forward", "output"} {
		fmt.Fprintf(&rules, "\tchain %s {\n\t\ttype filter hook %s priority 0;\n", hook, hook)
		for _, c := range cuts {
			for _, rule := range c.rules(hook) {
				fmt.Fprintf(&rules, "\t\t%s %s\n", rule, c.verdict())
			}
		}
		rules.WriteString("\t}\n")
	}
	rules.WriteString("}\n")
	return rules.String()
}

// verdict is what happens to the packets that a cut's rules match.
func (c cut) verdict() string {
	if c.Slow {
		return fmt.Sprintf("limit rate over %d kbytes/second burst 64 kbytes drop", labclient.SlowRate)
	}
	return "drop"
}

// rules are a cut's matches on one hook.
func (c cut) rules(hook string) []string {
	from, to := fmt.Sprintf("iifname %q", dataTap(c.node)), fmt.Sprintf("oifname %q", dataTap(c.node))
	var sent, received []string
	switch {
	case c.peer >= 0:
		if hook == "forward" {
			sent = []string{from + fmt.Sprintf(" oifname %q", dataTap(c.peer))}
			received = []string{to + fmt.Sprintf(" iifname %q", dataTap(c.peer))}
		}
	case c.From == labclient.CutControlPlane:
		sent = []string{from + " tcp dport " + controlPlanePorts, from + " tcp sport " + controlPlanePorts}
		received = []string{to + " tcp sport " + controlPlanePorts, to + " tcp dport " + controlPlanePorts}
	case c.From == labclient.CutCeph:
		rest := " ip protocol tcp tcp dport != " + controlPlanePorts + " tcp sport != " + controlPlanePorts
		sent, received = []string{from + rest}, []string{to + rest}
	default:
		sent, received = []string{from}, []string{to}
	}
	central := c.From == labclient.CutCeph || c.From == labclient.CutControlPlane
	var all []string
	if hook == "input" || hook == "forward" && !central {
		all = append(all, sent...)
	}
	if !c.OneWay && (hook == "output" || hook == "forward" && !central) {
		all = append(all, received...)
	}
	return all
}

// feed runs a command with a script as its input.
func feed(ctx context.Context, script, name string, args ...string) error {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Stdin = strings.NewReader(script)
	var complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &complaints, &complaints
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("network: %s: %w: %s", name, err, bytes.TrimSpace(complaints.Bytes()))
	}
	return nil
}
