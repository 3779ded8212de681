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
	"net/url"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/escache/escache-csi/api/v1alpha1"

	"github.com/escache/escache-csi/api/escache"
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

const volumesPath = "/apis/" + v1alpha1.GroupName + "/v1alpha1/cachevolumes"

// Volume reads a CacheVolume, current as of the call.
func (c *Client) Volume(ctx context.Context, name string) (*v1alpha1.CacheVolume, error) {
	v := &v1alpha1.CacheVolume{}
	err := c.call(ctx, http.MethodGet, volumesPath+"/"+url.PathEscape(name), "", nil, v)
	if err != nil {
		return nil, fmt.Errorf("read CacheVolume %s: %w", name, err)
	}
	return v, nil
}

// VolumeOf finds the CacheVolume of an image. Usually the image is named after it, behind a prefix such as "escache-", and is found in
// one or two small reads: I/O may be frozen until this answers. Otherwise all are listed, a page at a time.
func (c *Client) VolumeOf(ctx context.Context, ref escache.VolumeRef) (*v1alpha1.CacheVolume, error) {
	names := []string{ref.Image}
	if _, name, ok := strings.Cut(ref.Image, "-"); ok && name != "" {
		names = []string{name, ref.Image}
	}
	for _, name := range names {
		v, err := c.Volume(ctx, name)
		if err == nil && v.Spec.Pool == ref.Pool && v.Spec.Image == ref.Image {
			return v, nil
		}
		if err != nil && !errors.Is(err, ErrNotFound) {
			return nil, err
		}
	}
	type item struct {
		Metadata struct {
			Name string `json:"name"`
		} `json:"metadata"`
		Spec struct {
			Pool  string `json:"pool"`
			Image string `json:"image"`
		} `json:"spec"`
	}
	query := url.Values{"limit": {"250"}}
	for {
		var page struct {
			Metadata metav1.ListMeta `json:"metadata"`
			Items    []item          `json:"items"`
		}
		if err := c.call(ctx, http.MethodGet, volumesPath+"?"+query.Encode(), "", nil, &page); err != nil {
			return nil, fmt.Errorf("list CacheVolumes: %w", err)
		}
		for _, i := range page.Items {
			if i.Spec.Pool == ref.Pool && i.Spec.Image == ref.Image {
				return c.Volume(ctx, i.Metadata.Name)
			}
		}
		if page.Metadata.Continue == "" {
			return nil, fmt.Errorf("CacheVolume of image %s/%s: %w", ref.Pool, ref.Image, ErrNotFound)
		}
		query.Set("continue", page.Metadata.Continue)
	}
}

// PatchStatus changes fields of a CacheVolume's status if nobody has changed the object since v was read; else ErrConflict.
func (c *Client) PatchStatus(ctx context.Context, v *v1alpha1.CacheVolume, status map[string]any) (*v1alpha1.CacheVolume, error) {
	return c.patch(ctx, v, volumesPath+"/"+url.PathEscape(v.Name)+"/status", map[string]any{
		"metadata": map[string]any{"resourceVersion": v.ResourceVersion}, "status": status,
	})
}

// Annotate sets an annotation of a CacheVolume if nobody has changed the object since v was read; else ErrConflict.
func (c *Client) Annotate(ctx context.Context, v *v1alpha1.CacheVolume, key, value string) (*v1alpha1.CacheVolume, error) {
	return c.patch(ctx, v, volumesPath+"/"+url.PathEscape(v.Name), map[string]any{
		"metadata": map[string]any{"resourceVersion": v.ResourceVersion, "annotations": map[string]any{key: value}},
	})
}

func (c *Client) patch(ctx context.Context, v *v1alpha1.CacheVolume, path string, patch map[string]any) (*v1alpha1.CacheVolume, error) {
	changed := &v1alpha1.CacheVolume{}
	if err := c.call(ctx, http.MethodPatch, path, "application/merge-patch+json", patch, changed); err != nil {
		return nil, fmt.Errorf("change CacheVolume %s: %w", v.Name, err)
	}
	return changed, nil
}

// Groups lists all NodeGroups. There are none while their CRD is not installed.
func (c *Client) Groups(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	var list v1alpha1.NodeGroupList
	err := c.call(ctx, http.MethodGet, "/apis/"+v1alpha1.GroupName+"/v1alpha1/nodegroups", "", nil, &list)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("list NodeGroups: %w", err)
	}
	return list.Items, nil
}

// NodeLabel reads a label of a Node; "" where it has none.
func (c *Client) NodeLabel(ctx context.Context, node, key string) (string, error) {
	var meta metav1.PartialObjectMetadata
	if err := c.call(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(node), "", nil, &meta); err != nil {
		return "", fmt.Errorf("read Node %s: %w", node, err)
	}
	return meta.Labels[key], nil
}

// RemoveNodeLabel takes a label off a Node.
func (c *Client) RemoveNodeLabel(ctx context.Context, node, key string) error {
	patch := map[string]any{"metadata": map[string]any{"labels": map[string]any{key: nil}}}
	if err := c.call(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(node), "application/merge-patch+json", patch, nil); err != nil {
		return fmt.Errorf("take label %s off Node %s: %w", key, node, err)
	}
	return nil
}

// shuttingDown is what the kubelet says of a Node that is not ready because its host is shutting down: the error of its shutdown manager
// (pkg/kubelet/nodeshutdown). There is no field for it.
const shuttingDown = "node is shutting down"

// NodeShutsDown reports whether the kubelet says that the host of a Node is shutting down.
func (c *Client) NodeShutsDown(ctx context.Context, node string) (bool, error) {
	var object struct {
		Status struct {
			Conditions []struct {
				Type    string `json:"type"`
				Status  string `json:"status"`
				Message string `json:"message"`
			} `json:"conditions"`
		} `json:"status"`
	}
	if err := c.call(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(node), "", nil, &object); err != nil {
		return false, fmt.Errorf("read Node %s: %w", node, err)
	}
	for _, condition := range object.Status.Conditions {
		if condition.Type == "Ready" {
			return condition.Status != "True" && strings.Contains(condition.Message, shuttingDown), nil
		}
	}
	return false, nil
}

// DaemonSetDeleted reports whether a DaemonSet is gone or going. Who may not ask any more has been removed with it: Helm takes the rights
// away right after the DaemonSet, and its pods end later.
func (c *Client) DaemonSetDeleted(ctx context.Context, namespace, name string) (bool, error) {
	var object metav1.PartialObjectMetadata
	path := "/apis/apps/v1/namespaces/" + url.PathEscape(namespace) + "/daemonsets/" + url.PathEscape(name)
	err := c.call(ctx, http.MethodGet, path, "", nil, &object)
	switch {
	case errors.Is(err, ErrNotFound), errors.Is(err, ErrForbidden):
		return true, nil
	case err != nil:
		return false, fmt.Errorf("read DaemonSet %s/%s: %w", namespace, name, err)
	}
	return object.DeletionTimestamp != nil, nil
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
