package process

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/log/nbd"
	"github.com/escache/escache-csi/internal/escached/cache/log/nbd/nbdtest"
	"github.com/escache/escache-csi/internal/escached/cache/log/record"
)

// A filesystem that is larger than its device may ask for thousands of blocks that are not there.
func TestRequestsOutOfRangeAreLoggedOnceInAWhile(t *testing.T) {
	h := newHost(t)
	var log bytes.Buffer
	p, err := start(t.Context(), h.config, h, slog.New(slog.NewTextHandler(&log, nil)))
	must(t, err)
	refused := func(command nbd.Command, block int, want nbd.Errno) {
		t.Helper()
		err := h.Do(nbd.Request{Command: command, Offset: uint64(block) * record.BlockBytes, Bytes: record.BlockBytes}, make([]byte, record.BlockBytes))
		if got := (nbdtest.Error)(0); !errors.As(err, &got) || nbd.Errno(got) != want {
			t.Errorf("%s of block %d: %v", command, block, err)
		}
	}
	for block := range 50 {
		refused(nbd.Read, volumeBlocks+block, nbd.EINVAL)
		refused(nbd.Write, volumeBlocks+block, nbd.ENOSPC)
	}
	if n := p.Status().Counters.Errors; n != 100 {
		t.Errorf("%d errors are counted", n)
	}
	must(t, p.abandon())
	p.volume.mu.Lock() // nobody logs
	defer p.volume.mu.Unlock()
	var told []string
	for line := range strings.Lines(log.String()) {
		if strings.Contains(line, "a request that the device cannot do") {
			told = append(told, line)
		}
	}
	if len(told) != 2 || !strings.Contains(told[0], "request=read offset=2097152 bytes=4096") ||
		!strings.Contains(told[0], "errno=\"invalid argument\" device=2097152") || !strings.Contains(told[1], "request=write") {
		t.Errorf("told is\n%s", strings.Join(told, ""))
	}
}
