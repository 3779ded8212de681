package app

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel/trace"
	"k8s.io/client-go/rest"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/healthz"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/metrics"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/escache/escache-csi/internal/controller/cacheflush"
	"github.com/escache/escache-csi/internal/controller/ceph"
	"github.com/escache/escache-csi/internal/controller/comparison"
	"github.com/escache/escache-csi/internal/controller/csi"
	"github.com/escache/escache-csi/internal/controller/drain"
	"github.com/escache/escache-csi/internal/controller/etcdrestore"
	"github.com/escache/escache-csi/internal/controller/hosts"
	"github.com/escache/escache-csi/internal/controller/leadership"
	"github.com/escache/escache-csi/internal/controller/linkkey"
	"github.com/escache/escache-csi/internal/controller/marking"
	"github.com/escache/escache-csi/internal/controller/modification"
	"github.com/escache/escache-csi/internal/controller/nodegroup"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/controller/server"
	"github.com/escache/escache-csi/internal/controller/signer"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/exported"
	"github.com/escache/escache-csi/internal/operation"
	"github.com/escache/escache-csi/internal/orphans"
	"github.com/escache/escache-csi/internal/rbd"
	"github.com/escache/escache-csi/internal/rbd/emptier"
	"github.com/escache/escache-csi/internal/tlsfiles"
	"github.com/escache/escache-csi/internal/traces/export"
)

// errLeaseLost ends the process: another replica leads, so nothing may go on here.
var errLeaseLost = errors.New("lost the lease; exiting, because another replica may lead now")

// leaseWatch is the time between two checks of the lease's age. A leader that was paused and goes
// on has that long before it exits.
const leaseWatch = 100 * time.Millisecond

// serve runs until the context ends or the lease is lost.
func serve(ctx context.Context, o Options, stderr io.Writer) error {
	log, err := newLogger(o.LogLevel, stderr)
	if err != nil {
		return err
	}
	traces, flush, err := export.New(ctx, export.Options{
		Target: o.TraceTarget, Service: "csi-controller", Version: o.Version, Log: log.With("component", "traces"),
	})
	if err != nil {
		return fmt.Errorf("--otlp-endpoint: %w", err)
	}
	defer flush()
	kubernetes, err := kubernetesConfig(o)
	if err != nil {
		return err
	}
	links, err := linkkey.Read(o.LinkKey)
	if err != nil {
		return fmt.Errorf("--replication-secret-file: %w", err)
	}
	lease, clients, err := newLease(kubernetes, o)
	if err != nil {
		return err
	}
	m, err := newManager(kubernetes, o, lease)
	if err != nil {
		return err
	}
	writer, err := newWriter(kubernetes, m, lease)
	if err != nil {
		return err
	}
	own, err := knownCluster(ctx, m.GetAPIReader(), log, time.Second)
	if err != nil {
		return err
	}
	seen := server.NewMetrics(metrics.Registry)
	clusters := rbd.NewClusters(rbd.Options{
		Dir: o.CephDir, Observe: seen.ObserveCeph, Kubernetes: own,
		OwnsTrash: func(image string) bool { return strings.HasPrefix(image, o.ImagePrefix) },
		MayMark:   ceph.MayMark,
		Admit:     admit(ctx, clients, log),
	})
	defer clusters.Close()
	p := parts{
		options: o, own: own, log: log, manager: m, writer: writer, lease: lease, metrics: seen, traces: traces, clusters: clusters,
		images: ceph.New(clusters, o.CephDir, time.Now),
		hosts: hosts.New(m.GetClient(), m.GetAPIReader(), hosts.Options{
			Port: o.EscachedPort, TLS: o.EscachedTLS, Former: o.HostCertificates.Former, Dial: lease.Dial,
			Timeouts: escacheclient.Timeouts{Change: 30 * time.Second}, UserAgent: "csi-controller/" + o.Version,
			Log: log.With("component", "hosts"), Observe: seen.ObserveEscached,
		}),
		book:  reservation.NewBook(o.Slots),
		links: links,
		locks: operation.NewLocks(time.Now),
	}
	if err := p.assemble(ctx); err != nil {
		return err
	}
	go lease.Watch(ctx, leaseWatch, func(age time.Duration) {
		log.Error(errLeaseLost.Error(), "age", age)
		os.Exit(1) // at once: an orderly shutdown would let calls finish that began while the lease was held
	})
	log.Info("started", "version", o.Version, "identity", lease.Identity())
	err = m.Start(ctx)
	if err != nil && strings.Contains(err.Error(), "leader election lost") {
		return errLeaseLost
	}
	return err
}

func kubernetesConfig(o Options) (*rest.Config, error) {
	config, err := loadKubeconfig(o.Kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("find the Kubernetes API server: %w; in a pod leave --kubeconfig out", err)
	}
	// The API server's priority and fairness limits calls. The client's default, 20 a second, would
	// slow down volume creation.
	config.QPS = -1
	config.Timeout = 30 * time.Second
	config.UserAgent = "escache-csi-controller/" + o.Version
	return config, nil
}

