package supervisor

import (
	"strings"
	"testing"

	"github.com/escache/escache-csi/test/lab/labclient"
)

func TestACutDropsWhatItSaysInBothDirectionsOrOne(t *testing.T) {
	tests := map[string]struct {
		cut   cut
		rules map[string][]string // by hook
	}{
		"from everything": {
			cut{node: 0, peer: -1},
			map[string][]string{
				"input":   {`iifname "n1-data"`},
				"forward": {`iifname "n1-data"`, `oifname "n1-data"`},
				"output":  {`oifname "n1-data"`},
			},
		},
		"from everything, one way": {
			cut{node: 0, peer: -1, Cut: labclient.Cut{OneWay: true}},
			map[string][]string{"input": {`iifname "n1-data"`}, "forward": {`iifname "n1-data"`}},
		},
		"from a node": {
			cut{node: 0, peer: 1, Cut: labclient.Cut{From: "n2"}},
			map[string][]string{"forward": {`iifname "n1-data" oifname "n2-data"`, `oifname "n1-data" iifname "n2-data"`}},
		},
		"from a node, one way": {
			cut{node: 0, peer: 1, Cut: labclient.Cut{From: "n2", OneWay: true}},
			map[string][]string{"forward": {`iifname "n1-data" oifname "n2-data"`}},
		},
		"from Ceph": {
			cut{node: 2, peer: -1, Cut: labclient.Cut{From: labclient.CutCeph}},
			map[string][]string{
				"input":  {`iifname "n3-data" ip protocol tcp tcp dport != ` + controlPlanePorts + ` tcp sport != ` + controlPlanePorts},
				"output": {`oifname "n3-data" ip protocol tcp tcp dport != ` + controlPlanePorts + ` tcp sport != ` + controlPlanePorts},
			},
		},
		"from the control plane": {
			cut{node: 0, peer: -1, Cut: labclient.Cut{From: labclient.CutControlPlane}},
			map[string][]string{
				"input":  {`iifname "n1-data" tcp dport ` + controlPlanePorts, `iifname "n1-data" tcp sport ` + controlPlanePorts},
				"output": {`oifname "n1-data" tcp sport ` + controlPlanePorts, `oifname "n1-data" tcp dport ` + controlPlanePorts},
			},
		},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			for _, hook := range []string{"input", "forward", "output"} {
				got, want := strings.Join(test.cut.rules(hook), "\n"), strings.Join(test.rules[hook], "\n")
				if got != want {
					t.Errorf("%s:\n%s\nnot\n%s", hook, got, want)
				}
			}
		})
	}
}

func TestHealingRemovesTheTable(t *testing.T) {
	if rules := ruleset(nil); strings.Contains(rules, "chain") || !strings.Contains(rules, "delete table bridge lab") {
		t.Errorf("rules without a cut:\n%s", rules)
	}
}

func TestBothEndsOfACutKnowOfIt(t *testing.T) {
	n := network{cuts: []cut{
		{node: 0, peer: 1, Cut: labclient.Cut{From: "n2", OneWay: true}},
		{node: 2, peer: 0, Cut: labclient.Cut{From: "n1"}},
		{node: 1, peer: -1, Cut: labclient.Cut{From: labclient.CutCeph}},
	}}
	for node, want := range []string{"sends nothing to n2, cut from n3", "hears nothing from n1, cut from ceph", "cut from n1"} {
		if got := strings.Join(n.of(node), ", "); got != want {
			t.Errorf("%s: %q, not %q", nodeName(node), got, want)
		}
	}
}
