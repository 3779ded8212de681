package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/lab/supervisor"
)

// verbTime limits a command, on a machine that may be busy.
const verbTime = 8 * time.Minute

func root() *cobra.Command {
	var name string
	command := &cobra.Command{
		Use:   "lab",
		Short: "A laboratory of real Ceph and real hosts on this machine",
		Long: "lab starts a real Ceph and hosts in its own namespaces. The hosts are small QEMU machines with Debian's stock kernel.\n" +
			"lab can make them fail as hosts do in data centres. It needs root. `up` installs and builds what is missing.",
		SilenceUsage: true, SilenceErrors: true,
	}
	command.PersistentFlags().StringVar(&name, "name", "", "name of the lab in this checkout (default $LAB_NAME, or \"lab\")")
	find := func() (labclient.Location, error) { return labclient.Locate(name) }
	client := func() (*labclient.Client, error) {
		if name == "" && os.Getenv(labclient.EnvSocket) != "" {
			return labclient.Inside()
		}
		location, err := find()
		return labclient.New(location), err
	}
	command.AddCommand(upCommand(find), downCommand(find), statusCommand(client), execCommand(client), logsCommand(client))
	command.AddCommand(nodeCommands(client)...)
	command.AddCommand(cutCommand(client))
	command.AddCommand(lifeCommands(client)...)
	command.AddCommand(insideCommands(client)...)
	return command
}

type (
	finder    func() (labclient.Location, error)
	connector func() (*labclient.Client, error)
)

func upCommand(find finder) *cobra.Command {
	var options supervisor.Options
	command := &cobra.Command{
		Use: "up", Short: "Start a lab and wait until all of it is ready", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if options.Nodes < 1 || options.Nodes > 9 {
				return errors.New("--nodes: a lab has 1 to 9 nodes")
			}
			if options.Driver && options.NoCeph {
				return errors.New("--driver: the driver needs Ceph")
			}
			if options.Driver && options.Bare {
				return errors.New("--driver: the driver needs escached, which --bare leaves out")
			}
			options.Kubernetes = options.Kubernetes || options.Driver || len(options.Images) > 0
			for i, image := range options.Images {
				path, err := filepath.Abs(image)
				if err != nil {
					return fmt.Errorf("--image: %w", err)
				}
				options.Images[i] = path
			}
			location, err := find()
			if err != nil {
				return err
			}
			return supervisor.Up(cmd.Context(), location, options)
		},
	}
	flags := command.Flags()
	flags.IntVar(&options.Nodes, "nodes", 3, "number of hosts, n1, n2, …")
	flags.BoolVar(&options.Kubernetes, "kubernetes", false, "make the hosts nodes of a Kubernetes cluster")
	flags.BoolVar(&options.Driver, "driver", false,
		"also run the CSI driver: csi-node on the hosts, csi-controller beside them (means --kubernetes)")
	flags.BoolVar(&options.Bare, "bare", false, "leave out escached and the hosts' access to Ceph")
	flags.StringArrayVar(&options.Images, "image", nil,
		"archive of a container image to load into the nodes, beside the CSI sidecars (may be repeated; means --kubernetes)")
	flags.IntVar(&options.MemoryMiB, "memory", 384, "memory of a host in MiB; with --kubernetes at least 512")
	flags.BoolVar(&options.ForgetfulDisks, "forgetful-disks", false,
		"a host that loses power also loses what it had not flushed to its disks")
	flags.IntVar(&options.DiskMiB, "disk", 4096,
		"size of the disk that stands in for a host's NVMe, in MiB; uses only the space that is written")
	flags.BoolVar(&options.Share, "share", false,
		"leave half of the processor time to other tests that run meanwhile; without it the lab comes first")
	flags.BoolVar(&options.NoCeph, "no-ceph", false, "start hosts only")
	return command
}

func downCommand(find finder) *cobra.Command {
	return &cobra.Command{
		Use: "down", Short: "Stop a lab and remove everything but the logs of failed tests, also after a crash", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			location, err := find()
			if err != nil {
				return err
			}
			if err := supervisor.Down(cmd.Context(), location); err != nil {
				return err
			}
			if _, err := os.Stat(location.FailedDir()); err == nil {
				fmt.Println("the hosts' logs of failed tests are kept until the next `lab up`:", location.FailedDir())
			}
			return nil
		},
	}
}

func execCommand(connect connector) *cobra.Command {
	var limit time.Duration
	command := &cobra.Command{
		Use: "exec NODE -- COMMAND [ARGUMENT…]", Short: "Run a command on a node", Args: cobra.MinimumNArgs(2),
		Long: "Runs a command on a node, without a shell, and exits with its exit status. It works whatever is cut.\n" +
			"The command ends when this program ends.",
		RunE: func(cmd *cobra.Command, args []string) error {
			command := args[1:]
			if command[0] == "--" {
				command = command[1:]
			}
			if len(command) == 0 {
				return errors.New("exec: name a command after the node")
			}
			client, err := connect()
			if err != nil {
				return err
			}
			ctx := cmd.Context()
			if limit > 0 {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, limit)
				defer cancel()
			}
			code, err := client.Exec(ctx, args[0], labclient.Command{Args: command},
				labclient.Streams{In: input(), Out: os.Stdout, Err: os.Stderr})
			if err == nil && code != 0 {
				return exitStatusError(code)
			}
			return err
		},
	}
	command.Flags().SetInterspersed(false)
	command.Flags().DurationVar(&limit, "timeout", 0, "kill the command after this time")
	return command
}

