package maintenance

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/manifest"
	"github.com/escache/escache-csi/internal/plugin/replacement"
	"github.com/escache/escache-csi/internal/records/trouble"
	"github.com/escache/escache-csi/internal/wordwrap"
)

// replacing is what replace-host was asked for.
type replacing struct {
	from, to      string
	apply, dryRun bool
}

// ReplaceHost returns the command replace-host.
func ReplaceHost(c *console.Console) *cobra.Command {
	var r replacing
	command := &cobra.Command{
		Use:   "replace-host OLD NEW",
		Short: "Check what follows when a host of a group is replaced by another, and do it",
		Long: "Check what follows when host OLD of a NodeGroup is replaced by NEW. It says which volumes have a copy on OLD, what\n" +
			"becomes of each, whether NEW can take the place, and which steps to take in which order. It judges by what is on record,\n" +
			"and changes nothing without --apply. It fails while something speaks against it, such as data that only OLD has.\n\n" +
			"If the NodeGroup is managed by Helm, Argo CD or Flux, change it where these read it: it prints the values, and\n" +
			"--apply is refused.\n" +
			"You may repeat the command: after the change it says what is left on OLD.",
		Example: "  kubectl escache replace-host n3 n4\n  kubectl escache replace-host n3 n4 --apply",
		Args: func(command *cobra.Command, args []string) error {
			switch {
			case len(args) != 2:
				return fmt.Errorf("%w: name two hosts: %s OLD NEW", failure.ErrUsage, command.CommandPath())
			case r.apply && r.dryRun:
				return fmt.Errorf("%w: choose one of --apply and --dry-run", failure.ErrUsage)
			}
			r.from, r.to = args[0], args[1]
			return nil
		},
		RunE: func(command *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			return runReplace(command.Context(), c, api, r)
		},
	}
	command.Flags().BoolVar(&r.apply, "apply", false, "change the NodeGroup, if nothing speaks against it")
	command.Flags().BoolVar(&r.dryRun, "dry-run", false, "have the API server check the change and your permission, too, without making it")
	return command
}

func runReplace(ctx context.Context, c *console.Console, api client.Client, r replacing) error {
	records, err := recordsOf(ctx, c, api, r)
	if err != nil {
		return err
	}
	p, err := replacement.New(r.from, r.to, records)
	if err != nil {
		return err
	}
	printReplacement(c, p)
	against, by := p.Refusals(), manifest.ManagedBy(p.Group)
	switch {
	case p.Done:
		printSteps(c, p, by, true)
		return nil
	case len(against) > 0:
		if !r.apply {
			printSteps(c, p, by, false)
		}
		return fmt.Errorf("host %s cannot be replaced yet: %s; nothing was changed", p.Old, speaks(len(against)))
	case !r.apply && !r.dryRun:
		printSteps(c, p, by, false)
		return nil
	case r.apply && by != "":
		printSteps(c, p, by, false)
		return fmt.Errorf("nothing was changed: NodeGroup %s is managed by %s, which puts %s back sooner or later, or fails "+
			"at a change that is not its own. Change it there, as said above", p.Group.Name, by, p.Old)
	}
	if err := changeNodes(ctx, api, p, r.dryRun); err != nil {
		return err
	}
	if r.dryRun {
		c.Printf("\ndry run: the API server takes the change, and nothing was changed\n")
		return nil
	}
	c.Printf("\nNodeGroup %s has the nodes %s now.\n", p.Group.Name, list(p.Nodes))
	printSteps(c, p, by, true)
	return nil
}

// recordsOf reads what a plan is made from. What the user may not read of the new host is left out.
func recordsOf(ctx context.Context, c *console.Console, api client.Reader, asked replacing) (replacement.Records, error) {
	groups, volumes := &v1alpha1.NodeGroupList{}, &v1alpha1.CacheVolumeList{}
	for _, list := range []client.ObjectList{groups, volumes} {
		if err := api.List(ctx, list); err != nil {
			return replacement.Records{}, err
		}
	}
	r := replacement.Records{Groups: groups.Items, Volumes: volumes.Items, Now: c.Now()}
	err := api.Get(ctx, client.ObjectKey{Name: evacuation(asked.from)}, &v1alpha1.CacheFlush{})
	if client.IgnoreNotFound(err) != nil {
		return r, err
	}
	r.Evacuated = err == nil
	node, drivers := &corev1.Node{}, &storagev1.CSINode{}
	for _, o := range []client.Object{node, drivers} {
		switch err := api.Get(ctx, client.ObjectKey{Name: asked.to}, o); {
		case apierrors.IsForbidden(err):
			r.Unread = true
		case client.IgnoreNotFound(err) != nil:
			return r, err
		}
	}
	if node.Name != "" {
		r.Node = node
	}
	if drivers.Name != "" {
		r.Drivers = drivers
	}
	return r, nil
}

// changeNodes gives the group its new nodes, unless somebody has changed it since it was read.
func changeNodes(ctx context.Context, api client.Client, p *replacement.Plan, dryRun bool) error {
	g := p.Group.DeepCopy()
	g.Spec.Nodes, g.Spec.CordonedNodes = p.Nodes, p.CordonedNodes
	var options []client.PatchOption
	if dryRun {
		options = append(options, client.DryRunAll)
	}
	err := api.Patch(ctx, g, client.MergeFromWithOptions(p.Group, client.MergeFromWithOptimisticLock{}), options...)
	if apierrors.IsConflict(err) {
		return fmt.Errorf("NodeGroup %s was changed meanwhile, and not by this command: repeat it", g.Name)
	}
	return err
}

