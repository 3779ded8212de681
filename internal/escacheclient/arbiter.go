package escacheclient

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/escache/escache-csi/api/escache"
)

// Arbiter is a client of the arbiter, which decides whether a host may go on without its peer.
type Arbiter struct {
	client *Client
}

// NewArbiter returns a client for the arbiter at unix:///PATH, http://HOST:PORT or
// https://HOST:PORT; https needs the files. The timeout bounds one question with its repeats. A
// question is repeated only if nothing was sent.
func NewArbiter(address string, files TLSFiles, timeout time.Duration) (*Arbiter, error) {
	if timeout <= 0 {
		return nil, fmt.Errorf("arbiter: the timeout %s is not positive", timeout)
	}
	u, err := url.Parse(address)
	if err != nil {
		return nil, fmt.Errorf("arbiter: %w", err)
	}
	opts := Options{Node: "arbiter", UserAgent: "escached", Timeout: Timeouts{Change: timeout, Query: timeout}, AllowPlaintext: true}
	switch u.Scheme {
	case "unix":
		if u.Host != "" {
			return nil, fmt.Errorf("arbiter: %q is not unix:///PATH", address)
		}
		opts.UnixSocket = u.Path
	default:
		opts.BaseURL, opts.TLS = address, files
	}
	client, err := New(opts)
	if err != nil {
		return nil, fmt.Errorf("arbiter: %w", err)
	}
	return &Arbiter{client: client}, nil
}

// OutdatePeer returns nil only if the peer is on record as outdated, so that the host that asks may
// go on alone. Any error is a refusal.
func (a *Arbiter) OutdatePeer(ctx context.Context, req escache.OutdatePeerRequest) error {
	return a.client.change(ctx, "outdate_peer", escache.PathOutdatePeer, req)
}

// OutdateSelf returns nil only if the replica of the host that asks is on record as outdated.
func (a *Arbiter) OutdateSelf(ctx context.Context, req escache.OutdateSelfRequest) error {
	return a.client.change(ctx, "outdate_self", escache.PathOutdateSelf, req)
}

// Record returns the current record of a volume. Any error means that nothing is known.
func (a *Arbiter) Record(ctx context.Context, ref escache.VolumeRef) (escache.VolumeRecord, error) {
	var record escache.VolumeRecord
	err := a.client.do(ctx, call{
		name: "record", method: http.MethodGet, path: escache.PathRecord, query: query(ref), out: &record,
		limit: a.client.opts.Timeout.Query,
	})
	if err == nil && record.VolumeRef != ref {
		err = &CallError{Node: a.client.opts.Node, Call: "record", Err: &UnexpectedAnswerError{
			Status: http.StatusOK, Reason: fmt.Sprintf("%s/%s for a question about %s/%s", record.Pool, record.Image, ref.Pool, ref.Image),
		}}
	}
	if err != nil {
		return escache.VolumeRecord{}, err
	}
	return record, nil
}
