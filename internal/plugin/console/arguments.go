package console

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/plugin/failure"
)

// NoArgs refuses arguments.
func NoArgs(command *cobra.Command, args []string) error {
	if len(args) > 0 {
		return fmt.Errorf("%w: %s has no %q; see --help", failure.ErrUsage, command.CommandPath(), args[0])
	}
	return nil
}

// OneArg accepts exactly one argument; what is its name in the usage line.
func OneArg(what string) cobra.PositionalArgs {
	return func(command *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%w: name one %s: %s %s", failure.ErrUsage, what, command.CommandPath(), what)
		}
		return nil
	}
}

// ClaimName splits NAMESPACE/NAME. A name alone is in the namespace of the command line.
func (c *Console) ClaimName(claim string) (namespace, name string, err error) {
	namespace, name, both := strings.Cut(claim, "/")
	if !both {
		name = claim
		if namespace, err = c.Namespace(); err != nil {
			return "", "", err
		}
	}
	if namespace == "" || name == "" || strings.Contains(name, "/") {
		return "", "", fmt.Errorf("%w: claim %q is not NAMESPACE/NAME", failure.ErrUsage, claim)
	}
	return namespace, name, nil
}
