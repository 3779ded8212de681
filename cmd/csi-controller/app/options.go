package app

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/escache/escache-csi/internal/controller/overview"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/escacheclient"
)

// Options are the flags. See their help for what they mean.
type Options struct {
	Version string // of the binary

	Kubeconfig  string
	CephDir     string
	ImagePrefix string
	LogLevel    string

	Socket      string
	Metrics     string
	Health      string
	TraceTarget string
	LongestCall time.Duration

	Namespace     string
	LeaseName     string
	Identity      string
	LeaseDuration time.Duration
	RenewDeadline time.Duration
	RetryPeriod   time.Duration

	EscachedPort int
	EscachedTLS  escacheclient.TLSFiles
	Plaintext    bool
	Slots        reservation.Slots

	Poll        time.Duration
	OrphanEvery time.Duration

	Recovery RecoveryOptions
	Page     overview.Options
}

// defaults are made so that another replica serves within 20 s of the leader's death: it waits out the lease (10 s, from when
// it last saw it renewed), tries every 2 s, and needs a second or two to read all volumes. The leader gives up after 6 s
// without a renewal, and the 4 s that are left are for what it had begun. A lease much shorter would be lost to a slow API
// server or etcd compaction.
func defaults() Options {
	return Options{
		CephDir: "/etc/escache/ceph", ImagePrefix: "escache-", LogLevel: "info",
		Socket: "/csi/csi.sock", Metrics: ":9808", Health: ":9809", LongestCall: 2 * time.Minute,
		LeaseName: "escache-csi-controller", LeaseDuration: 10 * time.Second, RenewDeadline: 6 * time.Second, RetryPeriod: 2 * time.Second,
		EscachedPort: 7443,
		Slots: reservation.Slots{
			Ports: reservation.Range{First: 7800, Last: 8799}, Minors: reservation.Range{First: 100, Last: 1099},
		},
		Poll: 5 * time.Second, OrphanEvery: 5 * time.Minute,
		Recovery: defaultRecovery(),
	}
}

func (o *Options) bindCommon(f *pflag.FlagSet) {
	f.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "path of a kubeconfig; empty: the pod's service account")
	f.StringVar(&o.CephDir, "ceph-dir", o.CephDir, "directory with one directory for each clusterID, with ceph.conf and keyring in it")
	f.StringVar(&o.ImagePrefix, "image-prefix", o.ImagePrefix,
		"begins the name of every image; Kubernetes clusters that share a pool need different ones")
	f.StringVar(&o.LogLevel, "log-level", o.LogLevel, "debug, info, warn or error")
}

