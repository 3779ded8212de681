package app

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/go-logr/logr"
	"github.com/google/uuid"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/controller/leadership"
	"github.com/escache/escache-csi/internal/controller/overview"
	"github.com/escache/escache-csi/internal/rbd"
)

// youngVolume is how old a CacheVolume without a PersistentVolume has to be to count as an orphan.
const youngVolume = 10 * time.Minute

// fencedFor is how long the Ceph clients of earlier leaders are kept out. After a longer pause a
// client's tickets have expired, and it asks for new ones only after it has noticed that it does
// not lead.
const fencedFor = 24 * time.Hour

// newLogger returns the process's logger. klog and controller-runtime write to it, too.
func newLogger(level string, out io.Writer) (*slog.Logger, error) {
	var l slog.Level
	if err := l.UnmarshalText([]byte(level)); err != nil {
		return nil, fmt.Errorf("--log-level %q is not one of debug, info, warn and error", level)
	}
	log := slog.New(slog.NewJSONHandler(out, &slog.HandlerOptions{Level: l}))
	bridge := logr.FromSlogHandler(log.With("component", "kubernetes").Handler())
	klog.SetLogger(bridge)
	ctrl.SetLogger(bridge)
	return log, nil
}

func newScheme() (*runtime.Scheme, error) {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return nil, err
	}
	return scheme, v1alpha1.AddToScheme(scheme)
}

func loadKubeconfig(path string) (*rest.Config, error) {
	if path == "" {
		return rest.InClusterConfig()
	}
	return clientcmd.BuildConfigFromFlags("", path)
}

// newLease returns the leader election's lock, and the record of Ceph clients that is kept in it.
// Both use a Kubernetes client of their own, so that other traffic does not slow them down.
func newLease(kubernetes *rest.Config, o Options) (*leadership.Lease, *leadership.Clients, error) {
	identity := o.Identity
	if identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, nil, err
		}
		identity = host + "_" + uuid.NewString()[:8]
	}
	namespace, err := o.namespace()
	if err != nil {
		return nil, nil, err
	}
	own := rest.CopyConfig(kubernetes)
	own.Timeout = o.RenewDeadline / 2
	client, err := coordinationv1.NewForConfig(own)
	if err != nil {
		return nil, nil, err
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: o.LeaseName}, Client: client,
		LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}
	clients := leadership.NewClients(client.Leases(namespace), o.LeaseName, identity)
	return leadership.New(lock, o.RenewDeadline, o.LeaseDuration-o.RenewDeadline, time.Now), clients, nil
}

// namespace returns the namespace of the lease, which has the pods of the driver, too.
func (o *Options) namespace() (string, error) {
	if o.Namespace != "" {
		return o.Namespace, nil
	}
	own, err := os.ReadFile("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
	if err != nil {
		return "", fmt.Errorf("not in a pod: name the lease's namespace with --lease-namespace: %w", err)
	}
	return strings.TrimSpace(string(own)), nil
}

// admit returns a function that lets this leader use a connection to Ceph once the clients of
// earlier leaders are fenced.
func admit(ctx context.Context, clients *leadership.Clients, log *slog.Logger) func(rbd.Session) error {
	const patience = 10 * time.Second
	return func(s rbd.Session) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		return clients.Admit(ctx, s.Cluster, s.Address, func(earlier []string) error {
			log.Info("fencing the Ceph clients of earlier leaders", "cluster", s.Cluster, "clients", earlier)
			return s.Fence(fencedFor, earlier...)
		})
	}
}

// synced is the readiness check: the cache of Kubernetes objects is filled, so that this replica
// can take over at once.
func (p parts) synced(r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), time.Second)
	defer cancel()
	if !p.manager.GetCache().WaitForCacheSync(ctx) {
		return fmt.Errorf("the cache of Kubernetes objects is not filled yet")
	}
	return nil
}

// emptyTrash purges deleted images in the background, including those that an earlier leader left.
func (p parts) emptyTrash(ctx context.Context) error {
	go p.findTrash(ctx)
	p.clusters.Run(ctx, p.log.With("component", "trash"))
	return nil
}

func (p parts) findTrash(ctx context.Context) {
	const again = time.Minute
	for {
		err := p.images.WatchTrash(ctx, p.options.ImagePrefix)
		if err == nil || ctx.Err() != nil {
			return
		}
		p.log.Warn("could not find all deleted images; searching again", "error", err)
		select {
		case <-ctx.Done():
			return
		case <-time.After(again):
		}
	}
}

// page serves the web page on every replica, if the flags ask for it.
func (p parts) page() error {
	if p.options.Page.Address == "" {
		return nil
	}
	namespace, err := p.options.namespace()
	if err != nil {
		return err
	}
	lease := client.ObjectKey{Namespace: namespace, Name: p.options.LeaseName}
	return p.manager.Add(overview.New(overview.Config{
		Options: p.options.Page, Records: p.manager.GetClient(), API: p.manager.GetClient(),
		Leader: func(ctx context.Context) (string, error) {
			return leadership.Holder(ctx, p.manager.GetAPIReader(), lease, time.Now())
		},
		Identity: p.lease.Identity(), Version: p.options.Version, Namespace: namespace,
		Log: p.log.With("component", "page"), Now: time.Now,
	}))
}
