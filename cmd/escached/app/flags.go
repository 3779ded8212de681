package app

import (
	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/escached"
)

// flags are what the command line may say over the configuration file.
type flags struct {
	path   string
	debug  bool
	node   string
	listen string
	socket string
	group  string
}

func (f *flags) register(cmd *cobra.Command) {
	p := cmd.PersistentFlags()
	p.StringVar(&f.path, "config", escached.DefaultConfigPath, "configuration file")
	p.BoolVar(&f.debug, "debug", false, "log also what is polled")
	p.StringVar(&f.node, "node", "", "this host's name in replica requests, over the file's node")
	p.StringVar(&f.listen, "listen", "", "TCP address of the API, over the file's listen")
	p.StringVar(&f.socket, "socket", "", "unix socket of the API, over the file's socket")
	p.StringVar(&f.group, "volume-group", "", "LVM volume group, over the file's volumeGroup")
}

// config is the file with the flags over it, validated.
func (f *flags) config() (escached.Config, error) {
	cfg, err := escached.LoadConfig(f.path)
	if err != nil {
		return cfg, err
	}
	for _, o := range []struct {
		to   *string
		from string
	}{{&cfg.Node, f.node}, {&cfg.Listen, f.listen}, {&cfg.Socket, f.socket}, {&cfg.VolumeGroup, f.group}} {
		if o.from != "" {
			*o.to = o.from
		}
	}
	return cfg, cfg.Validate()
}
