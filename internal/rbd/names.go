package rbd

import (
	"context"
	"sync"
)

// names lets one call at a time touch an image's name. librbd's own steps on names are not atomic:
// of two that delete an image while a third makes it again, the slower one removes the new image's
// ID. So it is with entries of the blocklist, which are replaced in two steps, with notes in an image's
// metadata, of which the last one counts, and with its snapshots and its size, which are changed by name after a look.
type names struct {
	mu     sync.Mutex
	queues map[string]*queue
}

type queue struct {
	turn    chan struct{} // holds one token while a call has the name
	members int           // the holder and all that wait
}

// enter waits for the name, and returns false if ctx ends first. The empty name is free for all.
func (n *names) enter(ctx context.Context, name string) bool {
	if name == "" {
		return true
	}
	n.mu.Lock()
	q := n.queues[name]
	if q == nil {
		q = &queue{turn: make(chan struct{}, 1)}
		n.queues[name] = q
	}
	q.members++
	n.mu.Unlock()
	select {
	case q.turn <- struct{}{}:
		return true
	case <-ctx.Done():
		n.drop(name, q)
		return false
	}
}

func (n *names) leave(name string) {
	if name == "" {
		return
	}
	n.mu.Lock()
	q := n.queues[name]
	n.mu.Unlock()
	<-q.turn
	n.drop(name, q)
}

func (n *names) drop(name string, q *queue) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if q.members--; q.members == 0 {
		delete(n.queues, name)
	}
}
