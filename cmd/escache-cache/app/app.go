// Package app is the command line of escache-cache.
package app

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/cache/log/control"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/kernel"
	"github.com/escache/escache-csi/internal/escached/cache/log/process"
	"github.com/escache/escache-csi/internal/escached/cache/log/resident"
)

// Main runs the command line and ends the process.
func Main(version string) {
	// Its death is a pause for the volume's users. So it outlives the terminal that it was started from, and the reader of its log.
	signal.Ignore(syscall.SIGHUP, syscall.SIGPIPE)
	if err := root(version).ExecuteContext(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "escache-cache:", err)
		os.Exit(1)
	}
}

func root(version string) *cobra.Command {
	c := process.Config{Version: version}
	debug := false
	cmd := &cobra.Command{
		Use:   "escache-cache",
		Short: "Serves the device of one volume: a log on a replicated disk, in front of an RBD image",
		Long: "escache-cache serves the device of one volume, whose cache has the engine log. escached starts one for each connected " +
			"volume.\n" +
			"It makes a network block device, or goes on with the one that the kernel has of this volume. Started for a volume that\n" +
			"another process serves, it takes over from that one. It ends with 0 when it was told to stop, or has handed over; after\n" +
			"anything else users of the device wait until it is started again with the same flags. A signal ends it only if nobody has\n" +
			"the device open.",
		SilenceUsage: true, SilenceErrors: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return serve(cmd.Context(), c, debug) },
	}
	f := cmd.Flags()
	f.StringVar(&c.Name, "name", "", "name of the volume on this host")
	f.StringVar(&c.Disk, "disk", "", "the cache's disk, a DRBD device; the log begins after the first MiB")
	f.StringVar(&c.Origin, "origin", "", "the image's block device, or its number MAJOR:MINOR")
	f.Int64Var(&c.Bytes, "bytes", 0, "size of the image")
	f.StringVar(&c.Identity.Pool, "pool", "", "the image's pool")
	f.StringVar(&c.Identity.Image, "image", "", "the image's name")
	f.StringVar(&c.Identity.ImageID, "image-id", "", "the image's id; the disk must hold the cache of this image")
	f.StringVar(&c.Socket, "socket", "", "unix socket on which the process is controlled")
	f.StringVar(&c.Memory, "memory", "", "file on tmpfs for what is answered and not in the log yet; the volume's next process needs it")
	o := &c.Options
	f.StringVar((*string)(&o.Mode), "mode", string(cache.Writeback), "writeback; writethrough answers a write when the image has it")
	f.StringVar((*string)(&o.Order), "order", string(control.Merged), "merged; strict keeps the image what the volume was at some moment")
	f.IntVar(&o.HighWatermark, "high-watermark", 0, "percent of the log in use above which write-back starts; 0: 50")
	f.IntVar(&o.LowWatermark, "low-watermark", 0, "percent of the log in use at which write-back stops; 0: 5 less than the high one")
	f.IntVar(&o.MaxAgeSeconds, "max-age-seconds", 0, "longest time for which something stays dirty; 0: no bound")
	f.BoolVar(&c.AcceptLosses, "accept-losses", false, "also serve a log that has lost data which was acknowledged")
	f.BoolVar(&debug, "debug", false, "also log connections that are replaced")
	cmd.AddCommand(&cobra.Command{
		Use: "version", Short: "Print the version", Args: cobra.NoArgs,
		Run: func(*cobra.Command, []string) { fmt.Println(version) },
	})
	return cmd
}

func serve(ctx context.Context, c process.Config, debug bool) error {
	level := slog.LevelInfo
	if debug {
		level = slog.LevelDebug
	}
	log := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level}))
	if err := c.Check(); err != nil {
		return err
	}
	resident.Prepare(log)
	asked := make(chan os.Signal, 1)
	signal.Notify(asked, syscall.SIGTERM, syscall.SIGINT)
	driver, err := kernel.Open()
	if err != nil {
		return err
	}
	defer func() { _ = driver.Close() }()
	return process.Run(ctx, c, driver, asked, log)
}
