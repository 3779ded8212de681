package shutdown

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/escache/escache-csi/api/escache"
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
