// Package plugin is kubectl-escache, the kubectl plugin for operators. It talks only to the
// Kubernetes API: it shows what the driver has recorded there, and requests work by creating
// objects of escache.io.
package plugin

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
	"k8s.io/cli-runtime/pkg/genericiooptions"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/escache/escache-csi/internal/plugin/adoption"
	"github.com/escache/escache-csi/internal/plugin/bench"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/explain"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/flush"
	"github.com/escache/escache-csi/internal/plugin/inspection"
	"github.com/escache/escache-csi/internal/plugin/loss"
	"github.com/escache/escache-csi/internal/plugin/maintenance"
	"github.com/escache/escache-csi/internal/plugin/move"
	"github.com/escache/escache-csi/internal/plugin/release"
	"github.com/escache/escache-csi/internal/plugin/status"
	"github.com/escache/escache-csi/internal/plugin/trim"
)

// Run runs the command line and returns the exit code.
func Run(version string, args []string, in io.Reader, out, errOut io.Writer) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	klog.SetLogger(klog.Logger{}) // operators need none of client-go's log lines
	log.SetLogger(klog.Logger{})  // and no stack trace of controller-runtime that says that it has no logger
	command := newCommand(version, console.New(genericiooptions.IOStreams{In: in, Out: out, ErrOut: errOut}))
	command.SetArgs(args)
	command.SetIn(in)
	command.SetOut(out)
	command.SetErr(errOut)
	err := command.ExecuteContext(ctx)
	if err != nil {
		_, _ = fmt.Fprintln(errOut, "error:", failure.Message(err))
	}
	return failure.ExitCode(err)
}

func newCommand(version string, c *console.Console) *cobra.Command {
	root := &cobra.Command{
		Use:   "kubectl-escache",
		Short: "See, flush and evacuate the caches of escache-csi",
		Long: "See, flush and evacuate the caches of escache-csi.\n\n" +
			"Exit codes: 0 done, 1 failed or refused, 2 wrong command line, 3 not finished within --timeout, 4 not confirmed.",
		Annotations:   map[string]string{cobra.CommandDisplayNameAnnotation: "kubectl escache"},
		SilenceUsage:  true,
		SilenceErrors: true,
		Version:       version,
		Args:          console.NoArgs,
		RunE:          func(command *cobra.Command, _ []string) error { return command.Help() },
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w: %w", failure.ErrUsage, err) })
	c.Config.AddFlags(root.PersistentFlags())
	root.AddCommand(
		status.Command(c), explain.Command(c), inspection.Orphans(c), inspection.Preflight(c, version), inspection.SupportBundle(c),
		flush.Command(c), maintenance.Cordon(c), maintenance.Evacuate(c), maintenance.Uncordon(c), maintenance.ReplaceHost(c),
		trim.Command(c), move.Command(c), move.Rebalance(c), loss.Repair(c), loss.Discard(c),
		adoption.Command(c), release.Command(c), bench.Command(c),
	)
	return root
}
