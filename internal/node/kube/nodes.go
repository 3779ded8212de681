package kube

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// Groups lists all NodeGroups. Without their CRD it returns none.
func (c *Client) Groups(ctx context.Context) ([]v1alpha1.NodeGroup, error) {
	var list v1alpha1.NodeGroupList
	err := c.call(ctx, http.MethodGet, "/apis/"+v1alpha1.GroupName+"/v1alpha1/nodegroups", "", nil, &list)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("list NodeGroups: %w", err)
	}
	return list.Items, nil
}

// NodeLabel reads a label of a Node; "" if the Node does not have it.
func (c *Client) NodeLabel(ctx context.Context, node, key string) (string, error) {
	var meta metav1.PartialObjectMetadata
	if err := c.call(ctx, http.MethodGet, "/api/v1/nodes/"+url.PathEscape(node), "", nil, &meta); err != nil {
		return "", fmt.Errorf("read Node %s: %w", node, err)
	}
	return meta.Labels[key], nil
}

// RemoveNodeLabel removes a label from a Node.
func (c *Client) RemoveNodeLabel(ctx context.Context, node, key string) error {
	patch := map[string]any{"metadata": map[string]any{"labels": map[string]any{key: nil}}}
	if err := c.call(ctx, http.MethodPatch, "/api/v1/nodes/"+url.PathEscape(node), "application/merge-patch+json", patch, nil); err != nil {
		return fmt.Errorf("remove label %s from Node %s: %w", key, node, err)
	}
	return nil
}

// shuttingDown is part of the kubelet's message for a Node that is not ready because its host is
// shutting down: the error of its shutdown manager (pkg/kubelet/nodeshutdown). The API has no field
// for it.
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

// DaemonSetDeleted reports whether a DaemonSet is deleted or about to be. A refused read counts as
// deleted: Helm removes the permissions right after the DaemonSet, and its pods end later.
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
