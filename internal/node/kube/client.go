// Package kube is a small client for the Kubernetes API: CacheVolumes by name, NodeGroups, the
// labels and conditions of the own Node, one DaemonSet, and Events. It keeps no cache and watches
// nothing, so an idle node puts no load on the API server, and every read is current.
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
	ErrConflict    = errors.New("it was changed in between")
	ErrUnavailable = errors.New("the Kubernetes API does not answer")
	ErrForbidden   = errors.New("the Kubernetes API does not allow it")
)

// callTimeout bounds one request.
const callTimeout = 10 * time.Second

// answerLimit bounds the size of an answer in bytes; a page of a list is well below it.
const answerLimit = 32 << 20

// Client talks to the API server in JSON. client-go provides the connection and the credentials.
// Its typed clients are not used: the types they register take more memory than the rest of the
// process.
type Client struct {
	// ImagePrefix begins the names of images, before the names of their CacheVolumes.
	ImagePrefix string

	http *http.Client
	base string
}

// New returns a client. It does not contact the API server yet.
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

// refused turns the API server's Status answer into an error.
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
