package kubernetes

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/internal/kubenode"
)

// NodeIdentity is what the kubelet of a node needs to join, and to be asked for logs and commands.
// It can be made before Start.
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

// addNodes makes the nodes' objects before their kubelets do. A kubelet that is slow to make its
// own then rests for two minutes before it looks for it again and reports Ready (initBackoff in the
// kubelet's csi_plugin.go).
func (c *ControlPlane) addNodes(ctx context.Context) error {
	for _, name := range c.cfg.Nodes {
		if err := c.addNode(ctx, name); err != nil {
			return fmt.Errorf("add node %s: %w", name, err)
		}
	}
	return nil
}

func (c *ControlPlane) addNode(ctx context.Context, name string) error {
	object := fmt.Sprintf(`{"apiVersion": "v1", "kind": "Node", "metadata": {"name": %q}}`, name)
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, c.Server()+"/api/v1/nodes", strings.NewReader(object))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	response, err := c.client.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode == http.StatusCreated || response.StatusCode == http.StatusConflict { // the kubelet was faster
		return nil
	}
	body, err := io.ReadAll(response.Body)
	return errors.Join(fmt.Errorf("%s: %s", response.Status, body), err)
}

// WaitNode returns when a node is Ready. A node that lost its power counts as Ready until that is
// noticed, so for its return give the boot id (/proc/sys/kernel/random/boot_id) it has now; empty
// means any.
func (c *ControlPlane) WaitNode(ctx context.Context, name, bootID string) error {
	err := repeat(ctx, func() error { return c.nodeReady(ctx, name, bootID) })
	if err != nil {
		return fmt.Errorf("node %s is not Ready: %w", name, err)
	}
	return nil
}

// WaitDriver returns when a node's kubelet has registered a CSI driver.
func (c *ControlPlane) WaitDriver(ctx context.Context, node, driver string) error {
	err := repeat(ctx, func() error { return c.driverRegistered(ctx, node, driver) })
	if err != nil {
		return fmt.Errorf("the kubelet of %s does not know %s: %w", node, driver, err)
	}
	return nil
}

// repeat checks until all is well or ctx ends; then it returns what was last wrong, and after how
// long.
func repeat(ctx context.Context, check func() error) error {
	begin := time.Now()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("after %s: %w", time.Since(begin).Round(time.Second), err)
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
	var node nodeStatus
	err := c.object(ctx, "/api/v1/nodes/"+name, &node)
	if errors.Is(err, errNotFound) {
		return errors.New("its kubelet has not registered it")
	}
	if err != nil {
		return err
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

func (c *ControlPlane) driverRegistered(ctx context.Context, node, driver string) error {
	var known struct {
		Spec struct {
			Drivers []struct {
				Name string `json:"name"`
			} `json:"drivers"`
		} `json:"spec"`
	}
	if err := c.object(ctx, "/apis/storage.k8s.io/v1/csinodes/"+node, &known); err != nil {
		return err
	}
	for _, d := range known.Spec.Drivers {
		if d.Name == driver {
			return nil
		}
	}
	return fmt.Errorf("it knows %d drivers, and that is not among them", len(known.Spec.Drivers))
}

var errNotFound = errors.New("no such object")

// object reads one object of the API.
func (c *ControlPlane) object(ctx context.Context, path string, into any) error {
	status, body, err := ask(ctx, c.client, c.Server()+path)
	switch {
	case err != nil:
		return err
	case status == http.StatusNotFound:
		return fmt.Errorf("%s: %w", path, errNotFound)
	case status != http.StatusOK:
		return fmt.Errorf("%s: %d %s: %s", path, status, http.StatusText(status), body)
	}
	return json.Unmarshal(body, into)
}