func newManager(kubernetes *rest.Config, o Options, lease *leadership.Lease) (ctrl.Manager, error) {
	scheme, err := newScheme()
	if err != nil {
		return nil, err
	}
	watching, err := watchClient(kubernetes)
	if err != nil {
		return nil, err
	}
	caching := signer.Requests()
	// Nothing here reads managed fields, and they are a third of every object.
	caching.HTTPClient, caching.DefaultTransform = watching, cache.TransformStripManagedFields()
	m, err := ctrl.NewManager(kubernetes, ctrl.Options{
		Scheme: scheme, Logger: ctrl.Log,
		Cache:                               caching,
		Client:                              client.Options{},
		Metrics:                             metricsserver.Options{BindAddress: o.Metrics},
		HealthProbeBindAddress:              o.Health,
		LeaderElection:                      true,
		LeaderElectionResourceLockInterface: lease,
		LeaderElectionID:                    o.LeaseName, // only for the metric: the lock has the name already
		LeaderElectionReleaseOnCancel:       true,
		LeaseDuration:                       &o.LeaseDuration, RenewDeadline: &o.RenewDeadline, RetryPeriod: &o.RetryPeriod,
	})
	if err != nil {
		return nil, fmt.Errorf("set up the Kubernetes client: %w", err)
	}
	return m, nil
}

// watchClient returns the cache's HTTP client, which has no timeout: the timeout of calls would
// also end every watch, again and again. The API server ends watches by itself, and pings find a
// dead connection.
func watchClient(kubernetes *rest.Config) (*http.Client, error) {
	lasting := rest.CopyConfig(kubernetes)
	lasting.Timeout = 0
	c, err := rest.HTTPClientFor(lasting)
	if err != nil {
		return nil, fmt.Errorf("set up the Kubernetes client that watches: %w", err)
	}
	return c, nil
}

// newWriter returns the client for objects that only the leader may write. It reads from the
// manager's cache, and its connection sends nothing unless this process holds the lease.
func newWriter(kubernetes *rest.Config, m ctrl.Manager, lease *leadership.Lease) (client.Client, error) {
	own := rest.CopyConfig(kubernetes)
	own.Dial = lease.Dial
	c, err := client.New(own, client.Options{
		Scheme: m.GetScheme(), Mapper: m.GetRESTMapper(), Cache: &client.CacheOptions{Reader: m.GetCache()},
	})
	if err != nil {
		return nil, fmt.Errorf("set up the Kubernetes client that writes: %w", err)
	}
	return lease.Client(c), nil
}

// parts are the process's components.
type parts struct {
	options  Options
	own      string // the identity of this Kubernetes cluster
	log      *slog.Logger
	manager  ctrl.Manager
	writer   client.Client
	lease    *leadership.Lease
	metrics  *server.Metrics
	traces   trace.TracerProvider
	clusters *rbd.Clusters
	images   *ceph.Images
	hosts    *hosts.Hosts
	book     *reservation.Book
	links    *linkkey.Key
	locks    *operation.Locks
}

