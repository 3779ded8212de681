package app

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"go.opentelemetry.io/otel/trace"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/csiserver"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/exported"
	"github.com/escache/escache-csi/internal/hostcert"
	"github.com/escache/escache-csi/internal/node"
	"github.com/escache/escache-csi/internal/node/arbiter"
	"github.com/escache/escache-csi/internal/node/blockdev"
	"github.com/escache/escache-csi/internal/node/certificate"
	"github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
	"github.com/escache/escache-csi/internal/node/registration"
	"github.com/escache/escache-csi/internal/node/shutdown"
	"github.com/escache/escache-csi/internal/node/topology"
	"github.com/escache/escache-csi/internal/node/watch"
	"github.com/escache/escache-csi/internal/node/web"
	"github.com/escache/escache-csi/internal/traces/export"
	"github.com/escache/escache-csi/internal/unixsocket"
)

// grace is how long running calls may go on after a signal.
const grace = 20 * time.Second

// parts are all parts of csi-node.
type parts struct {
	options  Options
	log      *slog.Logger
	registry *prometheus.Registry
	traces   trace.TracerProvider // nil if calls are not traced

	kube      *kube.Client
	escached  *escacheclient.Local
	run       *command.Exec
	watch     *watch.Watch
	service   *node.Service
	registrar *registration.Registrar
	group     *topology.Follower
	arbiter   *arbiter.Arbiter
	shutdown  shutdown.Shutdown
}

// Run serves until the context ends. If the host shuts down then, Run goes on until its volumes are
// disconnected.
func Run(ctx context.Context, o Options) error {
	logger := slog.New(slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: o.LogLevel}))
	klog.SetLogger(logr.FromSlogHandler(logger.Handler()))
	p, err := assemble(o, logger)
	if err != nil {
		return err
	}
	var flush func()
	p.traces, flush, err = export.New(ctx, export.Options{
		Target: o.TraceTarget, Service: "csi-node", Version: o.Version, Node: o.NodeName, Log: p.component("traces"),
	})
	if err != nil {
		return err
	}
	defer flush()
	l, err := p.listen(ctx)
	if err != nil {
		return err
	}
	logger.InfoContext(ctx, "csi-node serves", "node", o.NodeName, "version", o.Version, "csi", o.CSISocket, "arbiter", o.ArbiterSocket,
		"metrics", l.web.Addr().String())
	err = p.serve(ctx, l)
	p.shutdown.Removed(context.WithoutCancel(ctx)) // after the registrar has ended; it would create its socket again
	return err
}

// assemble creates all parts. It starts nothing.
func assemble(o Options, logger *slog.Logger) (*parts, error) {
	p := &parts{options: o, log: logger, registry: prometheus.NewRegistry(), run: command.NewExec()}
	p.registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		exported.BuildInfo("escache_node", o.Version))
	var err error
	if p.kube, err = connect(o); err != nil {
		return nil, err
	}
	client, err := escacheclient.New(escacheclient.Options{
		Node: o.NodeName, UnixSocket: o.EscachedSocket, UserAgent: "csi-node/" + o.Version, Logger: p.component("escache"),
	})
	if err != nil {
		return nil, err
	}
	p.escached = &escacheclient.Local{Client: client}
	p.watch = watch.New(watch.Options{
		Node: o.NodeName, Cache: p.escached, Kube: p.kube, Progress: blockdev.ImageProgress, Now: time.Now, Logger: p.component("watch"),
		Whole: func(volume escache.VolumeRef, epoch int64, at time.Time) { p.arbiter.Whole(volume, epoch, at) },
	})
	p.registry.MustRegister(p.watch.Collector())
	p.service = node.New(node.Options{
		Node: o.NodeName, Version: o.Version, Cache: p.escached, Kube: p.kube,
		Mounter:     mounts.NewMounter(p.run, []string{"/proc/self/exe", "bind-read-only"}),
		Filesystems: filesystem.NewTools(p.run, []string{"/proc/self/exe", "inspect"}),
		Devices:     node.NewKernelDevices(),
		Logger:      p.component("node"), Seen: p.watch.Seen, Connected: p.watch.Wake, Ready: p.problems,
		Compared: func(volume escache.VolumeRef, epoch int64) { p.arbiter.Compared(volume, epoch) },
	})
	p.group = &topology.Follower{Service: p.service, Kube: p.kube, Node: o.NodeName, Log: p.component("registration")}
	p.registrar = registration.New(registration.Options{
		Driver: v1alpha1.DriverName, Endpoint: o.CSISocket,
		Socket:  filepath.Join(o.RegistrationDir, v1alpha1.DriverName+"-reg.sock"),
		Prepare: p.group.Prepare, Logger: p.component("registration"),
	})
	p.group.Registrar = p.registrar
	p.arbiter = arbiter.New(o.NodeName, p.kube, p.watch.Recorded, p.watch.Wake, p.component("arbiter"))
	p.shutdown = shutdown.Shutdown{
		Node: o.NodeName, DaemonSet: o.DaemonSet, Lock: o.ShutdownLock, Longest: o.ShutdownWait, Poll: time.Second,
		Nodes: p.kube, DaemonSets: p.kube, Volumes: client, Kubelet: p.registrar, Log: p.component("shutdown"),
	}
	return p, nil
}

