// Package app is csi-controller's command line: flags, and the wiring of what they start.
package app

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Main runs csi-controller's command line, and ends the process.
func Main(version string) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := newCommand(version).ExecuteContext(ctx)
	stop()
	if err != nil {
		_, _ = fmt.Fprintln(os.Stderr, "csi-controller:", err)
		os.Exit(1)
	}
}

func newCommand(version string) *cobra.Command {
	options := defaults()
	options.Version = version
	root := &cobra.Command{
		Use:           "csi-controller",
		Short:         "Serve CSI's Controller service for csi.escache.io",
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cobra.NoArgs,
		Version:       version,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := options.Validate(); err != nil {
				return err
			}
			return serve(c.Context(), options, c.ErrOrStderr())
		},
	}
	options.bindCommon(root.PersistentFlags())
	options.bindServe(root.Flags())
	root.AddCommand(newOrphans(&options), newCheckUninstall(&options), newPreflight(&options))
	return root
}
