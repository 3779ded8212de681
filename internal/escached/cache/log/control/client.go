package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/escache/escache-csi/internal/escached/cache"
)

const (
	// A status waits for no I/O: whoever has not answered by then hangs.
	statusTimeout = 2 * time.Second
	changeTimeout = 30 * time.Second
	// imageTimeout bounds the calls that wait for the image, as long as it takes.
	imageTimeout = 24 * time.Hour

	// A connection's rest may have one request of 32 MiB, in base64.
	maxAnswerBytes = 128 << 20
)

// Client calls the process behind one socket. It keeps no connection, so it also reaches the successor of that process. It is
// safe for concurrent use.
type Client struct {
	socket string
	http   *http.Client
}

// NewClient returns a client of a socket, at which nobody need listen yet.
func NewClient(socket string) *Client {
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", socket)
	}
	return &Client{socket: socket, http: &http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}}
}

// Status returns the state.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	return s, c.call(ctx, http.MethodGet, pathStatus, statusTimeout, nil, &s)
}

// WriteBack returns when what is dirty now is in the image, however long that takes. When ctx ends WriteBack returns, but the
// writing goes on. It returns cache.ErrFailed if the image refuses a write, and ErrHeld during a hold.
func (c *Client) WriteBack(ctx context.Context) error {
	return c.post(ctx, pathWriteBack, imageTimeout, nil)
}

// Retry lets write-back go on after the image refused a write.
func (c *Client) Retry(ctx context.Context) error { return c.post(ctx, pathRetry, changeTimeout, nil) }

// SetMode changes the mode. What is dirty stays so.
func (c *Client) SetMode(ctx context.Context, m cache.Mode) error {
	return c.post(ctx, pathMode, changeTimeout, modeRequest{m})
}

// SetOptions changes the options. An empty mode or order stays as it is.
func (c *Client) SetOptions(ctx context.Context, o Options) error {
	return c.post(ctx, pathOptions, changeTimeout, o)
}

// Resize makes the device larger, after the image has grown to so many bytes. It never makes it smaller.
func (c *Client) Resize(ctx context.Context, bytes int64) error {
	return c.post(ctx, pathResize, changeTimeout, resizeRequest{bytes})
}

// Hold brings the image to what the volume is at some moment in the call, and keeps it so until Resume, or until the limit has
// passed. If the caller leaves, it is not held, but that may take a moment: call Resume. It returns ErrHeld if it is held already, and
// cache.ErrFailed if the image refuses a write.
func (c *Client) Hold(ctx context.Context, limit time.Duration) error {
	return c.post(ctx, pathHold, imageTimeout, holdRequest{limit})
}

// Resume ends a hold, and a Hold that is under way. If the last Hold has failed because the image refused a write, Resume clears that as
// Retry does. Otherwise it does nothing to a volume that is not held.
func (c *Client) Resume(ctx context.Context) (Resumed, error) {
	var r Resumed
	return r, c.call(ctx, http.MethodPost, pathResume, changeTimeout, struct{}{}, &r)
}

// Stop removes the device and ends the process, when I/O that is under way is done and stable in the log. What is dirty stays
// there. It returns cache.ErrOpen, and changes nothing, while someone has the device open.
func (c *Client) Stop(ctx context.Context) error { return c.post(ctx, pathStop, changeTimeout, nil) }

// HandOver has the process leave the device to its successor, which is a process on the same host: I/O waits until that one serves.
// When HandOver returns, the process has closed the log. It keeps the connections of the device until Leave, or for some time.
func (c *Client) HandOver(ctx context.Context) (Handed, error) {
	var h Handed
	return h, c.call(ctx, http.MethodPost, pathHandOver, changeTimeout, struct{}{}, &h)
}

// Leave ends the process after HandOver.
func (c *Client) Leave(ctx context.Context) error { return c.post(ctx, pathLeave, changeTimeout, nil) }

func (c *Client) post(ctx context.Context, path string, timeout time.Duration, body any) error {
	if body == nil {
		body = struct{}{}
	}
	return c.call(ctx, http.MethodPost, path, timeout, body, nil)
}

func (c *Client) call(ctx context.Context, method, path string, timeout time.Duration, in, out any) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	var body io.Reader
	if in != nil {
		data, err := json.Marshal(in)
		if err != nil {
			return fmt.Errorf("encode the request: %w", err)
		}
		body = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://escache-cache"+path, body)
	if err != nil {
		return fmt.Errorf("make the request: %w", err)
	}
	answer, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("%w: %s: %w", ErrUnreachable, c.socket, errors.Join(ctx.Err(), err))
	}
	defer func() { _ = answer.Body.Close() }()
	data, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswerBytes))
	if err != nil {
		return fmt.Errorf("%w: %s: its answer broke off: %w", ErrUnreachable, c.socket, err)
	}
	if answer.StatusCode/100 != 2 {
		return refusal(answer.Status, data)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(data, out); err != nil {
		return fmt.Errorf("%w: its answer cannot be read: %w", ErrOther, err)
	}
	return nil
}

// refusal is the error in an answer.
func refusal(status string, body []byte) error {
	var f failure
	if err := json.Unmarshal(body, &f); err != nil || f.Code == "" {
		return fmt.Errorf("%w: it answers %s", ErrOther, status)
	}
	for _, c := range codes {
		if c.code == f.Code {
			return fmt.Errorf("%w: %s", c.err, f.Detail)
		}
	}
	return fmt.Errorf("%w: %s", ErrOther, f.Detail)
}
