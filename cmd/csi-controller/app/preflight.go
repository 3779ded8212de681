package app

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/client-go/discovery"

	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/preflight"
)

// preflightWidth is how many columns the list takes at most: it is read in logs.
const preflightWidth = 80

// preflightTime bounds all checks.
const preflightTime = 4 * time.Minute

// newPreflight returns the command that checks the Kubernetes cluster, and the driver in it, as kubectl
// escache preflight does, but for Secrets, which the account of `helm test` may not read. With the keys that
// are mounted it asks Ceph, too.
func newPreflight(o *Options) *cobra.Command {
	var namespace, output, hostsDir string
	command := &cobra.Command{
		Use: "preflight",
		Short: "Check the cluster and the driver in it, as kubectl escache preflight does, but no Secrets, " +
			"and the caps of the Ceph users; exit code 1: a check has failed",
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			if !checklist.IsOutput(output) {
				return fmt.Errorf("--output %s is none of %s", output, strings.Join(checklist.Outputs, ", "))
			}
			ctx, cancel := context.WithTimeout(c.Context(), preflightTime)
			defer cancel()
			cluster, err := clusterOf(o)
			if err != nil {
				return err
			}
			cluster.Namespace = namespace
			users, closeCeph, err := cephUsers(o.CephDir, hostsDir)
			if err != nil {
				return err
			}
			defer closeCeph()
			cluster.CephUsers = users
			results := checklist.Run(ctx, cluster.Checks())
			if err := checklist.Print(c.OutOrStdout(), output, preflightWidth, results); err != nil {
				return err
			}
			if checklist.ExitCode(results) != 0 {
				return errors.New("a check has failed")
			}
			return nil
		},
	}
	command.Flags().StringVar(&namespace, "driver-namespace", "escache-system", "namespace of the driver's pods")
	command.Flags().StringVar(&hostsDir, "hosts-ceph-dir", "",
		"like --ceph-dir, with the keyring of the hosts' user; empty: its caps are not checked")
	command.Flags().StringVar(&output, "output", checklist.Outputs[0], strings.Join(checklist.Outputs, " or "))
	return command
}

func clusterOf(o *Options) (*preflight.Cluster, error) {
	config, err := kubernetesConfig(*o)
	if err != nil {
		return nil, err
	}
	api, err := clientOf(config)
	if err != nil {
		return nil, err
	}
	discoverer, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, err
	}
	version, err := discoverer.ServerVersion()
	if err != nil {
		return nil, fmt.Errorf("version of the API server: %w", err)
	}
	return &preflight.Cluster{API: api, Kubernetes: *version, Version: o.Version, WithoutSecrets: true, Now: time.Now}, nil
}
