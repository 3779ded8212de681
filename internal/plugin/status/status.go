// Package status is kubectl escache status: what is wrong and what to do, and tables of hosts,
// volumes and what is being done.
package status

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/state"
	"github.com/escache/escache-csi/internal/records/choice"
)

// options are the flags of status.
type options struct {
	output     string
	watch, all bool
	sortBy     string
	filter     choice.Filter
}

func outputs() []string { return []string{"table", "wide", "json", "yaml", "name"} }

// Command returns the command.
func Command(c *console.Console) *cobra.Command {
	var f options
	command := &cobra.Command{
		Use:   "status",
		Short: "Show what is wrong and what to do, groups, hosts, volumes and flushes",
		Long: fmt.Sprintf("Show what is wrong and what to do about it, the most serious first.\n"+
			"Then show hosts, volumes, read-only volumes, repairs and flushes.\n\n"+
			"--group, --node, --namespace and --problems choose what is shown, in every output; all that are given have to fit.\n"+
			"If nothing is chosen and there are more than %d hosts or %d volumes, the tables show those with a problem, and the\n"+
			"first ones with --sort-by; --all shows all.", maxHosts, maxVolumes),
		Args: console.NoArgs,
		Example: `  kubectl escache status
  kubectl escache status --problems
  kubectl escache status --group=rack1,rack2 --sort-by=dirty
  kubectl escache status --node=n1 -o wide
  kubectl escache status -n shop
  kubectl escache status -o json`,
		RunE: func(command *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if command.Flags().Changed("namespace") { // that of the kubeconfig chooses nothing
				f.filter.Namespace = *c.Config.Namespace
			}
			return show(command.Context(), c, f)
		},
	}
	flags := command.Flags()
	flags.StringVarP(&f.output, "output", "o", "", strings.Join(outputs()[:4], ", ")+" or "+outputs()[4])
	flags.BoolVarP(&f.watch, "watch", "w", false, "keep showing changes until interrupted")
	flags.StringSliceVar(&f.filter.Groups, "group", nil, "only these groups, with their hosts and volumes")
	flags.StringSliceVar(&f.filter.Nodes, "node", nil, "only these hosts, and volumes that they have or have a replica of")
	flags.BoolVar(&f.filter.Problems, "problems", false, "only what has a problem")
	flags.StringVar(&f.sortBy, "sort-by", "", "order of the volumes: "+strings.Join(choice.Orders(), ", ")+" (default name)")
	flags.BoolVar(&f.all, "all", false, "show all hosts and volumes, also where there are many")
	complete := func(flag string, from []string) {
		_ = command.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(from, cobra.ShellCompDirectiveNoFileComp))
	}
	complete("output", outputs())
	complete("sort-by", choice.Orders())
	return command
}

// check refuses values that are none of those that there are.
func (f options) check() error {
	if f.output != "" && !slices.Contains(outputs(), f.output) {
		return fmt.Errorf("%w: -o %s is none of table, wide, json, yaml and name", failure.ErrUsage, f.output)
	}
	if err := choice.Sort(nil, f.sortBy, nil); err != nil {
		return fmt.Errorf("%w: --sort-by: %w", failure.ErrUsage, err)
	}
	return nil
}

func show(ctx context.Context, c *console.Console, f options) error {
	api, err := c.Connect()
	if err != nil {
		return err
	}
	last, known := "", &state.Certificates{}
	for {
		screen, isTerminal := c.Screen()
		text, err := textOf(ctx, c, api, f, screen.Width, known)
		if err != nil {
			if ctx.Err() != nil {
				return nil //nolint:nilerr // interrupted: that is how --watch ends
			}
			return err
		}
		switch {
		case !f.watch:
			c.Printf("%s", text)
			return nil
		case isTerminal:
			c.Printf("%s", screen.Redraw(text))
		case text != last:
			c.Printf("%s\n", text)
		}
		last = text
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(console.PollInterval):
		}
	}
}

// textOf reads everything and returns what is shown of it.
func textOf(
	ctx context.Context, c *console.Console, api client.Reader, f options, width int, known *state.Certificates,
) (string, error) {
	now := c.Now()
	s, err := state.Read(ctx, api, f.filter.Namespace, now)
	if err != nil {
		return "", err
	}
	if s.Ends, err = known.Of(ctx, api, s.Workloads); err != nil {
		return "", err
	}
	v, err := newView(s, f, now)
	if err != nil {
		return "", err
	}
	var text strings.Builder
	err = v.print(&text, f.output, width)
	return text.String(), err
}
