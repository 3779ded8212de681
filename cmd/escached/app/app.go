// Package app is the command line of escached.
package app

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	logengine "github.com/escache/escache-csi/internal/escached/cache/log/engine"
	"github.com/escache/escache-csi/internal/escached/cache/log/launch"
	"github.com/escache/escache-csi/internal/escached/cache/writecache"
	"github.com/escache/escache-csi/internal/escached/child"
	"github.com/escache/escache-csi/internal/escached/server"
	"github.com/escache/escache-csi/internal/escached/trim"
	"github.com/escache/escache-csi/internal/traces/export"
)

// Main runs the command line and ends the process.
func Main(version string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := Command(version).ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "escached:", err)
		os.Exit(1)
	}
}

// Command returns the command line.
func Command(version string) *cobra.Command {
	f := &flags{}
	cmd := &cobra.Command{
		Use:   "escached",
		Short: "Replicated write-back caches over RBD images, for the escache HTTP API",
		Long: "escached serves the escache HTTP API on an NVMe host. It keeps its state on the disks, so it can be restarted at\n" +
			"any time; devices go on meanwhile. It reads a YAML configuration file. Flags override the file.",
		SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), f, version) },
	}
	f.register(cmd)
	cmd.AddCommand(
		&cobra.Command{
			Use: "serve", Short: "Serve the API (the default command)", Args: cobra.NoArgs,
			RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), f, version) },
		},
		&cobra.Command{
			Use: "fence-peer", Args: cobra.NoArgs,
			Short: "DRBD's handler: ask the arbiter whether to go on without the peer; exit 7: yes, exit 1: no",
			Run: func(cmd *cobra.Command, _ []string) {
				os.Exit(fencePeer(cmd.Context(), f))
			},
		},
		diskFailedCommand(f),
		preflightCommand(f),
		&cobra.Command{
			Use: "version", Short: "Print the version", Args: cobra.NoArgs,
			Run: func(*cobra.Command, []string) { fmt.Println(version) },
		},
		&cobra.Command{
			Use: child.Verb, Hidden: true, DisableFlagParsing: true,
			RunE: func(_ *cobra.Command, args []string) error {
				return child.Main(args, queries(), os.Stdin, os.Stdout)
			},
		},
		&cobra.Command{
			Use: trim.Verb, Hidden: true, Args: cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error { return trim.Main(os.Stdin, os.Stdout) },
		},
		&cobra.Command{
			Use: launch.Verb, Hidden: true, DisableFlagParsing: true,
			RunE: func(_ *cobra.Command, args []string) error { return launch.Main(args) },
		},
	)
	return cmd
}

// queries are what the cache engines run in a child.
func queries() map[string]child.Query {
	all := map[string]child.Query{}
	maps.Copy(all, writecache.Queries())
	maps.Copy(all, logengine.Queries())
	return all
}

func serve(ctx context.Context, f *flags, version string) error {
	cfg, err := f.config()
	if err != nil {
		return err
	}
	level := slog.LevelInfo
	if f.debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	engine, err := newEngine(cfg, version, f.path, log)
	if err != nil {
		return err
	}
	traces, flush, err := export.New(ctx, export.Options{
		Target: cfg.OTLPEndpoint, Service: "escached", Version: version, Node: cfg.Node, Log: log,
	})
	if err != nil {
		return err
	}
	defer flush()
	return server.New(cfg, engine, server.Seen{Log: log, Traces: traces}).Run(ctx)
}
