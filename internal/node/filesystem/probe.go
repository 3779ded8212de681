package filesystem

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/escache/escache-csi/internal/command"
)

// Signature is what libblkid finds on a device.
type Signature struct {
	// Found is false if there is no signature at all.
	Found bool
	// Usage is filesystem, raid, crypto or other; empty for a partition table alone.
	Usage string
	Type  string
	UUID  string
	// PartitionTable is dos, gpt, …; empty without one.
	PartitionTable string
	// Ambivalent: several signatures contradict each other.
	Ambivalent bool
}

func (s Signature) is(fsType string) bool {
	return s.Found && !s.Ambivalent && s.PartitionTable == "" && s.Usage == "filesystem" && s.Type == fsType
}

// String describes what was found, for operators.
func (s Signature) String() string {
	switch {
	case s.Ambivalent:
		return "several signatures that contradict each other (see `wipefs DEVICE`)"
	case s.Type != "" && s.PartitionTable != "":
		return fmt.Sprintf("%s and a partition table (%s)", s.Type, s.PartitionTable)
	case s.PartitionTable != "":
		return fmt.Sprintf("a partition table (%s)", s.PartitionTable)
	case s.UUID != "":
		return fmt.Sprintf("%s (UUID %s)", s.Type, s.UUID)
	default:
		return s.Type
	}
}

// Exit codes of blkid(8) in low-level probing mode.
const (
	blkidNothing    = 2
	blkidAmbivalent = 8
)

const (
	probeTimeout   = 20 * time.Second
	inspectTimeout = 30 * time.Second
)

// Tools runs the programs that work on filesystems.
type Tools struct {
	run command.Runner
	// inspector is the command, without --scan and the device, that prints a Surface as JSON:
	// csi-node itself.
	inspector []string
}

// NewTools returns Tools. They run the inspector with [--scan] DEVICE. It prints Inspect's result
// as JSON, and exits with ExitInUse for ErrInUse.
func NewTools(run command.Runner, inspector []string) *Tools {
	return &Tools{run: run, inspector: inspector}
}

// ExitInUse is the inspector's exit code for a device that is in use.
const ExitInUse = 3

// Probe finds out what is on a device, without writing to it.
func (t *Tools) Probe(ctx context.Context, volume, device string) (Content, error) {
	signature, err := t.signature(ctx, volume, device)
	if err != nil {
		return Content{}, err
	}
	surface, err := t.inspect(ctx, volume, device, !signature.Found)
	if err != nil {
		return Content{}, err
	}
	return Content{Signature: signature, Surface: surface}, nil
}

func (t *Tools) signature(ctx context.Context, volume, device string) (Signature, error) {
	r, err := t.run.Run(ctx, command.Command{
		Volume: volume, Name: "blkid", Timeout: probeTimeout,
		Args: []string{"-p", "-u", "filesystem,raid,crypto,other", "-o", "export", device},
	})
	var exit *command.ExitError
	switch {
	case err == nil:
		return parseSignature(string(r.Stdout)), nil
	case !errors.As(err, &exit):
		return Signature{}, err
	case exit.Code == blkidAmbivalent:
		return Signature{Found: true, Ambivalent: true}, nil
	case exit.Code == blkidNothing:
		// blkid answers the same for a device that it cannot open or read; Inspect then fails.
		return Signature{}, nil
	default:
		return Signature{}, fmt.Errorf("probe %s: %w", device, err)
	}
}

func parseSignature(export string) Signature {
	values := map[string]string{}
	for line := range strings.Lines(export) {
		if key, value, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			values[key] = value
		}
	}
	return Signature{
		Found: true, Usage: values["USAGE"], Type: values["TYPE"], UUID: values["UUID"], PartitionTable: values["PTTYPE"],
	}
}

func (t *Tools) inspect(ctx context.Context, volume, device string, scan bool) (Surface, error) {
	args := append([]string{}, t.inspector[1:]...)
	if scan {
		args = append(args, "--scan")
	}
	r, err := t.run.Run(ctx, command.Command{
		Volume: volume, Name: t.inspector[0], Args: append(args, device), Timeout: inspectTimeout,
	})
	var exit *command.ExitError
	if errors.As(err, &exit) && exit.Code == ExitInUse {
		return Surface{}, fmt.Errorf("%s: %w: a mount or an earlier mkfs holds it", device, ErrInUse)
	}
	if err != nil {
		return Surface{}, fmt.Errorf("inspect %s: %w", device, err)
	}
	var s Surface
	if err := json.Unmarshal(r.Stdout, &s); err != nil {
		return Surface{}, fmt.Errorf("inspect %s: %w", device, err)
	}
	return s, nil
}
