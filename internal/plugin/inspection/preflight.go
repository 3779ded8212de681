// Package inspection has the commands that look at the whole Kubernetes cluster and change nothing:
// preflight, orphans and support-bundle.
package inspection

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"

	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/preflight"
)

// errFound means that the output says what has failed.
var errFound = errors.New("a check has failed")

// Preflight returns the command preflight, of a plugin of that version.
func Preflight(c *console.Console, version string) *cobra.Command {
	var group, namespace, output string
	command := &cobra.Command{
		Use:   "preflight",
		Short: "Check the cluster and the driver in it, and say what to do about what is not right",
		Long: "Check from the Kubernetes API whether volumes can be made. It looks at Kubernetes' version, CRDs and their fields, the\n" +
			"driver's pods, NodeGroups and each host of them, versions, StorageClasses, Secrets, certificates and what snapshots\n" +
			"need. It changes nothing, and calls neither hosts nor Ceph: escached preflight checks a host from within.\n\n" +
			"It exits with 1 if a check has failed. Warnings, and what could not be checked, do not count.",
		Args: console.NoArgs,
		Example: `  kubectl escache preflight
  kubectl escache preflight --group rack-1
  kubectl escache preflight -o json`,
		RunE: func(command *cobra.Command, _ []string) error {
			if !checklist.IsOutput(output) {
				return fmt.Errorf("%w: -o %s is none of %s", failure.ErrUsage, output, strings.Join(checklist.Outputs, ", "))
			}
			cluster := preflight.Cluster{Namespace: namespace, Group: group, Version: version, Now: c.Now}
			return runPreflight(command.Context(), c, cluster, output)
		},
	}
	command.Flags().StringVar(&group, "group", "", "check only the hosts of this NodeGroup")
	command.Flags().StringVar(&namespace, "driver-namespace", "escache-system", "namespace of the driver's pods")
	command.Flags().StringVarP(&output, "output", "o", checklist.Outputs[0], strings.Join(checklist.Outputs, " or "))
	_ = command.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(checklist.Outputs, cobra.ShellCompDirectiveNoFileComp))
	return command
}

func runPreflight(ctx context.Context, c *console.Console, cluster preflight.Cluster, output string) error {
	api, err := c.Connect()
	if err != nil {
		return err
	}
	config, err := c.RESTConfig()
	if err != nil {
		return err
	}
	discoverer, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return err
	}
	version, err := discoverer.ServerVersion()
	if err != nil {
		return err
	}
	cluster.API, cluster.Kubernetes = api, *version
	results := checklist.Run(ctx, cluster.Checks())
	if ctx.Err() != nil {
		return failure.ErrInterrupted
	}
	screen, _ := c.Screen()
	if err := checklist.Print(c.Out, output, cmp.Or(screen.Width, console.DefaultWidth), results); err != nil {
		return err
	}
	if checklist.ExitCode(results) != 0 {
		return errFound
	}
	return nil
}