func (o *Options) bindServe(f *pflag.FlagSet) {
	f.StringVar(&o.Socket, "csi-socket", o.Socket, "path of the CSI socket; calls wait while another replica leads")
	f.StringVar(&o.Metrics, "metrics-address", o.Metrics, "IP:PORT of /metrics; 0 turns it off")
	f.StringVar(&o.Health, "health-address", o.Health, "IP:PORT of /healthz and /readyz; 0 turns them off")
	f.StringVar(&o.TraceTarget, "otlp-endpoint", o.TraceTarget, "HOST:PORT of an OpenTelemetry collector (gRPC); empty: no traces")
	f.DurationVar(&o.LongestCall, "longest-call", o.LongestCall, "bounds every CSI call, whatever its caller's deadline")

	f.StringVar(&o.Namespace, "lease-namespace", o.Namespace, "namespace of the lease; empty: the pod's")
	f.StringVar(&o.LeaseName, "lease-name", o.LeaseName, "name of the lease")
	f.StringVar(&o.Identity, "identity", o.Identity, "this replica's name in the lease; empty: made from the host's name")
	f.DurationVar(&o.LeaseDuration, "lease-duration", o.LeaseDuration, "how long others wait after the last renewal they saw")
	f.DurationVar(&o.RenewDeadline, "lease-renew-deadline", o.RenewDeadline, "how long after its last renewal a leader gives up and ends")
	f.DurationVar(&o.RetryPeriod, "lease-retry-period", o.RetryPeriod, "how often the lease is renewed or tried for")

	f.IntVar(&o.EscachedPort, "escached-port", o.EscachedPort, "port of every escached, on its node's InternalIP")
	f.StringVar(&o.EscachedTLS.CA, "escached-ca", o.EscachedTLS.CA, "PEM file of the authority that signed the escacheds' certificates")
	f.StringVar(&o.EscachedTLS.Cert, "escached-cert", o.EscachedTLS.Cert, "PEM file of this client's certificate")
	f.StringVar(&o.EscachedTLS.Key, "escached-key", o.EscachedTLS.Key, "PEM file of its key")
	f.StringVar(&o.EscachedTLS.ServerName, "escached-server-name", o.EscachedTLS.ServerName,
		"name in every escached's certificate; empty: the InternalIP of its node")
	f.BoolVar(&o.Plaintext, "escached-plaintext", o.Plaintext, "call escacheds over plain HTTP; for tests only")
	rangeVar(f, &o.Slots.Ports, "drbd-ports", "ports of replication links; the same range as escached's drbd.ports")
	rangeVar(f, &o.Slots.Minors, "drbd-minors", "minors of DRBD devices; the same range as escached's drbd.minors")

	f.DurationVar(&o.Poll, "poll-interval", o.Poll, "how often every escached is asked how it is")
	f.StringVar(&o.Page.Address, "page-address", o.Page.Address, "IP:PORT of the read-only web page; empty: none")
	f.StringVar(&o.Page.Cert, "page-cert", o.Page.Cert, "PEM file of the page's certificate; without one it is served on loopback only")
	f.StringVar(&o.Page.Key, "page-key", o.Page.Key, "PEM file of its key")
	f.DurationVar(&o.OrphanEvery, "orphan-interval", o.OrphanEvery, "how often orphans are counted for the metrics")
	o.Recovery.bind(f)
}

// Validate reports everything that is wrong at once, each with the flag to change.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !filepath.IsAbs(o.Socket) {
		bad("--csi-socket %q is not an absolute path", o.Socket)
	}
	if len(o.ImagePrefix) > 63 || strings.ContainsAny(o.ImagePrefix, "/@ ") {
		bad("--image-prefix %q has a character that RBD gives a meaning, or is longer than 63", o.ImagePrefix)
	}
	if o.RetryPeriod <= 0 || o.RenewDeadline <= o.RetryPeriod*12/10 || o.LeaseDuration <= o.RenewDeadline {
		bad("--lease-duration %s, --lease-renew-deadline %s and --lease-retry-period %s: each is well above the next",
			o.LeaseDuration, o.RenewDeadline, o.RetryPeriod)
	}
	for name, d := range map[string]time.Duration{
		"--longest-call": o.LongestCall, "--poll-interval": o.Poll, "--orphan-interval": o.OrphanEvery,
	} {
		if d < time.Second {
			bad("%s %s is below a second", name, d)
		}
	}
	if err := o.Page.Validate(); err != nil {
		bad("--page-address: %w", err)
	}
	if o.EscachedPort < 1 || o.EscachedPort > 65535 {
		bad("--escached-port %d is no port", o.EscachedPort)
	}
	files := 0
	for _, file := range []string{o.EscachedTLS.CA, o.EscachedTLS.Cert, o.EscachedTLS.Key} {
		if file != "" {
			files++
		}
	}
	if o.Plaintext == (files > 0) || (files > 0 && files < 3) {
		bad("give --escached-ca, --escached-cert and --escached-key, or, for tests, --escached-plaintext")
	}
	if err := o.Slots.Validate(); err != nil {
		bad("--drbd-ports and --drbd-minors: %w", err)
	}
	return errors.Join(append(errs, o.Recovery.validate())...)
}

// rangeVar binds "FIRST-LAST".
func rangeVar(f *pflag.FlagSet, r *reservation.Range, name, help string) {
	f.Var((*rangeValue)(r), name, help)
}

type rangeValue reservation.Range

func (r *rangeValue) String() string { return fmt.Sprintf("%d-%d", r.First, r.Last) }

func (r *rangeValue) Set(s string) error {
	var rest string
	if n, _ := fmt.Sscanf(s+" .", "%d-%d %s", &r.First, &r.Last, &rest); n != 3 || rest != "." {
		return fmt.Errorf("%q is not FIRST-LAST", s)
	}
	return nil
}

func (r *rangeValue) Type() string { return "first-last" }
