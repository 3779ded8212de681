package app

import (
	"context"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escacheclient"
)

// local is the escached of this host. What it says of the host as a whole is remembered for a while: health checks and the
// registration ask often, and each answer costs escached some commands. Whether it answers at all, the watch knows.
type local struct {
	*escacheclient.Client

	mu   sync.Mutex
	at   time.Time
	last escache.Node
}

// memory is how long an answer about the host stands.
const memory = 30 * time.Second

// Node returns what the host has and whether it is healthy, as of at most half a minute ago.
func (l *local) Node(ctx context.Context) (*escache.Node, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !l.at.IsZero() && time.Since(l.at) < memory {
		n := l.last
		return &n, nil
	}
	n, err := l.Client.Node(ctx)
	if err != nil {
		return nil, err
	}
	l.at, l.last = time.Now(), *n
	return n, nil
}
