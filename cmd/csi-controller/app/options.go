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

// Options are the command line's flags. Their help, in bindCommon and bindServe, is for operators.
type Options struct {
	// Version of the binary, set when it is built. It is not a flag.
	Version string

	// Kubeconfig is the path of a kubeconfig; empty stands for the pod's service account.
	Kubeconfig string
	// CephDir holds one directory for each clusterID, with ceph.conf and keyring in it.
	CephDir string
	// ImagePrefix begins the names of all images and snapshots of this Kubernetes cluster.
	ImagePrefix string
	// LogLevel is debug, info, warn or error.
	LogLevel string

	// Socket is the absolute path of the CSI socket.
	Socket string
	// Metrics is the IP:PORT of /metrics, Health that of /healthz and /readyz; "0" turns them off.
	Metrics string
	Health  string
	// TraceTarget is the HOST:PORT of an OpenTelemetry collector (gRPC); empty: no traces.
	TraceTarget string
	// LongestCall bounds every CSI call, and every try of a reconciler at one volume.
	LongestCall time.Duration

	// Namespace and LeaseName name the Lease of the leader election; no namespace stands for the
	// pod's.
	Namespace string
	LeaseName string
	// Identity is this replica's name in the lease; empty: made from the host's name.
	Identity string
	// LeaseDuration is how long the other replicas wait after the last renewal that they saw.
	LeaseDuration time.Duration
	// RenewDeadline is how long after its last renewal a leader gives up and exits. The rest of
	// LeaseDuration is for what it had begun.
	RenewDeadline time.Duration
	// RetryPeriod is the time between two renewals, or two tries to become leader.
	RetryPeriod time.Duration

	// EscachedPort is the port of the escached on every node's InternalIP.
	EscachedPort int
	// EscachedTLS are the files with which escacheds are called.
	EscachedTLS escacheclient.TLSFiles
	// HostCertificates say how csi-node's requests for the certificates of hosts are signed.
	HostCertificates HostCertificateOptions
	// Renewal says which generated certificates are renewed.
	Renewal RenewalOptions
	// Plaintext calls escacheds over plain HTTP. It excludes EscachedTLS, and is for tests only.
	Plaintext bool
	// LinkKey is the path of the file with the key that the secrets of replication links are derived
	// from.
	LinkKey string
	// Slots are the ports and minors of DRBD that volumes may get.
	Slots reservation.Slots

	// Poll is the time between two polls of every escached.
	Poll time.Duration
	// OrphanEvery is the time between two counts of orphans, which the metrics show.
	OrphanEvery time.Duration

	// Recovery says how volumes are brought back after the loss of hosts.
	Recovery RecoveryOptions
	// Page is the read-only web page.
	Page overview.Options
}

// defaults returns the flags' defaults. With them another replica leads within 19 s of the leader's
// death: it sees the last renewal up to one try late (2 to 4.4 s), waits until the lease has run out
// (10 s), and notices that up to one try late. Before it serves it reads all volumes, which takes a
// second or two if there are 10,000.
//
// No two clocks are compared. The leader counts 6 s from before it sent its last renewal, the
// others 10 s from when they saw it, which is later. Only the speed of the clocks matters: slewed by
// NTP they differ by 1 in 1000 at most, 10 ms in 10 s. The remaining 4 s are for what the leader had
// begun: leaseWatch, and what its kernel has still to deliver.
//
// With 5 s, 3.5 s and 0.4 s another one leads within 7 s, but a busy machine loses that lease: a renewal
// may take 1.75 s, and etcd needs 1 to 2 s to choose another leader.
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
		Recovery:         defaultRecovery(),
		Renewal:          defaultRenewal(),
		HostCertificates: HostCertificateOptions{Life: 90 * 24 * time.Hour},
	}
}

func (o *Options) bindCommon(f *pflag.FlagSet) {
	f.StringVar(&o.Kubeconfig, "kubeconfig", o.Kubeconfig, "path of a kubeconfig; empty: use the pod's service account")
	f.StringVar(&o.CephDir, "ceph-dir", o.CephDir, "directory that holds, for each clusterID, a directory with ceph.conf and keyring")
	f.StringVar(&o.ImagePrefix, "image-prefix", o.ImagePrefix,
		"prefix of every image's name; give Kubernetes clusters that share a pool different ones")
	f.StringVar(&o.LogLevel, "log-level", o.LogLevel, "debug, info, warn or error")
}