func printReplacement(c *console.Console, p *replacement.Plan) {
	g := p.Group
	if p.Done {
		c.Printf("Group %s has %s in the place of %s already.\n", g.Name, p.New, p.Old)
	} else {
		c.Printf("Host %s of group %s makes way for %s: its nodes %s become %s.\n", p.Old, g.Name, p.New, list(g.Spec.Nodes), list(p.Nodes))
	}
	screen, _ := c.Screen()
	c.Printf("\n%s", wordwrap.Line(oldHost(p, c), "  ", screen.Width))
	for _, fate := range fatesOf(p) {
		c.Printf("%s%s", wordwrap.Line("  "+fate.Is+": "+fate.Name, "    ", screen.Width),
			wordwrap.Line("    -> "+fate.Then, "       ", screen.Width))
	}
	for _, note := range p.Notes {
		c.Printf("%s", wordwrap.Line("Note: "+note, "  ", screen.Width))
	}
	against := p.Refusals()
	switch {
	case p.Done:
	case len(against) == 0:
		c.Printf("\nNothing speaks against it.\n")
	default:
		c.Printf("\nWhat speaks against it, and what to do:\n")
		for _, r := range against {
			c.Printf("%s%s", wordwrap.Line("  "+r.Where+": "+r.What, "    ", screen.Width),
				wordwrap.Line("    -> "+r.Todo, "       ", screen.Width))
		}
	}
}

// fatesOf returns the volumes that nothing speaks against. Those of one fate are one, with all their names.
func fatesOf(p *replacement.Plan) []replacement.Volume {
	var all []replacement.Volume
	for _, v := range p.Volumes {
		at := slices.IndexFunc(all, func(other replacement.Volume) bool { return other.Is == v.Is && other.Then == v.Then })
		switch {
		case v.Refused:
		case at < 0:
			all = append(all, v)
		default:
			all[at].Name += ", " + v.Name
		}
	}
	return all
}

// oldHost says what is known of the host that goes.
func oldHost(p *replacement.Plan, c *console.Console) string {
	has := "has no copy of a volume of the group"
	if n := len(p.Volumes); n > 0 {
		has = fmt.Sprintf("has a copy of %s of the group, with caches of %s", trouble.Count(n, "volume"), v1alpha1.HumanBytes(p.CacheBytes))
	}
	if p.Done {
		if len(p.Volumes)+len(p.Notes) == 0 {
			has += ": it can be switched off"
		}
		return p.Old + " " + has
	}
	if p.OldAnswers {
		return p.Old + " answers, and " + has
	}
	seen := "never seen"
	if at := slices.IndexFunc(p.Group.Status.Members, func(m v1alpha1.NodeGroupMember) bool { return m.Name == p.Old }); at >= 0 {
		seen = "last seen " + console.Ago(p.Group.Status.Members[at].LastSeen, c.Now())
	}
	return fmt.Sprintf("%s does not answer (%s), and %s", p.Old, seen, has)
}

// printSteps says what to do, in which order. changed means that the group has its new nodes.
func printSteps(c *console.Console, p *replacement.Plan, by string, changed bool) {
	var steps []string
	switch {
	case changed:
	case p.OldAnswers:
		steps = append(steps, "kubectl escache evacuate "+p.Old+" --wait",
			"kubectl drain "+p.Old+" --ignore-daemonsets --delete-emptydir-data")
	default:
		steps = append(steps, "If pods on "+p.Old+" do not move, tell Kubernetes that it is dead: docs/hosts/host-died.md")
	}
	values := len(steps)
	switch {
	case changed:
	case by != "":
		steps = append(steps, "The NodeGroup is managed by "+by+
			". Change it there (in the chart's values, or spec.nodes), and roll that out:")
	default:
		steps = append(steps, "kubectl escache replace-host "+p.Old+" "+p.New+
			" --apply, or change the nodes in your files, if you have any")
	}
	steps = append(steps, laterSteps(p, changed)...)
	if len(steps) == 0 {
		return
	}
	head := "What to do, in this order"
	if changed {
		head = "What is left to do"
	}
	c.Printf("\n%s:\n", head)
	screen, _ := c.Screen()
	for i, step := range steps {
		c.Printf("%s", wordwrap.Line(fmt.Sprintf("  %d. %s", i+1, step), "     ", screen.Width))
		if i == values && !changed && by != "" {
			c.Printf("         nodeGroups:\n           - name: %s\n             nodes: %s # was %s\n", p.Group.Name, list(p.Nodes),
				list(p.Group.Spec.Nodes))
		}
	}
}

// laterSteps are the steps after the change.
func laterSteps(p *replacement.Plan, changed bool) []string {
	var steps []string
	switch {
	case !p.OldAnswers && !p.Done:
		steps = append(steps, "kubectl escache repair --host="+p.Old+", if lost copies are not replaced by themselves")
	case len(p.Volumes) > 0:
		steps = append(steps, "Restart the pods of volumes that have a copy on "+p.Old+", one after the other")
	}
	if !p.Done || len(p.Volumes) > 0 {
		steps = append(steps, fmt.Sprintf(
			"kubectl escache status -o wide, until %s is Ready and no attached or dirty volume has a copy on %s", p.New, p.Old))
	}
	if p.Evacuated || !changed && p.OldAnswers {
		steps = append(steps, "kubectl escache uncordon "+p.Old+", which ends its evacuation; then it can be switched off")
	}
	return steps
}

func list(nodes []string) string { return "[" + strings.Join(nodes, ", ") + "]" }

func speaks(n int) string {
	if n == 1 {
		return "1 thing speaks against it"
	}
	return fmt.Sprintf("%d things speak against it", n)
}
