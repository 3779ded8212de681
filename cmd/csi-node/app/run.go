package app

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/csiserver"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/node"
	"github.com/escache/escache-csi/internal/node/arbiter"
	"github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
	"github.com/escache/escache-csi/internal/node/registration"
	"github.com/escache/escache-csi/internal/node/watch"
	"github.com/escache/escache-csi/internal/unixsocket"
)

// grace is how long running calls may take to end after a signal.
const grace = 20 * time.Second

// Run serves until the context ends, and longer where the host shuts down with volumes that are connected.
func Run(ctx context.Context, o Options) error {
	logger := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: o.LogLevel}))
	klog.SetLogger(logr.FromSlogHandler(logger.Handler()))
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))

	kubernetes, err := connect(o)
	if err != nil {
		return err
	}
	client, err := escacheclient.New(escacheclient.Options{
		Node: o.NodeName, UnixSocket: o.EscachedSocket, UserAgent: "csi-node/" + o.Version,
		Logger: logger.With("component", "escache"),
	})
	if err != nil {
		return err
	}
	cache := &local{Client: client}
	follow := watch.New(watch.Options{
		Node: o.NodeName, Cache: cache, Cluster: kubernetes, Progress: watch.KernelProgress, Now: time.Now,
		Logger: logger.With("component", "watch"),
	})
	registry.MustRegister(follow.Collector())
	run := command.NewExec()
	registrar := (*registration.Registrar)(nil)
	ready := func(ctx context.Context) []string { return problems(ctx, cache, follow, run, registrar) }
	service := node.New(node.Options{
		Node: o.NodeName, Version: o.Version, Cache: cache, Cluster: kubernetes,
		Mounter:     mounts.NewMounter(run),
		Filesystems: filesystem.NewTools(run, []string{"/proc/self/exe", "inspect"}),
		Devices:     node.NewKernelDevices(),
		Logger:      logger.With("component", "node"), Connected: follow.Wake, Ready: ready,
	})
	group := &follower{service: service, cluster: kubernetes, node: o.NodeName, logger: logger.With("component", "registration")}
	registrar = registration.New(registration.Options{
		Driver: v1alpha1.DriverName, Endpoint: o.CSISocket,
		Socket:  filepath.Join(o.RegistrationDir, v1alpha1.DriverName+"-reg.sock"),
		Prepare: group.prepare, Logger: logger.With("component", "registration"),
	})
	group.registrar = registrar
	judge := arbiter.New(o.NodeName, kubernetes, follow.Recorded, logger.With("component", "arbiter"))

	calls := csiserver.Observer{Log: logger.With("component", "csi"), Code: node.Code, Seconds: node.NewCallMetric(registry)}
	csiServer := grpc.NewServer(grpc.UnaryInterceptor(calls.Intercept))
	csi.RegisterNodeServer(csiServer, service)
	csi.RegisterIdentityServer(csiServer, service)
	csiListener, err := unixsocket.Listen(o.CSISocket, unixsocket.Modes{Directory: 0o755, Socket: 0o600})
	if err != nil {
		return err
	}
	arbiterListener, err := unixsocket.Listen(o.ArbiterSocket, unixsocket.Modes{Directory: 0o755, Socket: 0o600})
	if err != nil {
		return err
	}
	webListener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", o.MetricsAddress)
	if err != nil {
		return fmt.Errorf("listen for metrics: %w", err)
	}
	logger.InfoContext(ctx, "csi-node serves", "node", o.NodeName, "version", o.Version, "csi", o.CSISocket, "arbiter", o.ArbiterSocket,
		"metrics", webListener.Addr().String())

	leave := departure{
		node: o.NodeName, daemonSet: o.DaemonSet, longest: o.ShutdownWait, pause: time.Second,
		nodes: kubernetes, daemonSets: kubernetes, volumes: client, kubelet: registrar,
		logger: logger.With("component", "departure"),
	}
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		leave.wait(serving)
		end()
	})()
	all, ctx := errgroup.WithContext(serving)
	all.Go(func() error { return csiserver.Serve(ctx, csiServer, csiListener, grace) })
	all.Go(func() error { return serveHTTP(ctx, arbiterListener, judge.Handler()) })
	all.Go(func() error {
		return serveHTTP(ctx, webListener, web(registry, ready, handOn(o.EscachedSocket, logger)))
	})
	all.Go(func() error {
		group.settle(ctx)
		return registrar.Run(ctx)
	})
	all.Go(func() error { return group.run(ctx) })
	all.Go(func() error { return follow.Run(ctx) })
	err = all.Wait()
	leave.removed(context.WithoutCancel(ctx)) // not before the registrar has ended, which would make its socket anew
	return err
}

func connect(o Options) (*kube.Client, error) {
	config, err := rest.InClusterConfig()
	if o.Kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("find the Kubernetes API: %w; outside of a pod --kubeconfig is needed", err)
	}
	config.UserAgent = "csi-node/" + o.Version
	return kube.New(config)
}

// healthTime bounds one health check.
const healthTime = 4 * time.Second

// problems says why volumes cannot be served here: it takes the way that a call takes.
func problems(
	ctx context.Context, cache *local, follow *watch.Watch, run *command.Exec, registrar *registration.Registrar,
) []string {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	reasons := run.Reasons()
	host, err := cache.Node(ctx)
	switch {
	case follow.Silence() > 0:
		reasons = append(reasons, fmt.Sprintf("escached has not answered for %s", follow.Silence().Round(time.Second)))
	case err != nil:
		reasons = append(reasons, "escached does not answer: "+err.Error())
	case !host.Healthy:
		reasons = append(reasons, host.Reasons...)
	}
	if registrar != nil && registrar.Problem() != "" {
		reasons = append(reasons, registrar.Problem())
	}
	return reasons
}

// web serves /metrics, /metrics/escached, /healthz (can volumes be served, and if not why) and /livez (does this process run).
func web(registry *prometheus.Registry, ready func(context.Context) []string, escached http.Handler) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics/escached", escached)
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, r *http.Request) {
		reasons := ready(r.Context())
		if len(reasons) == 0 {
			_, _ = fmt.Fprintln(w, "ok")
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		for _, reason := range reasons {
			_, _ = fmt.Fprintln(w, reason)
		}
	})
	return mux
}

const headerTime = 5 * time.Second

func serveHTTP(ctx context.Context, listener net.Listener, handler http.Handler) error {
	s := &http.Server{Handler: handler, ReadHeaderTimeout: headerTime}
	stop := context.AfterFunc(ctx, func() {
		ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), headerTime)
		defer cancel()
		_ = s.Shutdown(ending)
	})
	defer stop()
	if err := s.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
		return err
	}
	return nil
}
