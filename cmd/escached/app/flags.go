package app

import (
	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/escached"
)

// flags are the command-line flags. Those that are set override the configuration file.
type flags struct {
	path   string
	debug  bool
	node   string
	listen string
	socket string
	group  string
	lock   string
}

func (f *flags) register(cmd *cobra.Command) {
	p := cmd.PersistentFlags()
	p.StringVar(&f.path, "config", escached.DefaultConfigPath, "configuration file")
	p.BoolVar(&f.debug, "debug", false, "also log calls that only read, which are polled")
	p.StringVar(&f.node, "node", "", "name of this host in replica requests; overrides node in the file")
	p.StringVar(&f.listen, "listen", "", "TCP address of the API; overrides listen in the file")
	p.StringVar(&f.socket, "socket", "", "unix socket of the API; overrides socket in the file")
	p.StringVar(&f.group, "volume-group", "", "LVM volume group of the caches; overrides volumeGroup in the file")
	p.StringVar(&f.lock, "shutdown-lock", "",
		"serve until csi-node has ended, which keeps this file locked; overrides shutdownLock in the file")
}

// config returns the configuration file with the flags applied, validated.
func (f *flags) config() (escached.Config, error) {
	cfg, err := escached.LoadConfig(f.path)
	if err != nil {
		return cfg, err
	}
	f.apply(&cfg)
	return cfg, cfg.Validate()
}

// apply overrides what the flags name.
func (f *flags) apply(cfg *escached.Config) {
	override(map[*string]string{
		&cfg.Node: f.node, &cfg.Listen: f.listen, &cfg.Socket: f.socket, &cfg.VolumeGroup: f.group, &cfg.ShutdownLock: f.lock,
	})
}

// override replaces settings by those flags that are set.
func override(flags map[*string]string) {
	for setting, value := range flags {
		if value != "" {
			*setting = value
		}
	}
}