// input returns standard input, or nil if it is a terminal.
func input() io.Reader {
	info, err := os.Stdin.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice != 0 {
		return nil
	}
	return os.Stdin
}

// bounded runs a command with the limit verbTime.
func bounded(
	connect connector, act func(ctx context.Context, client *labclient.Client, args []string) error,
) func(*cobra.Command, []string) error {
	return func(cmd *cobra.Command, args []string) error {
		client, err := connect()
		if err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), verbTime)
		defer cancel()
		return act(ctx, client, args)
	}
}

func nodeCommands(connect connector) []*cobra.Command {
	var undo, restore bool
	fill := &cobra.Command{
		Use: "fill NODE", Short: "Use up all free space of a node's volume group", Args: cobra.ExactArgs(1),
		RunE: bounded(connect, func(ctx context.Context, c *labclient.Client, args []string) error { return c.Fill(ctx, args[0], undo) }),
	}
	fill.Flags().BoolVar(&undo, "undo", false, "free the space again")
	fail := &cobra.Command{
		Use: "fail-disk NODE", Short: "Make a node's NVMe disk return I/O errors", Args: cobra.ExactArgs(1),
		RunE: bounded(connect, func(ctx context.Context, c *labclient.Client, args []string) error {
			return c.FailDisk(ctx, args[0], restore)
		}),
	}
	fail.Flags().BoolVar(&restore, "restore", false, "make the disk work again")
	node := func(use, short string, act func(*labclient.Client, context.Context, string) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: cobra.ExactArgs(1),
			RunE: bounded(connect, func(ctx context.Context, c *labclient.Client, args []string) error { return act(c, ctx, args[0]) }),
		}
	}
	return []*cobra.Command{
		node("power-off NODE", "Cut a node's power at once", (*labclient.Client).PowerOff),
		node("power-on NODE", "Boot a node from its disks and wait until it is ready", (*labclient.Client).PowerOn),
		node("freeze NODE", "Stop a node's processor, as a hypervisor does that pauses it", (*labclient.Client).Freeze),
		node("thaw NODE", "Let a frozen node go on", (*labclient.Client).Thaw),
		node("new-disk NODE", "Put an empty disk in the place of the NVMe of a node that is off", (*labclient.Client).NewDisk),
		node("reinstall NODE", "Make the root disk of a node that is off as new; its NVMe stays", (*labclient.Client).Reinstall),
		fill, fail,
	}
}

func cutCommand(connect connector) *cobra.Command {
	var cut labclient.Cut
	command := &cobra.Command{
		Use: "cut NODE", Short: "Cut a node's data network; exec still works", Args: cobra.ExactArgs(1),
		RunE: bounded(connect, func(ctx context.Context, c *labclient.Client, args []string) error { return c.Cut(ctx, args[0], cut) }),
	}
	command.Flags().StringVar(&cut.From, "from", "", "cut only from this node, \"ceph\" or \"control-plane\"")
	command.Flags().BoolVar(&cut.OneWay, "one-way", false, "drop only what the node sends")
	command.Flags().BoolVar(&cut.Slow, "slow", false, fmt.Sprintf("drop only what exceeds %d KiB a second", labclient.SlowRate))
	return command
}

func lifeCommands(connect connector) []*cobra.Command {
	simple := func(use, short string, act func(*labclient.Client, context.Context) error) *cobra.Command {
		return &cobra.Command{
			Use: use, Short: short, Args: cobra.NoArgs,
			RunE: bounded(connect, func(ctx context.Context, c *labclient.Client, _ []string) error { return act(c, ctx) }),
		}
	}
	return []*cobra.Command{
		simple("heal", "Undo all cuts", (*labclient.Client).Heal),
		simple("stall-ceph", "Freeze Ceph's OSD: requests hang, and none fails", (*labclient.Client).StallCeph),
		simple("resume-ceph", "Unfreeze Ceph's OSD", (*labclient.Client).ResumeCeph),
		simple("stop-api-server", "Kill the Kubernetes API server", (*labclient.Client).StopAPIServer),
		simple("start-api-server", "Start the Kubernetes API server again and wait until it is ready", (*labclient.Client).StartAPIServer),
		simple("save-etcd", "Keep a copy of what Kubernetes has on record", (*labclient.Client).SaveEtcd),
		simple("restore-etcd", "Set Kubernetes' record back to that copy", (*labclient.Client).RestoreEtcd),
		{
			Use: "controller-flags [-- FLAG…]", Short: "Restart csi-controller with these flags added to the lab's own",
			RunE: bounded(connect, func(ctx context.Context, c *labclient.Client, args []string) error {
				return c.SetControllerFlags(ctx, args...)
			}),
		},
	}
}

// insideCommands run a program of this machine in the lab's namespaces.
func insideCommands(connect connector) []*cobra.Command {
	inside := func(use, short string, prefix ...string) *cobra.Command {
		command := &cobra.Command{
			Use: use, Short: short, Args: cobra.MinimumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				client, err := connect()
				if err != nil {
					return err
				}
				return supervisor.Enter(cmd.Context(), client, slices.Concat(prefix, args))
			},
		}
		command.Flags().SetInterspersed(false)
		return command
	}
	return []*cobra.Command{
		inside("run -- COMMAND [ARGUMENT…]", "Run a command of this machine in the lab's namespaces and environment"),
		inside("ceph -- ARGUMENT…", "Run ceph as the lab's administrator", "ceph"),
		inside("rbd -- ARGUMENT…", "Run rbd as the lab's administrator", "rbd"),
		inside("kubectl -- ARGUMENT…", "Run kubectl as the lab's administrator", "kubectl"),
	}
}
