package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/internal/benchmark/device"
	"github.com/escache/escache-csi/test/blockcheck/block"
)

// readBlocks bounds one read.
const readBlocks = 256

// maxReports bounds what is printed: a lost replica would otherwise print a line for every block.
const maxReports = 20

// report counts what was found.
type report struct {
	right, newer, wrong int
}

func (r *report) String() string {
	return fmt.Sprintf("right %d newer %d wrong %d", r.right, r.newer, r.wrong)
}

func verifyCommand() *cobra.Command {
	var fenced []uint
	cmd := &cobra.Command{
		Use:   "verify DEVICE",
		Short: "read the acknowledged list on standard input and report each block that is missing, stale, corrupt or foreign",
		Long: "A newer block of a writer in the list is no fault: it was written and its acknowledgement did not get out.\n" +
			"Unless that writer is fenced: what it had written is in the list as it was found then, and a newer block came after.\n" +
			"The last line counts: right, newer, wrong.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			ledger, err := block.ReadLedger(cmd.InOrStdin())
			if err != nil {
				return err
			}
			dev, err := device.Open(args[0], device.Read)
			if err != nil {
				return err
			}
			defer dev.Close()
			r, err := verify(dev, ledger, fenced, cmd.OutOrStdout())
			if err != nil {
				return err
			}
			fmt.Fprintln(cmd.OutOrStdout(), &r)
			if r.wrong > 0 {
				return fmt.Errorf("%d of %d acknowledged blocks are wrong", r.wrong, len(ledger))
			}
			return nil
		},
	}
	cmd.Flags().UintSliceVar(&fenced, "fenced", nil, "epochs of writers that had no right to write any more when the list was made")
	return cmd
}

// writers says of each epoch in a list whether its writer may have written after the list was made.
type writers map[uint64]bool

func verify(dev *os.File, ledger block.Ledger, fenced []uint, out io.Writer) (report, error) {
	if len(ledger) == 0 {
		return report{}, errors.New("the list is empty, so nothing can be said")
	}
	epochs := writers{}
	for _, id := range ledger {
		epochs[id.Epoch] = true
	}
	for _, epoch := range fenced {
		epochs[uint64(epoch)] = false
	}
	p, err := device.Buffer(readBlocks * block.Size)
	if err != nil {
		return report{}, err
	}
	var r report
	for offsets := slices.Sorted(maps.Keys(ledger)); len(offsets) > 0; {
		n := run(offsets)
		if _, err := dev.ReadAt(p[:n*block.Size], offsets[0]); err != nil {
			return r, fmt.Errorf("read %d blocks at %d: %w", n, offsets[0], err)
		}
		for i, offset := range offsets[:n] {
			r.add(judge(p[i*block.Size:(i+1)*block.Size], offset, ledger[offset], epochs), out)
		}
		offsets = offsets[n:]
	}
	return r, nil
}

// run is how many of the offsets, from the first on, one read can take.
func run(offsets []int64) int {
	n := 1
	for n < len(offsets) && n < readBlocks && offsets[n] == offsets[n-1]+block.Size {
		n++
	}
	return n
}

// verdict on one block; fault is empty where nothing is wrong.
type verdict struct {
	newer bool
	fault string
}

func judge(p []byte, offset int64, want block.ID, epochs writers) verdict {
	found, err := block.Parse(p, offset)
	say := func(kind string) verdict {
		return verdict{fault: fmt.Sprintf("%s %d want %s found %s", kind, offset, want, found)}
	}
	switch {
	case errors.Is(err, block.ErrMissing):
		return say("missing")
	case errors.Is(err, block.ErrMoved):
		return say("moved")
	case err != nil:
		return say("corrupt")
	case found.Before(want):
		return say("stale")
	}
	may, known := epochs[found.Epoch]
	switch {
	case !known:
		return say("foreign")
	case !may && found != want:
		return say("fenced")
	}
	return verdict{newer: want.Before(found)}
}

func (r *report) add(v verdict, out io.Writer) {
	switch {
	case v.fault != "":
		if r.wrong++; r.wrong <= maxReports {
			fmt.Fprintln(out, v.fault)
		}
	case v.newer:
		r.newer++
	default:
		r.right++
	}
}
