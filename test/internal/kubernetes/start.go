package kubernetes

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/internal/process"
)

const (
	etcd              = "etcd"
	apiServer         = "kube-apiserver"
	controllerManager = "kube-controller-manager"
	scheduler         = "kube-scheduler"
)

const (
	// pollInterval is how often a part is asked whether it is ready.
	pollInterval = 100 * time.Millisecond
	// pollTime is how long one such question may take before it is asked again. It is no limit for
	// what is asked once: an API server that has just become ready, on a machine where hosts boot,
	// can take longer.
	pollTime = 2 * time.Second
)

func (c *ControlPlane) start(ctx context.Context) error {
	c.cfg.Log("etcd")
	if err := c.startEtcd(ctx); err != nil {
		return err
	}
	c.cfg.Log("API server")
	if err := c.startAPIServer(ctx); err != nil {
		return err
	}
	if err := c.addNodes(ctx); err != nil {
		return err
	}
	c.cfg.Log("controllers and scheduler")
	if err := c.startControllers(ctx); err != nil {
		return err
	}
	account := c.Server() + "/api/v1/namespaces/default/serviceaccounts/default"
	return process.Wait(ctx, c.started()[controllerManager], "make the default service account", pollInterval,
		func(ctx context.Context) error { return c.get(ctx, c.client, account) })
}

// choosePorts takes free ports, so that several control planes can share loopback. Another process
// could take one before it is used; then the part that wanted it says so and ends.
func (c *ControlPlane) choosePorts(ctx context.Context) error {
	c.ports.apiServer = c.cfg.Port
	wanted := []*int{&c.ports.etcdClient, &c.ports.etcdPeer, &c.ports.controllerManager, &c.ports.scheduler}
	if c.ports.apiServer == 0 {
		wanted = append(wanted, &c.ports.apiServer)
	}
	var listen net.ListenConfig
	for _, port := range wanted {
		listener, err := listen.Listen(ctx, "tcp", "127.0.0.1:0")
		if err != nil {
			return fmt.Errorf("find a free port: %w", err)
		}
		defer listener.Close()                      // all at the end, so that none is given twice
		*port = listener.Addr().(*net.TCPAddr).Port //nolint:forcetypeassert // it listens on TCP
	}
	return nil
}

// run starts a part; links to the one Kubernetes program are told apart by the name they are called
// by.
func (c *ControlPlane) run(name string, args ...string) error {
	return c.runProgram(name, c.cfg.Programs[name], args...)
}

func (c *ControlPlane) runProgram(name, path string, args ...string) error {
	p, err := process.Start(process.Spec{Name: name, Path: path, Dir: c.cfg.Dir, Args: args, Log: c.path("log", name+".log")})
	if err != nil {
		return err
	}
	c.mu.Lock()
	c.processes[name] = p
	c.mu.Unlock()
	return nil
}

func (c *ControlPlane) startEtcd(ctx context.Context) error {
	client := fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcdClient)
	peer := fmt.Sprintf("http://127.0.0.1:%d", c.ports.etcdPeer)
	err := c.run(etcd, "--name=lab", "--data-dir="+c.path("etcd"), "--log-level=warn",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=lab="+peer,
		// Its data never outlives the machine, so waiting for the disk would only cost time.
		"--unsafe-no-fsync")
	if err != nil {
		return err
	}
	return process.Wait(ctx, c.started()[etcd], "be healthy", pollInterval, func(ctx context.Context) error {
		return c.get(ctx, c.client, client+"/health")
	})
}

