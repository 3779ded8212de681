package krbd

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
)

func TestReachTellsAMissingPoolFromAMissingImage(t *testing.T) {
	// As Linux 6.1 writes them to /dev/kmsg.
	const noPool = "6,1042,83519041,-;rbd: pool fast does not exist\n"
	const noImage = "6,1042,83519041,-;rbd: image escache-preflight-x does not exist\n"
	unreadable := errors.New("operation not permitted")
	for name, c := range map[string]struct {
		mapped error
		log    string
		opened error
		want   error
	}{
		"missing image":    {mapped: syscall.ENOENT, log: noImage},
		"missing pool":     {mapped: syscall.ENOENT, log: noPool, want: ErrNoPool},
		"another pool":     {mapped: syscall.ENOENT, log: strings.ReplaceAll(noPool, "fast", "faster")},
		"no log":           {mapped: syscall.ENOENT, opened: unreadable, want: ErrNotFound},
		"refused":          {mapped: syscall.EPERM, log: noPool, want: ErrRefused},
		"no answer":        {mapped: syscall.ETIMEDOUT, want: ErrUnavailable},
		"no configuration": {want: ErrConfig},
	} {
		client, w, _ := newClient(t)
		w.err = c.mapped
		if name == "no configuration" {
			client.cfg.Keyring = "/nonexistent"
		}
		client.log = func() (func() (string, error), error) {
			return func() (string, error) { return c.log, nil }, c.opened
		}
		if err := client.Reach(t.Context(), "fast"); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
			t.Errorf("%s: %v, want %v", name, err, c.want)
		}
		if name != "no configuration" && !strings.Contains(w.data, " fast escache-preflight-") {
			t.Errorf("%s: wrote %q", name, w.data)
		}
	}
}

func TestReachUnmapsAnImageThatThereIsAllTheSame(t *testing.T) {
	c, w, dir := newClient(t)
	c.log = func() (func() (string, error), error) { return func() (string, error) { return "", nil }, nil }
	w.then = func() {
		if image, ok := strings.CutSuffix(w.data, " -"); ok {
			files(t, dir, device("3", image[strings.LastIndex(image, " ")+1:], "… exclusive,noshare …"))
		}
	}
	if err := c.Reach(t.Context(), "rbd"); err != nil {
		t.Fatal(err)
	}
	if !strings.HasSuffix(w.path, "remove_single_major") || w.data != "3" {
		t.Errorf("the last write is %q to %s", w.data, w.path)
	}
}

func TestSilentNamesTheMonitorsThatTakeNoConnection(t *testing.T) {
	c, _, _ := newClient(t)
	c.dial = func(_ context.Context, _, address string) (net.Conn, error) {
		if address == "10.0.0.2:6789" {
			return nil, syscall.ECONNREFUSED
		}
		a, b := net.Pipe()
		b.Close()
		return a, nil
	}
	all := []string{"10.0.0.1:6789", "10.0.0.2:6789"}
	if got := c.Silent(t.Context(), all); !slices.Equal(got, all[1:]) || len(all) != 2 {
		t.Errorf("%q", got)
	}
	if mons, err := c.Monitors(t.Context()); !slices.Equal(mons, []string{"10.0.0.1:6789"}) || err != nil {
		t.Errorf("%q, %v", mons, err)
	}
}