// assemble gives every part to the manager, which runs them while this process leads.
func (p parts) assemble(ctx context.Context) error {
	guard := nodegroup.NewGuard(p.writer, p.manager.GetAPIReader(), p.book)
	steps := volumes.NewSteps(volumes.Config{
		Cached: p.writer, Live: p.manager.GetAPIReader(), Images: p.lease.Images(p.images), Hosts: p.hosts, Book: p.book,
		Groups: guard, Links: p.links,
		Events: p.manager.GetEventRecorder("escache-csi-controller"), Log: p.log.With("component", "service"), Now: time.Now,
	})
	service := csi.NewService(csi.Config{
		Steps: steps, Operations: p.locks, ImagePrefix: p.options.ImagePrefix, Version: p.options.Version,
		UncachedFallback: p.options.Recovery.UncachedFallback,
	})
	search := orphans.Search{
		Reader: p.manager.GetClient(), Images: p.images, Kubernetes: p.own, Prefix: p.options.ImagePrefix,
		Young: youngVolume, Now: time.Now,
	}
	marks := marking.New(marking.Config{
		Reader: p.manager.GetClient(), Images: p.lease.Images(p.images), Log: p.log.With("component", "marking"),
		Again: p.options.OrphanEvery, Parallel: 4,
	})
	groups := nodegroup.New(nodegroup.Config{
		Client: p.writer, Live: p.manager.GetAPIReader(), Hosts: p.hosts, Images: p.images,
		Book: p.book, Guard: guard, Locks: p.locks,
		Events: p.manager.GetEventRecorder("escache-csi-controller"), Log: p.log.With("component", "nodegroup"), Now: time.Now,
		Poll: p.options.Poll, Patience: 4 * time.Second, Quiet: 10 * time.Second, Parallel: 32,
	})
	drainer := drain.New(drain.Config{
		Client: p.writer, Live: p.manager.GetAPIReader(), Hosts: p.hosts, Locks: p.locks, Now: time.Now,
	})
	flushes := cacheflush.New(cacheflush.Config{
		Client: p.writer, Live: p.manager.GetAPIReader(), Hosts: p.hosts,
		Flusher: volumes.NewLocked(steps, p.locks), Drain: drainer,
		Events: p.manager.GetEventRecorder("escache-csi-controller"), Log: p.log.With("component", "cacheflush"), Now: time.Now,
		Pass: 2 * time.Second, Verify: 10 * time.Second, Parallel: 8, Volumes: 64,
	})
	calls := server.New(server.Config{
		Socket: p.options.Socket, Service: service, Code: volumes.Code, Log: p.log.With("component", "csi"), Metrics: p.metrics,
		Longest: p.options.LongestCall, Traces: p.traces,
		Prepare: p.prepare,
	})
	metrics.Registry.MustRegister(reservation.NewCollector(p.book), emptier.NewCollector(p.clusters.TrashStates, time.Now),
		volumes.NewCollector(p.manager.GetClient()), volumes.NewCopiesCollector(p.manager.GetClient(), time.Now),
		exported.BuildInfo("escache_controller", p.options.Version))
	metrics.Registry.MustRegister(certificateEnds(p.options.EscachedTLS)...)
	locked := volumes.NewLocked(steps, p.locks)
	return errors.Join(
		csi.Index(ctx, p.manager.GetFieldIndexer()),
		groups.SetupWithManager(p.manager),
		p.recovery(locked, p.writer, drainer),
		comparison.New(comparison.Config{
			Volumes: locked, Log: p.log.With("component", "comparison"),
			Soon: 100 * time.Millisecond, Again: 2 * time.Second, Longest: 10 * time.Second, Parallel: 16,
		}).SetupWithManager(p.manager),
		flushes.SetupWithManager(p.manager),
		modification.New(modification.Config{
			Client: p.writer, Live: p.manager.GetAPIReader(), Drainer: drainer,
			Events: p.manager.GetEventRecorder("escache-csi-controller"), Log: p.log.With("component", "modification"),
			Again: 5 * time.Second, Longest: p.options.LongestCall, Parallel: 8,
		}).SetupWithManager(p.manager),
		modification.NewResizeReporter(modification.ResizeConfig{
			Volumes: locked,
			Events:  p.manager.GetEventRecorder("escache-csi-controller"), Log: p.log.With("component", "modification"),
			Again: 5 * time.Second, Longest: p.options.LongestCall, Parallel: 8,
		}).SetupWithManager(p.manager),
		p.hostCertificates(p.writer),
		p.certificates(p.writer),
		p.page(),
		p.manager.Add(&etcdrestore.Watch{
			Live: p.manager.GetAPIReader(), Log: p.log.With("component", "etcdrestore"),
			Every: 5 * time.Second, Again: time.Second, Longest: 5 * time.Second,
		}),
		p.manager.Add(marks),
		p.manager.Add(orphans.NewWatch(search, p.options.OrphanEvery, p.log.With("component", "orphans"), metrics.Registry)),
		p.manager.Add(manager.RunnableFunc(p.emptyTrash)),
		p.manager.Add(server.Standby{Server: calls}),
		p.manager.Add(calls),
		p.manager.AddHealthzCheck("alive", healthz.Ping),
		p.manager.AddReadyzCheck("synced", p.synced),
	)
}

// prepare reads what the leader before left behind. It tries until it succeeds: if the API server
// is slow, another leader would not be faster.
func (p parts) prepare(ctx context.Context) error {
	if err := nodegroup.Follow(ctx, p.manager.GetCache(), p.book); err != nil {
		return err
	}
	for {
		err := nodegroup.Rebuild(ctx, p.manager.GetAPIReader(), p.book)
		if err == nil {
			return nil
		}
		p.log.Warn("could not read all volumes and groups; trying again", "error", err)
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

// certificateEnds are the metrics of when the certificate ends with which escacheds are called, and the
// authority of theirs. They read the files again when they change.
func certificateEnds(files escacheclient.TLSFiles) []prometheus.Collector {
	certificates := tlsfiles.Later(tlsfiles.Files{CA: files.CA, Cert: files.Cert, Key: files.Key})
	read := func(end func() time.Time) func() time.Time {
		return func() time.Time {
			_, _ = certificates.Refresh() // without usable files there is no end
			return end()
		}
	}
	return []prometheus.Collector{
		exported.CertificateEnd("escache_controller", "csi-controller's", read(certificates.End)),
		exported.AuthorityEnd("escache_controller", "csi-controller", "hosts", read(certificates.AuthoritiesEnd)),
	}
}
