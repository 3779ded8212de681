// Package etcdrestore notices that etcd was restored from a backup while this process ran.
//
// All that this process knows from watches is from after the backup then. The API server takes a watch from a revision
// that etcd has not reached again, and sends nothing until it has. So new objects would not be seen for as long
// (https://github.com/kubernetes/kubernetes/issues/107457).
package etcdrestore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// ErrRestored ends the process, which starts again with what etcd has now. The sidecars end with it, because they lose
// their connection.
var ErrRestored = errors.New("etcd was restored to an earlier time; exiting, because watches would show nothing until it has caught up")

// Watch compares the revisions of the API server's answers.
type Watch struct {
	Live client.Reader // asks the API server
	Log  *slog.Logger
	// Every is the time between two questions, and Again the time after one that failed: etcd may be restored then,
	// and its revisions grow fast again. Longest bounds a question.
	Every, Again, Longest time.Duration
}

// NeedLeaderElection returns false: a standby watches, too.
func (*Watch) NeedLeaderElection() bool { return false }

// Start returns ErrRestored once a revision is lower than one before it, and nil when the context ends.
func (w *Watch) Start(ctx context.Context) error {
	var highest uint64
	for {
		wait := w.Every
		now, err := w.revision(ctx)
		switch {
		case err != nil:
			w.Log.DebugContext(ctx, "cannot learn the revision of etcd; trying again", "error", err)
			wait = w.Again
		case now < highest:
			return fmt.Errorf("%w: revision %d came after %d", ErrRestored, now, highest)
		default:
			highest = now
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
	}
}

// revision returns what etcd has reached. A list that names no revision is never older than when it was asked for.
func (w *Watch) revision(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, w.Longest)
	defer cancel()
	groups := &v1alpha1.NodeGroupList{}
	if err := w.Live.List(ctx, groups, client.Limit(1)); err != nil {
		return 0, fmt.Errorf("list groups: %w", err)
	}
	revision, err := strconv.ParseUint(groups.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("read the revision of a list of groups: %w", err)
	}
	return revision, nil
}
