// Package kube is the little of the Kubernetes API that a node needs: its volumes by name, the groups, its own Node's labels
// and Events. It keeps no cache and watches nothing: an idle node costs the API server nothing, and every read is current.
package kube

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// Errors of this package.
var (
	ErrNotFound    = errors.New("not found")
	ErrConflict    = errors.New("changed meanwhile")
	ErrUnavailable = errors.New("the Kubernetes API does not answer")
	ErrForbidden   = errors.New("the Kubernetes API does not allow it")
)

// callTimeout bounds one request.
const callTimeout = 10 * time.Second

// answerLimit in bytes bounds an answer; a page of a list is well below it.
const answerLimit = 32 << 20

// Client talks to the API server in JSON. client-go does the connection and the credentials; its typed clients are left out,
// because the types they register cost more memory than the rest of the process.
type Client struct {
	http *http.Client
	base string
}

// New returns a client.
func New(config *rest.Config) (*Client, error) {
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	base, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("connect to the Kubernetes API: %w", err)
	}
	return &Client{http: client, base: base.Scheme + "://" + base.Host + base.Path}, nil
}

// call makes one request. The answer is decoded into result unless that is nil.
func (c *Client) call(ctx context.Context, method, path, contentType string, body, result any) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	var reader io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		reader = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, c.base+path, reader)
	if err != nil {
		return err
	}
	request.Header.Set("Accept", "application/json")
	if contentType != "" {
		request.Header.Set("Content-Type", contentType)
	}
	response, err := c.http.Do(request)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	defer response.Body.Close() //nolint:errcheck // read to its end or given up
	data, err := io.ReadAll(io.LimitReader(response.Body, answerLimit))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if response.StatusCode >= http.StatusMultipleChoices {
		return refused(response.StatusCode, data)
	}
	if result == nil {
		return nil
	}
	return json.Unmarshal(data, result)
}

// refused makes an error of the API server's Status answer.
func refused(code int, body []byte) error {
	var status metav1.Status
	message := http.StatusText(code)
	if json.Unmarshal(body, &status) == nil && status.Message != "" {
		message = status.Message
	}
	switch {
	case code == http.StatusNotFound:
		return fmt.Errorf("%w: %s", ErrNotFound, message)
	case code == http.StatusConflict:
		return fmt.Errorf("%w: %s", ErrConflict, message)
	case code == http.StatusUnauthorized, code == http.StatusForbidden:
		return fmt.Errorf("%w: %s", ErrForbidden, message)
	case code == http.StatusTooManyRequests, code >= http.StatusInternalServerError:
		return fmt.Errorf("%w: %s", ErrUnavailable, message)
	default:
		return fmt.Errorf("the Kubernetes API refuses (%d): %s", code, message)
	}
}