func (o *Options) bindServe(f *pflag.FlagSet) {
	f.StringVar(&o.Socket, "csi-socket", o.Socket, "path of the CSI socket; calls wait while another replica leads")
	f.StringVar(&o.Metrics, "metrics-address", o.Metrics, "IP:PORT of /metrics; 0 turns it off")
	f.StringVar(&o.Health, "health-address", o.Health, "IP:PORT of /healthz and /readyz; 0 turns them off")
	f.StringVar(&o.TraceTarget, "otlp-endpoint", o.TraceTarget, "HOST:PORT of an OpenTelemetry collector (gRPC); empty: no traces")
	f.DurationVar(&o.LongestCall, "longest-call", o.LongestCall, "limit for every CSI call, whatever its caller's deadline")

	f.StringVar(&o.Namespace, "lease-namespace", o.Namespace, "namespace of the leader election's Lease; empty: the pod's")
	f.StringVar(&o.LeaseName, "lease-name", o.LeaseName, "name of the leader election's Lease")
	f.StringVar(&o.Identity, "identity", o.Identity, "this replica's name in the Lease; empty: made from the host's name")
	f.DurationVar(&o.LeaseDuration, "lease-duration", o.LeaseDuration, "how long other replicas wait after the last renewal that they saw")
	f.DurationVar(&o.RenewDeadline, "lease-renew-deadline", o.RenewDeadline, "how long after its last renewal a leader gives up and exits")
	f.DurationVar(&o.RetryPeriod, "lease-retry-period", o.RetryPeriod, "time between two renewals, or two tries to become leader")

	f.IntVar(&o.EscachedPort, "escached-port", o.EscachedPort, "port of the escached on every node's InternalIP")
	f.StringVar(&o.EscachedTLS.CA, "escached-ca", o.EscachedTLS.CA,
		"PEM file of the certificate authority that signed the escacheds' certificates")
	f.StringVar(&o.EscachedTLS.Cert, "escached-cert", o.EscachedTLS.Cert, "PEM file of csi-controller's own certificate")
	f.StringVar(&o.EscachedTLS.Key, "escached-key", o.EscachedTLS.Key, "PEM file of the key of --escached-cert")
	f.StringVar(&o.EscachedTLS.ServerName, "escached-server-name", o.EscachedTLS.ServerName,
		"DNS name in an escached's certificate; {node} stands for its node's name, and without it all hosts have the same name; "+
			"empty: the node's InternalIP")
	f.BoolVar(&o.Plaintext, "escached-plaintext", o.Plaintext, "call escacheds over plain HTTP; only for tests")
	f.StringVar(&o.LinkKey, "replication-secret-file", o.LinkKey,
		"file with at least 32 random bytes, from which the secrets of replication links are derived; read at the start")
	rangeVar(f, &o.Slots.Ports, "drbd-ports", "ports for replication links; the same range as escached's drbd.ports")
	rangeVar(f, &o.Slots.Minors, "drbd-minors", "minors for DRBD devices; the same range as escached's drbd.minors")

	f.DurationVar(&o.Poll, "poll-interval", o.Poll, "time between two polls of every escached")
	f.StringVar(&o.Page.Address, "page-address", o.Page.Address, "IP:PORT of the read-only web page; empty: none")
	f.StringVar(&o.Page.Cert, "page-cert", o.Page.Cert,
		"PEM file of the page's certificate; without one, the page is served on loopback only")
	f.StringVar(&o.Page.Key, "page-key", o.Page.Key, "PEM file of the key of --page-cert")
	f.StringVar(&o.Page.Grafana, "page-grafana", o.Page.Grafana,
		"address of the chart's dashboard in Grafana, for links on the page; empty: none")
	f.StringVar(&o.Page.Docs, "page-docs", o.Page.Docs, "address below which the pages of docs/ are, for links on the page; empty: none")
	f.DurationVar(&o.OrphanEvery, "orphan-interval", o.OrphanEvery, "time between two counts of orphans for the metrics")
	o.Recovery.bind(f)
	o.HostCertificates.bind(f)
	o.Renewal.bind(f)
}

// Validate returns everything that is wrong, each with the flag to change.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !filepath.IsAbs(o.Socket) {
		bad("--csi-socket %q is not an absolute path", o.Socket)
	}
	if len(o.ImagePrefix) > 63 || strings.ContainsAny(o.ImagePrefix, "/@ ") {
		bad("--image-prefix %q contains /, @ or a blank, or is longer than 63 bytes", o.ImagePrefix)
	}
	for name, d := range map[string]time.Duration{
		"--longest-call": o.LongestCall, "--poll-interval": o.Poll, "--orphan-interval": o.OrphanEvery,
	} {
		if d < time.Second {
			bad("%s %s is below one second", name, d)
		}
	}
	if err := o.Page.Validate(); err != nil {
		bad("the web page: %w", err)
	}
	if o.EscachedPort < 1 || o.EscachedPort > 65535 {
		bad("--escached-port %d is not between 1 and 65535", o.EscachedPort)
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
	if o.LinkKey == "" {
		bad("--replication-secret-file is not given; name a file with at least 32 random bytes, and keep it: every replica needs the same")
	}
	if err := o.Slots.Validate(); err != nil {
		bad("--drbd-ports and --drbd-minors: %w", err)
	}
	return errors.Join(append(errs, o.validateLease(), o.Recovery.validate(), o.HostCertificates.validate(o.EscachedTLS.ServerName),
		o.Renewal.validate(o.EscachedTLS.ServerName, o.Plaintext))...)
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

// validateLease refuses a lease of parts of a second, too: it is on record in whole seconds, and the
// other replicas would wait for less than this one counts on.
func (o *Options) validateLease() error {
	if o.RetryPeriod <= 0 || o.RenewDeadline <= o.RetryPeriod*12/10 || o.LeaseDuration <= o.RenewDeadline {
		return fmt.Errorf("--lease-duration %s, --lease-renew-deadline %s and --lease-retry-period %s: each must be well above the next",
			o.LeaseDuration, o.RenewDeadline, o.RetryPeriod)
	}
	if o.LeaseDuration%time.Second != 0 {
		return fmt.Errorf("--lease-duration %s: only whole seconds can be recorded", o.LeaseDuration)
	}
	return nil
}
