// Package app wires csi-controller: flags, and what they set in motion.
package app

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

// Run runs the command line and returns the exit code.
func Run(version string, args []string, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	command := newCommand(version)
	command.SetArgs(args)
	command.SetOut(stdout)
	command.SetErr(stderr)
	if err := command.ExecuteContext(ctx); err != nil {
		_, _ = fmt.Fprintln(stderr, "csi-controller:", err)
		return 1
	}
	return 0
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
	root.AddCommand(newOrphans(&options), newCheckUninstall(&options))
	return root
}
