package app

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"github.com/escache/escache-csi/internal/checklist"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/preflight"
)

// tableWidth is how many columns the list takes at most.
const tableWidth = 80

// preflightFlags are those of preflight alone.
type preflightFlags struct {
	address, pool, serverName, output string
	conf, keyring, user               string
	peers                             []string
}

func preflightCommand(f *flags) *cobra.Command {
	p := &preflightFlags{}
	cmd := &cobra.Command{
		Use: "preflight", Args: cobra.NoArgs,
		Short: "Check whether this host is ready for escached, and say what to do about what is not",
		Long: "Check whether this host is ready for escached: kernel modules, versions, volume group, names, ports, addresses, clock,\n" +
			"memory, certificates and the way to Ceph. Run it as root, before escached runs here or beside it. It checks what\n" +
			"escached's configuration says, and the defaults if there is none. It loads the kernel modules that escached needs, and\n" +
			"changes nothing else.\n\n" +
			"Exit codes: 0 nothing has failed, 1 something has. Warnings, and what could not be checked, do not count.",
		Example: "  escached preflight --address 10.0.0.11 --peer 10.0.0.12 --peer 10.0.0.13\n" +
			"  escached preflight --address 10.0.0.11 --pool fast --ceph-conf ceph.conf --ceph-keyring node.keyring " +
			"--ceph-user escache-node\n" +
			"  escached preflight --pool fast -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			settings, err := p.settings(f, cmd.Flags().Changed("config"))
			if err != nil {
				return err
			}
			host, err := preflightHost(settings)
			if err != nil {
				return err
			}
			results := checklist.Run(cmd.Context(), host.Checks())
			if err := checklist.Print(cmd.OutOrStdout(), p.output, tableWidth, results); err != nil {
				return err
			}
			if code := checklist.ExitCode(results); code != 0 {
				os.Exit(code) // the list says why
			}
			return nil
		},
	}
	cmd.Flags().StringVar(&p.address, "address", "", "this host's address on the replication network; overrides address in the file")
	cmd.Flags().StringSliceVar(&p.peers, "peer", nil, "replication address of another host of the group; may be repeated")
	cmd.Flags().StringVar(&p.conf, "ceph-conf", "", "Ceph's configuration; overrides ceph.conf in the file")
	cmd.Flags().StringVar(&p.keyring, "ceph-keyring", "", "file with the Ceph user's key; overrides ceph.keyring in the file")
	cmd.Flags().StringVar(&p.user, "ceph-user", "", "Ceph user without \"client.\"; overrides ceph.user in the file")
	cmd.Flags().StringVar(&p.pool, "pool", "", "Ceph pool of the volumes, to check key and caps")
	cmd.Flags().StringVar(&p.serverName, "server-name", "",
		"name that csi-controller expects in the certificate; {node} stands for this host's")
	cmd.Flags().StringVarP(&p.output, "output", "o", checklist.Outputs[0], strings.Join(checklist.Outputs, " or "))
	return cmd
}

// settings reads the configuration as the service does. A file that is missing is part of what is checked.
func (p *preflightFlags) settings(f *flags, named bool) (preflight.Settings, error) {
	switch {
	case !checklist.IsOutput(p.output):
		return preflight.Settings{}, fmt.Errorf("-o %s is none of %s", p.output, strings.Join(checklist.Outputs, ", "))
	case p.pool != "" && !escached.IsVolumeName(p.pool):
		return preflight.Settings{},
			fmt.Errorf("--pool %q is not the name of a pool for volumes: use 1 to 128 of A-Z a-z 0-9 _ . -", p.pool)
	case slices.ContainsFunc(p.peers, func(peer string) bool { return net.ParseIP(peer) == nil }):
		return preflight.Settings{}, fmt.Errorf("--peer %s: these must be IP addresses", strings.Join(p.peers, ","))
	case os.Geteuid() != 0:
		return preflight.Settings{}, errors.New("preflight loads kernel modules and reads LVM's metadata: run it as root (sudo)")
	}
	cfg, err := escached.LoadConfig(f.path)
	f.apply(&cfg)
	override(map[*string]string{
		&cfg.Address: p.address, &cfg.Ceph.Conf: p.conf, &cfg.Ceph.Keyring: p.keyring, &cfg.Ceph.User: p.user,
	})
	s := preflight.Settings{
		Config: cfg, ConfigPath: f.path, ConfigErr: err, ConfigNamed: named, CephNamed: p.conf+p.keyring+p.user != "",
		Pool: p.pool, ServerName: p.serverName, Peers: p.peers,
	}
	if err != nil && cfg.Node == "" {
		s.Config.Node, err = os.Hostname()
		return s, err
	}
	return s, nil
}

func preflightHost(s preflight.Settings) (*preflight.Host, error) {
	uname, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("this host's name: %w", err)
	}
	l, err := layersOf(s.Config)
	if err != nil {
		return nil, err
	}
	return &preflight.Host{
		Settings: s, Uname: uname, Kernel: l.kernel, Store: l.store, Tools: l.control, Images: l.images,
		System: preflight.System{
			Root: "/", LookPath: exec.LookPath, Addresses: addresses, Clock: unix.Adjtimex, Now: time.Now,
			Dial: preflight.Dial,
			Filesystem: func(path string) (int64, error) {
				var st unix.Statfs_t
				err := unix.Statfs(path, &st)
				return int64(st.Type), err //nolint:unconvert // other processors have another type
			},
		},
	}, nil
}

// addresses are those of this host's interfaces.
func addresses() ([]string, error) {
	all, err := net.InterfaceAddrs()
	var out []string
	for _, a := range all {
		if network, ok := a.(*net.IPNet); ok {
			out = append(out, network.IP.String())
		}
	}
	return out, err
}
