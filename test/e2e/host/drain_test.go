//go:build e2e

package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/devmapper"
	"github.com/escache/escache-csi/test/labtest"
)

const (
	drainTest  = "TestDrainOnThisKernel"
	drainLimit = 20 * time.Second
)

func overwrittenOnItsWay(t *testing.T, lab *labtest.Lab) {
	out := onHost(t, lab.Hosts[0], drainTest, contractEngine+"="+string(escache.EngineWritecache))
	if !strings.Contains(out, "PASS: "+drainTest+" ") {
		t.Errorf("%s did not run", drainTest)
	}
}

// TestDrainOnThisKernel overwrites two blocks while the origin has not answered the write of their older content. The
// origin answers for one of them first. When the kernel then goes on with that, it leaves out the other one, and forgets it.
func TestDrainOnThisKernel(t *testing.T) {
	if os.Getenv(onThisKernel) == "" {
		t.Skip("overwrittenOnItsWay runs it on a host of the lab")
	}
	h := newKernelHost(t)
	h.do("sh", "-c", "echo write through >/sys/block/${0#/dev/}/queue/write_cache", h.below) // as krbd has it: else a flush waits for all
	halves := []string{"contract-half-0", "contract-half-1"}
	sectors := h.size / 2 / devmapper.SectorBytes
	var table []string
	for i, half := range halves {
		at := int64(i) * sectors
		h.dmsetup("create", half, "--table", fmt.Sprintf("0 %d linear %s %d", sectors, h.below, at))
		table = append(table, fmt.Sprintf("%d %d linear %s 0", at, sectors, devmapper.Node(half)))
	}
	t.Cleanup(func() { // before the origin is removed
		h.reload()
		for _, half := range halves {
			h.dmsetup("remove", half)
		}
	})
	h.dmsetup("suspend", originName)
	h.dmsetup("load", originName, "--table", strings.Join(table, "\n"))
	h.dmsetup("resume", originName)

	e, spec := h.Engine(), h.Spec()
	fatal(t, e.Prepare(t.Context(), spec, cache.Identity{Pool: "rbd", Image: "image", ImageID: "10ab"}, false))
	path, err := e.Assemble(t.Context(), spec)
	fatal(t, err)
	write := func(with byte) {
		f, err := h.Open(path)
		fatal(t, err)
		block := slices.Repeat([]byte{with}, cache.BlockBytes)
		for _, at := range []int64{0, h.size / 2} {
			_, writeErr := f.WriteAt(block, at)
			err = errors.Join(err, writeErr)
		}
		fatal(t, errors.Join(err, f.Close()))
	}
	becomes := func(what string, wanted func(cache.State) bool) {
		t.Helper()
		labtest.WaitFor(t, what, drainLimit, func(ctx context.Context) error {
			all, err := e.States(ctx, contractName)
			if err == nil && !wanted(all[contractName]) {
				err = fmt.Errorf("it is %+v", all[contractName])
			}
			return err
		})
	}
	write(1)
	for _, half := range halves {
		h.dmsetup("suspend", "--noflush", "--nolockfs", half)
	}
	fatal(t, e.SetMode(t.Context(), contractName, cache.Writethrough))
	becomes("both are on their way", func(s cache.State) bool { return s.WritingBack == 2*cache.BlockBytes })
	write(2)
	for left, half := range slices.Backward(halves) {
		h.dmsetup("resume", half)
		becomes(half+" answers", func(s cache.State) bool { return s.WritingBack == int64(left)*cache.BlockBytes })
	}
	becomes("all are answered", func(s cache.State) bool {
		t.Logf("%d bytes are dirty, of which %d are on their way", s.Dirty, s.WritingBack)
		return s.WritingBack == 0
	})
	labtest.WaitFor(t, "everything is in the origin", drainLimit, func(ctx context.Context) error {
		all, err := e.States(ctx, contractName)
		if state := all[contractName]; err != nil || state.Clean() {
			return err
		}
		return errors.Join(fmt.Errorf("it is %+v", all[contractName]), e.SetMode(ctx, contractName, cache.Writethrough))
	})
}
