package labtest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/test/lab/labclient"
)

// Limits of what is done to the lab as a whole.
const (
	powerOnLimit = 6 * time.Minute
	queryLimit   = 2 * time.Minute // an emulated host may be slow to answer
)

// escachedPort is where the lab's hosts serve the API.
const escachedPort = "7443"

// Lab is the running lab that this process is in.
type Lab struct {
	Hosts []*Host
	// Pools exist in Ceph. Tests make their images in them and remove them again.
	Pools []string

	client  *labclient.Client
	started int64 // seconds since 1970; two runs in one lab have nothing in common
	epochs  atomic.Uint64
	volumes atomic.Int64
}

// Open finds the lab. There must be one, with at least three hosts: a test that has none has
// failed.
func Open(t T) *Lab {
	t.Helper()
	client, err := labclient.Inside()
	if err != nil {
		t.Fatalf("%v", err)
	}
	status, err := client.Status(t.Context())
	if err != nil {
		t.Fatalf("%v", err)
	}
	l := &Lab{Pools: []string{"rbd", "fast"}, client: client}
	l.started = time.Now().Unix()
	l.epochs.Store(uint64(l.started))
	for _, node := range status.Nodes {
		h, err := l.host(node)
		if err != nil {
			t.Fatalf("%v", err)
		}
		l.Hosts = append(l.Hosts, h)
	}
	if len(l.Hosts) < 3 {
		t.Fatalf("the lab has %d hosts, and the tests need 3", len(l.Hosts))
	}
	return l
}

func (l *Lab) host(node labclient.Node) (*Host, error) {
	h := &Host{
		Name: node.Name, Address: node.DataAddress, lab: l,
		URL: "https://" + net.JoinHostPort(node.MgmtAddress, escachedPort),
		TLS: escacheclient.TLSFiles{CA: os.Getenv("LAB_CA"), Cert: os.Getenv("LAB_CLIENT_CERT"), Key: os.Getenv("LAB_CLIENT_KEY")},
	}
	var err error
	h.API, err = escacheclient.New(escacheclient.Options{
		Node: h.Name, BaseURL: h.URL, TLS: h.TLS, Timeout: escacheclient.Timeouts{Query: queryLimit, Change: callLimit},
	})
	return h, err
}

func (l *Lab) nextEpoch() uint64 { return l.epochs.Add(1) }
func (l *Lab) nextVolume() int   { return int(l.volumes.Add(1)) }

// PowerOff takes a host's power away.
func (l *Lab) PowerOff(t T, h *Host) {
	l.must(t, func(ctx context.Context) error { return l.client.PowerOff(ctx, h.Name) })
}

// offLimit is for a host that takes its own power away.
const offLimit = time.Minute

// WaitForOff waits until a host has lost its power by itself.
func (l *Lab) WaitForOff(t T, h *Host) {
	t.Helper()
	WaitFor(t, h.Name+" is without power", offLimit, func(ctx context.Context) error {
		status, err := l.client.Status(ctx)
		for _, node := range status.Nodes {
			if node.Name == h.Name && node.State != labclient.NodeOff {
				err = fmt.Errorf("it is %s", node.State)
			}
		}
		return err
	})
}

// PowerOn boots a host. It returns when commands can be run on it; escached may need longer.
func (l *Lab) PowerOn(t T, h *Host) {
	l.must(t, func(ctx context.Context) error { return l.client.PowerOn(ctx, h.Name) })
}

// Freeze stops a host's processor; its memory and its disks stay.
func (l *Lab) Freeze(t T, h *Host) {
	l.must(t, func(ctx context.Context) error { return l.client.Freeze(ctx, h.Name) })
}

// Thaw lets a frozen host go on.
func (l *Lab) Thaw(t T, h *Host) {
	l.must(t, func(ctx context.Context) error { return l.client.Thaw(ctx, h.Name) })
}

