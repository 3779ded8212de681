package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/benchmark"
	"github.com/escache/escache-csi/internal/benchmark/disk"
)

// bench measures mounted volumes. kubectl escache bench runs it in a pod of its own, which has nothing
// of the driver but this program.
func bench() *cobra.Command {
	plan := benchmark.Plan{}
	cmd := &cobra.Command{
		Use:    "bench --size BYTES NAME=DIRECTORY…",
		Short:  "measure volumes in turns, and print progress and the result as lines of JSON",
		Hidden: true,
		Args:   cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			volumes, err := volumesOf(args)
			if err != nil {
				return err
			}
			out := json.NewEncoder(cmd.OutOrStdout())
			limit := plan.MostTime(len(volumes))
			ctx, cancel := context.WithTimeout(cmd.Context(), limit)
			defer cancel()
			result, err := disk.Compare(ctx, plan, volumes, func(line string) { _ = out.Encode(benchmark.Message{Progress: line}) })
			if errors.Is(err, context.DeadlineExceeded) {
				err = fmt.Errorf("not done within %s, because reads and writes take long; choose a smaller size or fewer rounds: %w",
					limit, err)
			}
			if err != nil {
				return errors.Join(err, out.Encode(benchmark.Message{Error: err.Error()}))
			}
			return out.Encode(benchmark.Message{Result: &result})
		},
	}
	cmd.Flags().Int64Var(&plan.Bytes, "size", 0, "size of each volume, in bytes")
	cmd.Flags().IntVar(&plan.Rounds, "rounds", 5, "how many rounds to measure")
	cmd.Flags().DurationVar(&plan.Turn, "turn", 4*time.Second, "how long each test takes on each volume in one round")
	return cmd
}

func volumesOf(args []string) ([]disk.Volume, error) {
	var volumes []disk.Volume
	for _, arg := range args {
		name, dir, found := strings.Cut(arg, "=")
		if !found || name == "" || dir == "" {
			return nil, fmt.Errorf("%q is not NAME=DIRECTORY", arg)
		}
		volumes = append(volumes, disk.Volume{Name: name, Dir: dir})
	}
	return volumes, nil
}