func (p *parts) component(name string) *slog.Logger { return p.log.With("component", name) }

// listeners are opened before anything runs, so that csi-node fails at once if an address is wrong.
type listeners struct{ csi, arbiter, web net.Listener }

func (p *parts) listen(ctx context.Context) (l listeners, err error) {
	modes := unixsocket.Modes{Directory: 0o755, Socket: 0o600}
	if l.csi, err = unixsocket.Listen(p.options.CSISocket, modes); err != nil {
		return l, err
	}
	if l.arbiter, err = unixsocket.Listen(p.options.ArbiterSocket, modes); err != nil {
		return l, err
	}
	if l.web, err = (&net.ListenConfig{}).Listen(ctx, "tcp", p.options.MetricsAddress); err != nil {
		return l, fmt.Errorf("listen for metrics: %w", err)
	}
	return l, nil
}

// serve runs everything until one part fails, or the context has ended and shutdown no longer
// waits.
func (p *parts) serve(ctx context.Context, l listeners) error {
	serving, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		p.shutdown.Wait(serving)
		end()
	})()
	calls := csiserver.Observer{Log: p.component("csi"), Code: node.Code, Seconds: node.NewCallMetric(p.registry)}
	server := grpc.NewServer(append(csiserver.Traced(p.traces), grpc.UnaryInterceptor(calls.Intercept))...)
	csi.RegisterNodeServer(server, p.service)
	csi.RegisterIdentityServer(server, p.service)

	all, ctx := errgroup.WithContext(serving)
	all.Go(func() error { return csiserver.Serve(ctx, server, l.csi, grace) })
	all.Go(func() error { return web.Serve(ctx, l.arbiter, p.arbiter.Handler()) })
	all.Go(func() error {
		return web.Serve(ctx, l.web, web.Handler(p.registry, p.problems, p.options.EscachedSocket, p.log))
	})
	all.Go(func() error {
		p.group.Await(ctx)
		return p.registrar.Run(ctx)
	})
	all.Go(func() error { return p.group.Run(ctx) })
	all.Go(func() error { return p.watch.Run(ctx) })
	all.Go(func() error { return p.service.UnstageForgotten(ctx) })
	if p.options.CertificateFile != "" {
		all.Go(func() error { return p.certificate().Run(ctx) })
	}
	return all.Wait()
}

func (p *parts) certificate() *certificate.Keeper {
	o := p.options
	return certificate.New(certificate.Options{
		Node: o.NodeName, Name: hostcert.Name(o.CertificateName, o.NodeName), File: o.CertificateFile, Authority: o.CertificateAuthority,
		API: p.kube, Log: p.component("certificate"),
	})
}

func connect(o Options) (*kube.Client, error) {
	config, err := rest.InClusterConfig()
	if o.Kubeconfig != "" {
		config, err = clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	}
	if err != nil {
		return nil, fmt.Errorf("find the Kubernetes API: %w; outside of a pod, set --kubeconfig", err)
	}
	config.UserAgent = "csi-node/" + o.Version
	client, err := kube.New(config)
	if err != nil {
		return nil, err
	}
	client.ImagePrefix = o.ImagePrefix
	return client, nil
}

// healthTime bounds one health check.
const healthTime = 4 * time.Second

// problems returns why volumes cannot be served here. It asks escached, as a CSI call does.
func (p *parts) problems(ctx context.Context) []string {
	ctx, cancel := context.WithTimeout(ctx, healthTime)
	defer cancel()
	reasons := p.run.Reasons()
	host, err := p.escached.Node(ctx)
	switch {
	case p.watch.Silence() > 0:
		reasons = append(reasons, fmt.Sprintf("escached has not answered for %s", p.watch.Silence().Round(time.Second)))
	case err != nil:
		reasons = append(reasons, "escached does not answer: "+err.Error())
	case !host.Healthy:
		reasons = append(reasons, host.Reasons...)
	}
	if p.registrar != nil && p.registrar.Problem() != "" {
		reasons = append(reasons, p.registrar.Problem())
	}
	return reasons
}
