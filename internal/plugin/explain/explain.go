// Package explain is kubectl escache explain: all that is known of a volume, snapshot, host or
// group, and what to do next.
package explain

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/claims"
	"github.com/escache/escache-csi/internal/plugin/console"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/status"
	"github.com/escache/escache-csi/internal/records/choice"
)

// Command returns the command.
func Command(c *console.Console) *cobra.Command {
	var volume bool
	command := &cobra.Command{
		Use:   "explain PVC|volume/NAME|snapshot/NAME|host/NAME|group/NAME",
		Short: "Show all that is known of a volume, snapshot, host or group, and what to do next",
		Args:  console.OneArg("PVC|volume/NAME|snapshot/NAME|host/NAME|group/NAME"),
		Example: "  kubectl escache explain data-app-0 -n shop\n  kubectl escache explain volume/pvc-0a1b\n" +
			"  kubectl escache explain host/n1\n  kubectl escache explain group/rack1\n  kubectl escache explain snapshot/snapshot-0a1b",
		RunE: func(command *cobra.Command, args []string) error {
			api, err := c.Connect()
			if err != nil {
				return err
			}
			if kind, name, other := strings.Cut(args[0], "/"); other && !volume {
				return explainObject(command.Context(), c, api, kind, name)
			}
			name, err := volumeName(command.Context(), c, api, args[0], volume)
			if err != nil {
				return err
			}
			return explainVolume(command.Context(), c, api, name)
		},
	}
	command.Flags().BoolVar(&volume, "volume", false, "the name is that of a CacheVolume, not of a claim: the same as volume/NAME")
	return command
}

// volumeName returns the name of the volume that the argument names itself, or of that of a claim.
func volumeName(ctx context.Context, c *console.Console, api client.Reader, argument string, volume bool) (string, error) {
	if volume {
		return argument, nil
	}
	namespace, err := c.Namespace()
	if err != nil {
		return "", err
	}
	return claims.NameOf(ctx, api, namespace, argument)
}

// explainVolume explains a CacheVolume or a ReadOnlyVolume.
func explainVolume(ctx context.Context, c *console.Console, api client.Reader, name string) error {
	v, err := claims.ReadVolume(ctx, api, name)
	if err == nil {
		printVolume(ctx, c, api, v)
		return nil
	}
	if !errors.Is(err, claims.ErrNoVolume) {
		return err
	}
	readOnly := &v1alpha1.ReadOnlyVolume{}
	if api.Get(ctx, client.ObjectKey{Name: name}, readOnly) != nil {
		return err // there is neither
	}
	printReadOnly(ctx, c, api, readOnly)
	return nil
}

// explainObject explains what KIND/NAME names. Claims have no slash in their names.
func explainObject(ctx context.Context, c *console.Console, api client.Reader, kind, name string) error {
	switch kind {
	case "volume":
		return explainVolume(ctx, c, api, name)
	case "snapshot":
		return explainSnapshot(ctx, c, api, name)
	case "host", "node":
		return explainPart(ctx, c, api, choice.Filter{Nodes: []string{name}}, func(v *status.View) { printHost(c, v, name) })
	case "group":
		return explainPart(ctx, c, api, choice.Filter{Groups: []string{name}}, func(v *status.View) { printGroup(c, v, name) })
	default:
		return fmt.Errorf("%w: %s/%s: only volume/, snapshot/, host/ and group/ can be explained, and claims", failure.ErrUsage, kind, name)
	}
}

func prefixed(prefix, text string) string {
	if text == "" {
		return ""
	}
	return prefix + text
}
