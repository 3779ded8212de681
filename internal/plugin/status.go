package plugin

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/cli-runtime/pkg/printers"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/redundancy"
)

// pollInterval is the time between two reads with --watch and --wait.
const pollInterval = 2 * time.Second

func (c *cli) status() *cobra.Command {
	var output string
	var watch bool
	command := &cobra.Command{
		Use:   "status",
		Short: "Show groups, hosts, volumes, flushes, and what is wrong",
		Args:  noArgs,
		Example: `  kubectl escache status
  kubectl escache status --watch
  kubectl escache status -o json`,
		RunE: func(command *cobra.Command, _ []string) error {
			if !slices.Contains([]string{"", "table", "wide", "json", "yaml", "name"}, output) {
				return fmt.Errorf("%w: -o %s is none of table, wide, json, yaml and name", errUsage, output)
			}
			return c.showStatus(command.Context(), output, watch)
		},
	}
	command.Flags().StringVarP(&output, "output", "o", "", "table, wide, json, yaml or name")
	command.Flags().BoolVarP(&watch, "watch", "w", false, "keep showing changes until interrupted")
	_ = command.RegisterFlagCompletionFunc("output",
		cobra.FixedCompletions([]string{"table", "wide", "json", "yaml", "name"}, cobra.ShellCompDirectiveNoFileComp))
	return command
}

func (c *cli) showStatus(ctx context.Context, output string, watch bool) error {
	api, err := c.connect()
	if err != nil {
		return err
	}
	last := ""
	for {
		s, err := readState(ctx, api, c.now())
		if err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // interrupted: that is how --watch ends
			}
			return err
		}
		screen, isTerminal := c.terminal()
		var text strings.Builder
		if err := s.print(&text, output, c.now(), screen.width); err != nil {
			return err
		}
		switch {
		case !watch:
			c.printf("%s", text.String())
			return nil
		case isTerminal:
			c.printf("%s", screen.redraw(text.String()))
		case text.String() != last:
			c.printf("%s\n", text.String())
		}
		last = text.String()
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pollInterval):
		}
	}
}

// print writes the state. It wraps sentences to the width, unless that is 0.
func (s *state) print(w io.Writer, output string, now time.Time, width int) error {
	switch output {
	case "json":
		return (&printers.JSONPrinter{}).PrintObj(s.list(), w)
	case "yaml":
		return (&printers.YAMLPrinter{}).PrintObj(s.list(), w)
	case "name":
		for _, item := range s.list().Items {
			kind := strings.ToLower(item.Object.GetObjectKind().GroupVersionKind().Kind)
			o, err := meta.Accessor(item.Object)
			if err != nil {
				return err
			}
			if _, err := fmt.Fprintf(w, "%s.%s/%s\n", kind, v1alpha1.GroupName, o.GetName()); err != nil {
				return err
			}
		}
		return nil
	default:
		if err := s.table(w, output == "wide", now); err != nil {
			return err
		}
		if err := s.printProblems(w, width); err != nil {
			return err
		}
		return s.printUnnamed(w, now, width)
	}
}

// list returns the state as one List object, like kubectl get for several objects.
func (s *state) list() *corev1.List {
	all := &corev1.List{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "List"}}
	add := func(kind string, o runtime.Object) {
		o.GetObjectKind().SetGroupVersionKind(v1alpha1.GroupVersion().WithKind(kind))
		if m, err := meta.Accessor(o); err == nil {
			m.SetManagedFields(nil)
		}
		all.Items = append(all.Items, runtime.RawExtension{Object: o})
	}
	for i := range s.groups {
		add("NodeGroup", &s.groups[i])
	}
	for i := range s.volumes {
		add("CacheVolume", &s.volumes[i])
	}
	for i := range s.flushes {
		add("CacheFlush", &s.flushes[i])
	}
	return all
}

func (s *state) table(out io.Writer, wide bool, now time.Time) error {
	row, flush := table(out)
	if len(s.groups) == 0 {
		row("no NodeGroups: create one of 3 to 16 hosts, then volumes can be placed")
	} else {
		s.hosts(row, now)
	}
	if len(s.volumes) == 0 {
		row("")
		row("no volumes")
	} else {
		row("")
		head := []string{"VOLUME", "CLAIM", "HOST", "TRUTH", "DIRTY", "REDUNDANT", "HEALTHY"}
		if wide {
			head = append(head, "GROUP", "REPLICAS", "OUTDATED", "EPOCH", "ENGINE", "IMAGE")
		}
		row(head...)
		for i := range s.volumes {
			row(s.volumeRow(&s.volumes[i], wide, now)...)
		}
	}
	if len(s.flushes) > 0 {
		row("")
		row("FLUSH", "MODE", "PHASE", "DONE", "VOLUMES", "LEFT", "RATE", "REMAINING")
		for i := range s.flushes {
			f := &s.flushes[i].Status
			row(s.flushes[i].Name, string(s.flushes[i].Spec.Mode), cmp.Or(string(f.Phase), "Pending"), fmt.Sprintf("%d%%", f.Percent),
				cmp.Or(f.Summary.Volumes, "-"), cmp.Or(f.Summary.Left, "-"), cmp.Or(f.Summary.Rate, "-"), cmp.Or(f.Summary.Remaining, "-"))
		}
	}
	return flush()
}

