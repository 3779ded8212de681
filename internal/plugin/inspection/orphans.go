package inspection

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/orphans"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
)

// Orphans returns the command orphans.
func Orphans(c *console.Console) *cobra.Command {
	return &cobra.Command{
		Use:   "orphans",
		Short: "List CacheVolumes and ReadOnlyVolumes that no PersistentVolume names",
		Long: "List CacheVolumes and ReadOnlyVolumes that no PersistentVolume names, as after one with the reclaim policy Retain was\n" +
			"deleted. It changes nothing. kubectl escache release gives a CacheVolume up and leaves its image. A ReadOnlyVolume has no\n" +
			"data of its own: csi-controller orphans --remove-volume, in csi-controller's pod, removes it.\n" +
			"Deleted volumes whose images stay for their snapshots are listed, too.\n" +
			"Images that no CacheVolume names are not listed: that needs Ceph's keys. csi-controller orphans, in csi-controller's pod,\n" +
			"lists them, and removes those that you name.",
		Args: console.NoArgs,
		RunE: func(command *cobra.Command, _ []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			found, err := orphans.Search{Reader: api, Images: noImages{}, Young: claims.Young, Now: c.Now}.Find(command.Context())
			if err != nil {
				return err
			}
			return printOrphans(c, found)
		},
	}
}

func printOrphans(c *console.Console, found orphans.Found) error {
	row, flush := console.Table(c.Out)
	if len(found.Volumes) == 0 {
		row("no orphans")
	} else {
		row("VOLUME", "CREATED FOR", "SINCE", "STATE")
	}
	for _, v := range found.Volumes {
		row(v.Name, v.Claim, v.Since.Format(time.RFC3339), v.State())
	}
	if err := flush(); err != nil {
		return err
	}
	for _, k := range found.Kept {
		c.Printf("no orphan: %s\n", k.State())
	}
	return nil
}

// noImages takes Ceph's place, which this command cannot reach.
type noImages struct{}

func (noImages) List(context.Context, string, string, string) ([]string, error) { return nil, nil }

func (noImages) MarkOf(context.Context, string, string, string) (orphans.Mark, error) {
	return orphans.Mark{}, nil
}