// NewDisk puts an empty disk in the place of the one below the caches of a host that is off.
func (l *Lab) NewDisk(t T, h *Host) {
	l.must(t, func(ctx context.Context) error { return l.client.NewDisk(ctx, h.Name) })
}

// Reinstall makes the root disk of a host that is off as new. The disk below its caches stays.
func (l *Lab) Reinstall(t T, h *Host) {
	l.must(t, func(ctx context.Context) error { return l.client.Reinstall(ctx, h.Name) })
}

// Host returns the host of that name.
func (l *Lab) Host(t T, name string) *Host {
	t.Helper()
	for _, h := range l.Hosts {
		if h.Name == name {
			return h
		}
	}
	t.Fatalf("the lab has no host %q", name)
	return nil
}

// Cut disconnects a host from everything but the tests.
func (l *Lab) Cut(t T, h *Host) {
	l.must(t, func(ctx context.Context) error { return l.client.Cut(ctx, h.Name, labclient.Cut{}) })
}

// CutFrom disconnects two hosts from each other.
func (l *Lab) CutFrom(t T, h, other *Host) {
	l.must(t, func(ctx context.Context) error { return l.client.Cut(ctx, h.Name, labclient.Cut{From: other.Name}) })
}

// CutSome disconnects a host from a part of the rest; labclient.Cut says from what, and whether one
// way.
func (l *Lab) CutSome(t T, h *Host, cut labclient.Cut) {
	l.must(t, func(ctx context.Context) error { return l.client.Cut(ctx, h.Name, cut) })
}

// Heal undoes all cuts.
func (l *Lab) Heal(t T) { l.must(t, l.client.Heal) }

// StallCeph makes Ceph's disk hang.
func (l *Lab) StallCeph(t T) { l.must(t, l.client.StallCeph) }

// ResumeCeph lets it go on.
func (l *Lab) ResumeCeph(t T) { l.must(t, l.client.ResumeCeph) }

// FailDisk makes the disk below a host's caches fail.
func (l *Lab) FailDisk(t T, h *Host) {
	l.must(t, func(ctx context.Context) error { return l.client.FailDisk(ctx, h.Name, false) })
}

// MendDisk makes it work again, with the contents that it had.
func (l *Lab) MendDisk(t T, h *Host) {
	l.must(t, func(ctx context.Context) error { return l.client.FailDisk(ctx, h.Name, true) })
}

func (l *Lab) must(t T, do func(context.Context) error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), powerOnLimit)
	defer cancel()
	if err := do(ctx); err != nil {
		t.Fatalf("%v", err)
	}
}

// rescue is for a failed test: what the hosts have to say is kept, and whatever the test broke in
// the lab is mended.
func (l *Lab) rescue(t T) {
	SaveLogs(t, l.client)
	l.mend(t)
}

// mend undoes everything that tests do to a lab.
func (l *Lab) mend(t T) {
	ctx, cancel := context.WithTimeout(context.Background(), powerOnLimit)
	defer cancel()
	failed := []error{l.client.ResumeCeph(ctx), l.client.Heal(ctx)}
	status, err := l.client.Status(ctx)
	failed = append(failed, err)
	for _, node := range status.Nodes {
		if node.DiskFailed {
			failed = append(failed, l.client.FailDisk(ctx, node.Name, true))
		}
		switch node.State {
		case labclient.NodeOff:
			failed = append(failed, l.client.PowerOn(ctx, node.Name))
		case labclient.NodeFrozen:
			failed = append(failed, l.client.Thaw(ctx, node.Name))
		case labclient.NodeBooting, labclient.NodeUp:
		}
	}
	if err := errors.Join(failed...); err != nil {
		t.Logf("mend the lab: %v", err)
	}
}

// CodeOf is the code of an error that escached answered; empty for any other error, and for none.
func CodeOf(err error) escache.Code {
	if problem, ok := errors.AsType[*escache.Problem](err); ok {
		return problem.Code
	}
	return ""
}