func (s *state) printProblems(out io.Writer, width int) error {
	problems := s.problems()
	if len(problems) == 0 {
		_, err := fmt.Fprintln(out, "\nNothing is wrong.")
		return err
	}
	_, _ = fmt.Fprintln(out, "\nWhat is wrong, and what to do:")
	for _, t := range problems {
		_, err := fmt.Fprint(out, wrap("  "+t.where+": "+t.what, "    ", width), wrap("    -> "+t.todo, "       ", width))
		if err != nil {
			return err
		}
	}
	return nil
}

// printUnnamed names the volumes that no PersistentVolume names. That is no fault: it is how a volume
// ends whose reclaim policy is Retain.
func (s *state) printUnnamed(out io.Writer, now time.Time, width int) error {
	if s.uses == nil {
		return nil
	}
	var names []string
	for i := range s.volumes {
		v := &s.volumes[i]
		if s.uses[v.Name].persistentVolume == "" && now.Sub(v.CreationTimestamp.Time) >= minimumAge {
			names = append(names, v.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	_, err := fmt.Fprint(out, wrap("\nNo PersistentVolume names "+strings.Join(names, ", ")+
		". kubectl escache release --volume NAME gives such a volume up and leaves its image.", "  ", width))
	return err
}

func (s *state) hosts(row func(...string), now time.Time) {
	row("GROUP", "HOST", "STATE", "CACHE", "FILLED", "DIRTY", "REPLICAS", "ATTACHED", "SEEN")
	for i := range s.groups {
		g := &s.groups[i]
		for _, name := range g.Spec.Nodes {
			at := slices.IndexFunc(g.Status.Members, func(m v1alpha1.NodeGroupMember) bool { return m.Name == name })
			if at < 0 {
				row(g.Name, name, "Unknown", "-", "-", "-", "-", "-", "-")
				continue
			}
			m := g.Status.Members[at]
			row(g.Name, name, memberState(g, m), v1alpha1.HumanBytes(m.CacheCapacityBytes), filled(m), v1alpha1.HumanBytes(m.DirtyBytes),
				fmt.Sprint(m.Volumes), fmt.Sprint(m.Primaries), lastSeen(m, now))
		}
	}
}

func memberState(g *v1alpha1.NodeGroup, m v1alpha1.NodeGroupMember) string {
	switch {
	case g.Spec.Cordoned, slices.Contains(g.Spec.CordonedNodes, m.Name):
		return "Cordoned"
	case m.Ready:
		return "Ready"
	default:
		return "NotReady"
	}
}

func filled(m v1alpha1.NodeGroupMember) string {
	if m.CacheCapacityBytes <= 0 {
		return "-"
	}
	return fmt.Sprintf("%d%%", 100*m.CacheAllocatedBytes/m.CacheCapacityBytes)
}

// seenPeriod is longer than the interval at which the driver records that a host still answers. It
// records at once that a host has stopped answering.
const seenPeriod = 2 * time.Minute

func lastSeen(m v1alpha1.NodeGroupMember, now time.Time) string {
	if m.Ready && m.LastSeen != nil && now.Sub(m.LastSeen.Time) < seenPeriod {
		return "now"
	}
	return ago(m.LastSeen, now)
}

func ago(t *metav1.Time, now time.Time) string {
	if t == nil {
		return "never"
	}
	return now.Sub(t.Time).Truncate(time.Second).String() + " ago"
}

func (s *state) volumeRow(v *v1alpha1.CacheVolume, wide bool, now time.Time) []string {
	is := &v.Status
	cells := []string{
		v.Name, s.uses.claimOf(v), cmp.Or(is.AttachedNode, "-"), cmp.Or(string(is.Authority), string(v1alpha1.AuthorityCeph)),
		v1alpha1.HumanBytes(is.DirtyBytes), redundant(v, redundancy.Of(v, s.group(v), redundancy.Evidence{}), now),
		conditionOf(v, v1alpha1.ConditionHealthy),
	}
	if wide {
		cells = append(cells, v.Spec.Group, strings.Join(v.Spec.Replicas, ","), cmp.Or(strings.Join(is.Outdated, ","), "-"),
			fmt.Sprint(is.Epoch), string(v.Spec.Engine()), v.Spec.Pool+"/"+v.Spec.Image)
	}
	return cells
}

// redundant is the condition and, if acknowledged writes are on one host only, why and for how long.
func redundant(v *v1alpha1.CacheVolume, f redundancy.Finding, now time.Time) string {
	switch {
	case f.Whole() || f.InCeph:
		return conditionOf(v, v1alpha1.ConditionRedundant)
	case f.Since.IsZero():
		return string(metav1.ConditionFalse) + " (" + f.Reason + ")"
	default:
		return fmt.Sprintf("%s (%s, %s)", metav1.ConditionFalse, f.Reason, now.Sub(f.Since).Truncate(time.Second))
	}
}

// group returns a volume's NodeGroup, nil if there is none.
func (s *state) group(v *v1alpha1.CacheVolume) *v1alpha1.NodeGroup {
	for i := range s.groups {
		if s.groups[i].Name == v.Spec.Group {
			return &s.groups[i]
		}
	}
	return nil
}

func conditionOf(v *v1alpha1.CacheVolume, kind string) string {
	if c := meta.FindStatusCondition(v.Status.Conditions, kind); c != nil && v.Status.AttachedNode != "" {
		return string(c.Status)
	}
	return "-"
}