func (c *ControlPlane) startAPIServer(ctx context.Context) error {
	pki := c.path("pki") + "/"
	err := c.run(apiServer, append([]string{
		fmt.Sprintf("--etcd-servers=http://127.0.0.1:%d", c.ports.etcdClient),
		"--bind-address=0.0.0.0", fmt.Sprintf("--secure-port=%d", c.ports.apiServer), "--advertise-address=" + c.advertised(),
		"--tls-cert-file=" + pki + "apiserver.crt", "--tls-private-key-file=" + pki + "apiserver.key",
		"--client-ca-file=" + pki + "ca.crt",
		"--kubelet-client-certificate=" + pki + "apiserver-kubelet.crt", "--kubelet-client-key=" + pki + "apiserver-kubelet.key",
		"--kubelet-certificate-authority=" + pki + "ca.crt", "--kubelet-preferred-address-types=InternalIP",
		"--service-cluster-ip-range=" + serviceRange,
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + pki + "sa.pub", "--service-account-signing-key-file=" + pki + "sa.key",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged=true", // CSI drivers mount
		"--profiling=false",
		"--v=1",
	}, c.cfg.APIServerArgs...)...)
	if err != nil {
		return err
	}
	return process.Wait(ctx, c.started()[apiServer], "be ready", pollInterval, func(ctx context.Context) error {
		return c.get(ctx, c.client, c.Server()+"/readyz")
	})
}

// advertised is the address in the endpoints of the kubernetes Service, which must not be loopback;
// nobody uses it where the API server is.
func (c *ControlPlane) advertised() string {
	if net.ParseIP(c.cfg.Address).IsLoopback() {
		return "192.0.2.1" // TEST-NET-1: reserved for documentation
	}
	return c.cfg.Address
}

func (c *ControlPlane) startControllers(ctx context.Context) error {
	pki := c.path("pki") + "/"
	kubeconfigs := func(name string) []string {
		path := c.path(name + ".kubeconfig")
		return []string{
			"--kubeconfig=" + path, "--authentication-kubeconfig=" + path, "--authorization-kubeconfig=" + path,
			"--bind-address=127.0.0.1", "--leader-elect=false", "--profiling=false", "--v=1",
		}
	}
	err := c.run(controllerManager, append(append(kubeconfigs(controllerManager),
		fmt.Sprintf("--secure-port=%d", c.ports.controllerManager),
		"--use-service-account-credentials=true",
		"--service-account-private-key-file="+pki+"sa.key", "--root-ca-file="+pki+"ca.crt",
		// A lost node is noticed within NodeGrace, not a minute.
		"--node-monitor-grace-period="+c.cfg.NodeGrace.String(), "--node-monitor-period=1s", "--node-startup-grace-period=2m",
		// Hundreds of volumes at once must not wait for the client's own limits.
		"--kube-api-qps=200", "--kube-api-burst=400",
	), c.cfg.ControllerManagerArgs...)...)
	if err != nil {
		return err
	}
	err = c.run(scheduler, append(kubeconfigs(scheduler),
		fmt.Sprintf("--secure-port=%d", c.ports.scheduler), "--kube-api-qps=200", "--kube-api-burst=400")...)
	if err != nil {
		return err
	}
	// Both serve with certificates they made themselves, and /healthz is open to all.
	insecure := &http.Client{
		Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}},
	}
	defer insecure.CloseIdleConnections()
	for name, port := range map[string]int{controllerManager: c.ports.controllerManager, scheduler: c.ports.scheduler} {
		err := process.Wait(ctx, c.started()[name], "be healthy", pollInterval, func(ctx context.Context) error {
			return c.get(ctx, insecure, fmt.Sprintf("https://127.0.0.1:%d/healthz", port))
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// get is nil if the URL answers 200; otherwise the error holds the answer.
func (c *ControlPlane) get(ctx context.Context, client *http.Client, url string) error {
	status, body, err := ask(ctx, client, url)
	if err == nil && status != http.StatusOK {
		err = fmt.Errorf("%s: %d %s: %s", url, status, http.StatusText(status), strings.TrimSpace(string(body)))
	}
	return err
}

// ask puts one question, which the caller repeats.
func ask(ctx context.Context, client *http.Client, url string) (status int, body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, pollTime)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, nil, err
	}
	response, err := client.Do(request)
	if err != nil {
		return 0, nil, err
	}
	defer response.Body.Close()
	body, err = io.ReadAll(response.Body)
	return response.StatusCode, body, err
}
