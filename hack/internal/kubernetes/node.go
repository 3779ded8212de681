package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/escache/escache-csi/hack/internal/kubenode"
)

// NodeIdentity is what the kubelet of a node needs to join, and to be asked for logs and commands. It can be made before Start.
func (c *ControlPlane) NodeIdentity(name, address string) (kubenode.Identity, error) {
	kubeconfig, err := c.UserKubeconfig("system:node:"+name, "system:nodes")
	if err != nil {
		return kubenode.Identity{}, err
	}
	serving, err := c.authority.Server(name, address)
	if err != nil {
		return kubenode.Identity{}, err
	}
	return kubenode.Identity{Kubeconfig: kubeconfig, CA: c.authority.Certificate(), Certificate: serving.Certificate, Key: serving.Key}, nil
}

// WaitNode returns when a node is Ready. A node that lost its power counts as Ready until that is noticed, so for its return give the
// boot id (/proc/sys/kernel/random/boot_id) it has now; empty means any.
func (c *ControlPlane) WaitNode(ctx context.Context, name, bootID string) error {
	begin := time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := c.nodeReady(ctx, name, bootID)
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			waited := time.Since(begin).Round(time.Second)
			return fmt.Errorf("node %s not Ready after %s: %w (on the node: /var/log/kubelet.log)", name, waited, err)
		}
	}
}

// nodeStatus is what counts here of a Node object.
type nodeStatus struct {
	Status struct {
		Conditions []struct {
			Type    string `json:"type"`
			Status  string `json:"status"`
			Message string `json:"message"`
		} `json:"conditions"`
		NodeInfo struct {
			BootID string `json:"bootID"`
		} `json:"nodeInfo"`
	} `json:"status"`
}

func (c *ControlPlane) nodeReady(ctx context.Context, name, bootID string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Server()+"/api/v1/nodes/"+name, nil)
	if err != nil {
		return err
	}
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusNotFound {
		return errors.New("its kubelet has not registered it")
	}
	var node nodeStatus
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(body, &node); err != nil {
		return fmt.Errorf("%s: %w", response.Status, err)
	}
	if got := node.Status.NodeInfo.BootID; bootID != "" && got != bootID {
		return fmt.Errorf("the last one seen is its boot %s, not %s", got, bootID)
	}
	for _, condition := range node.Status.Conditions {
		if condition.Type == "Ready" {
			if condition.Status == "True" {
				return nil
			}
			return errors.New(condition.Message)
		}
	}
	return errors.New("its kubelet has not reported yet")
}
