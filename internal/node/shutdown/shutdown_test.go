package shutdown

import (
	"context"
	"errors"
	"log/slog"
	"path/filepath"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/filelock"
)

// leaving is a host whose volumes are detached one a second.
type leaving struct {
	down    bool
	nodeErr error
	silent  time.Duration // how long escached does not answer
	begin   time.Time
	volumes int
}

func (l *leaving) NodeShutsDown(context.Context, string) (bool, error) { return l.down, l.nodeErr }

func (l *leaving) Status(context.Context) (*escache.Status, error) {
	if time.Since(l.begin) < l.silent {
		return nil, errors.New("no")
	}
	status := &escache.Status{Volumes: []escache.VolumeStatus{{VolumeRef: escache.VolumeRef{Image: "standby"}}}}
	for range max(l.volumes-int(time.Since(l.begin)/time.Second), 0) {
		status.Volumes = append(status.Volumes, escache.VolumeStatus{Device: "/dev/escache/rbd/x"})
	}
	return status, nil
}

func TestCSINodeWaitsForItsVolumesOnlyWhileTheHostShutsDown(t *testing.T) {
	for _, row := range []struct {
		name    string
		host    leaving
		longest time.Duration
		waits   time.Duration
	}{
		{"the host shuts down", leaving{down: true, volumes: 5}, time.Minute, 5 * time.Second},
		{"it has no volumes", leaving{down: true}, time.Minute, 0},
		{"they take too long", leaving{down: true, volumes: 50}, 10 * time.Second, 10 * time.Second},
		{"csi-node is upgraded", leaving{volumes: 5}, time.Minute, 0},
		{"Kubernetes does not answer", leaving{down: true, nodeErr: errors.New("no"), volumes: 5}, time.Minute, 0},
		{"escached does not answer", leaving{down: true, silent: time.Hour, volumes: 5}, time.Minute, time.Minute},
		{"escached answers late", leaving{down: true, silent: 3 * time.Second, volumes: 5}, time.Minute, 5 * time.Second},
		{"it is told not to wait", leaving{down: true, volumes: 5}, 0, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				host := row.host
				host.begin = time.Now()
				d := Shutdown{
					Node: "n1", Longest: row.longest, Poll: time.Second, Nodes: &host, Volumes: &host, Log: slog.New(slog.DiscardHandler),
				}
				d.Wait(t.Context())
				if waited := time.Since(host.begin); waited != row.waits {
					t.Errorf("waited %s, not %s", waited, row.waits)
				}
			})
		})
	}
}

// lockedHost says when it was asked whether the lock is free.
type lockedHost struct {
	*leaving

	lock string
	free []string
}

func (l *lockedHost) look(when string) {
	if filelock.IsFree(l.lock) {
		l.free = append(l.free, when)
	}
}

func (l *lockedHost) NodeShutsDown(ctx context.Context, node string) (bool, error) {
	l.look("while Kubernetes is asked")
	return l.leaving.NodeShutsDown(ctx, node)
}

func (l *lockedHost) Status(ctx context.Context) (*escache.Status, error) {
	l.look("while volumes are connected")
	return l.leaving.Status(ctx)
}

func TestEscachedServesUntilCSINodeHasEnded(t *testing.T) {
	host := &lockedHost{leaving: &leaving{down: true, begin: time.Now()}, lock: filepath.Join(t.TempDir(), "lock")}
	d := &Shutdown{Lock: host.lock, Longest: time.Minute, Nodes: host, Volumes: host, Log: slog.New(slog.DiscardHandler)}
	if !filelock.IsFree(host.lock) {
		t.Error("csi-node holds the lock before it is told to end")
	}
	d.Wait(t.Context())
	host.look("while calls end")
	if len(host.free) > 0 {
		t.Errorf("the lock is free %q", host.free)
	}
	runtime.KeepAlive(d)
}

func TestCSINodeEndsWithoutItsLock(t *testing.T) {
	d := &Shutdown{
		Lock: filepath.Join(t.TempDir(), "missing", "lock"), Longest: time.Minute,
		Nodes: &leaving{down: true}, Volumes: &leaving{}, Log: slog.New(slog.DiscardHandler),
	}
	d.Wait(t.Context())
}

// leaver is a kubelet, and what Kubernetes says of the DaemonSet.
type leaver struct {
	deleted bool
	err     error
	asked   string
	left    int
}

func (l *leaver) DaemonSetDeleted(_ context.Context, namespace, name string) (bool, error) {
	l.asked = namespace + " " + name
	return l.deleted, l.err
}

func (l *leaver) Leave() error { l.left++; return nil }

func TestTheKubeletForgetsTheDriverOnlyWhenItsDaemonSetIsDeleted(t *testing.T) {
	for _, row := range []struct {
		name      string
		daemonSet string
		host      leaver
		left      int
	}{
		{"uninstalled", "system/escache-node", leaver{deleted: true}, 1},
		{"upgraded", "system/escache-node", leaver{}, 0},
		{"Kubernetes does not answer", "system/escache-node", leaver{err: errors.New("no")}, 0},
		{"not a DaemonSet's", "", leaver{deleted: true}, 0},
	} {
		t.Run(row.name, func(t *testing.T) {
			d := Shutdown{DaemonSet: row.daemonSet, DaemonSets: &row.host, Kubelet: &row.host, Log: slog.New(slog.DiscardHandler)}
			d.Removed(t.Context())
			if row.host.left != row.left {
				t.Errorf("the driver was taken back %d times, not %d", row.host.left, row.left)
			}
			if row.daemonSet != "" && row.host.asked != "system escache-node" {
				t.Errorf("asked for %q", row.host.asked)
			}
		})
	}
}
