package escacheclient

import (
	"context"
	"sync"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Local is the client of this host's escached. It remembers what escached says of the host as a
// whole for half a minute: health checks and the registration ask often, and each answer costs
// escached some commands.
type Local struct {
	*Client

	mu   sync.Mutex
	at   time.Time
	last escache.Node
}

// memory is how long an answer about the host stands.
const memory = 30 * time.Second

// Node returns what the host has and whether it is healthy, as of at most half a minute ago.
func (l *Local) Node(ctx context.Context) (*escache.Node, error) {
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
