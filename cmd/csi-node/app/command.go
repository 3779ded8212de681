// Package app is the command line of csi-node.
package app

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/hostcert"
	"github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/mounts"
	"github.com/escache/escache-csi/internal/traces"
)

// Options are the flags of csi-node; root documents each of them in its help.
type Options struct {
	NodeName        string
	ImagePrefix     string
	KubeletDir      string
	CSISocket       string
	RegistrationDir string
	EscachedSocket  string
	ArbiterSocket   string
	MetricsAddress  string
	// TraceTarget is the HOST:PORT of an OpenTelemetry collector (gRPC); empty: no traces.
	TraceTarget  string
	Kubeconfig   string
	ShutdownWait time.Duration
	// ShutdownLock is kept locked until csi-node has ended; empty: escached does not end with csi-node.
	ShutdownLock string
	// CertificateFile, if it is not empty, is kept by csi-node: the key and certificate of this host's
	// escached. CertificateName is the pattern of the name in it, CertificateAuthority the file with the
	// authority that signs.
	CertificateFile      string
	CertificateName      string
	CertificateAuthority string
	DaemonSet            string
	LogLevel             slog.Level
	Version              string
}

// Validate fills in defaults. It returns an error that names the flag that is wrong.
func (o *Options) Validate() error {
	if o.NodeName == "" {
		return errors.New("--node-name is missing: set the Kubernetes name of this node (in a pod: spec.nodeName of the downward API)")
	}
	if o.CSISocket == "" {
		o.CSISocket = filepath.Join(o.KubeletDir, "plugins", v1alpha1.DriverName, "csi.sock")
	}
	if o.RegistrationDir == "" {
		o.RegistrationDir = filepath.Join(o.KubeletDir, "plugins_registry")
	}
	for _, path := range []struct{ flag, value string }{
		{"kubelet-dir", o.KubeletDir}, {"csi-socket", o.CSISocket}, {"registration-dir", o.RegistrationDir},
		{"escached-socket", o.EscachedSocket}, {"arbiter-socket", o.ArbiterSocket},
	} {
		if !filepath.IsAbs(path.value) {
			return fmt.Errorf("--%s %q is not an absolute path", path.flag, path.value)
		}
	}
	if o.ShutdownLock != "" && !filepath.IsAbs(o.ShutdownLock) {
		return fmt.Errorf("--shutdown-lock %q is not an absolute path", o.ShutdownLock)
	}
	if o.CertificateFile != "" && (!filepath.IsAbs(o.CertificateFile) || !strings.Contains(o.CertificateName, hostcert.Placeholder)) {
		return fmt.Errorf("--certificate-file %q is not an absolute path, or --certificate-name %q has no %s in it",
			o.CertificateFile, o.CertificateName, hostcert.Placeholder)
	}
	if err := traces.CheckTarget(o.TraceTarget); err != nil {
		return fmt.Errorf("--otlp-endpoint: %w", err)
	}
	if namespace, name, found := strings.Cut(o.DaemonSet, "/"); o.DaemonSet != "" && (!found || namespace == "" || name == "") {
		return fmt.Errorf("--daemonset %q is not NAMESPACE/NAME", o.DaemonSet)
	}
	return nil
}

// Main runs the command line and ends the process.
func Main(version string) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	err := root(version).ExecuteContext(ctx)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintln(os.Stderr, "csi-node:", err)
	if errors.Is(err, filesystem.ErrInUse) {
		os.Exit(filesystem.ExitInUse)
	}
	os.Exit(1)
}

func root(version string) *cobra.Command {
	o := &Options{Version: version}
	var level string
	cmd := &cobra.Command{
		Use:           "csi-node",
		Short:         "CSI Node service of escache-csi: formats, mounts and watches cached volumes on this host",
		Args:          cobra.NoArgs,
		Version:       version,
		SilenceUsage:  true,
		SilenceErrors: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := o.LogLevel.UnmarshalText([]byte(level)); err != nil {
				return fmt.Errorf("--log-level %q is none of debug, info, warn, error", level)
			}
			if err := o.Validate(); err != nil {
				return err
			}
			return Run(cmd.Context(), *o)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.NodeName, "node-name", os.Getenv("NODE_NAME"), "Kubernetes name of this node (default: the environment's NODE_NAME)")
	f.StringVar(&o.ImagePrefix, "image-prefix", "escache-", "prefix of the names of RBD images, the same as csi-controller's")
	f.StringVar(&o.KubeletDir, "kubelet-dir", "/var/lib/kubelet", "the kubelet's directory; must have the same path here as on the host")
	f.StringVar(&o.CSISocket, "csi-socket", "", "socket to serve CSI on (default: KUBELET-DIR/plugins/"+v1alpha1.DriverName+"/csi.sock)")
	f.StringVar(&o.RegistrationDir, "registration-dir", "",
		"directory in which the kubelet finds plugins (default: KUBELET-DIR/plugins_registry)")
	f.StringVar(&o.EscachedSocket, "escached-socket", "/run/escache/escached.sock", "socket of the local escached")
	f.StringVar(&o.ArbiterSocket, "arbiter-socket", "/run/escache/arbiter.sock",
		"socket to answer escached on: may it go on without its peer?")
	f.StringVar(&o.MetricsAddress, "metrics-address", ":9810", "address to serve /metrics, /metrics/escached, /healthz and /livez on")
	f.StringVar(&o.TraceTarget, "otlp-endpoint", "", "HOST:PORT of an OpenTelemetry collector (gRPC); empty: no traces")
	f.StringVar(&o.Kubeconfig, "kubeconfig", "", "kubeconfig file for the Kubernetes API (default: the pod's service account)")
	f.DurationVar(&o.ShutdownWait, "shutdown-wait", time.Minute,
		"when the host shuts down, wait this long for its volumes to be flushed and detached (0: do not wait)")
	f.StringVar(&o.ShutdownLock, "shutdown-lock", "",
		"file to keep locked from the signal to the end of csi-node; escached with the same flag serves that long (default: none)")
	f.StringVar(&o.DaemonSet, "daemonset", "",
		"NAMESPACE/NAME of the DaemonSet that runs csi-node; after its deletion the kubelet forgets the driver (default: never)")
	f.StringVar(&o.CertificateFile, "certificate-file", "",
		"PEM file for key and certificate of this host's escached; csi-node asks csi-controller for it and renews it (default: not)")
	f.StringVar(&o.CertificateName, "certificate-name", "",
		"DNS name in --certificate-file, the same as csi-controller's --escached-server-name, with {node} for this node's name")
	f.StringVar(&o.CertificateAuthority, "certificate-authority", "",
		"PEM file of the authority that signs --certificate-file; a certificate of another authority is replaced (default: any is kept)")
	f.StringVar(&level, "log-level", "info", "debug, info, warn or error")
	cmd.AddCommand(inspect(), bindReadOnly(), bench())
	return cmd
}

// inspect reads a device. csi-node runs it as a child process, because reading can hang with the
// device.
func inspect() *cobra.Command {
	var scan bool
	cmd := &cobra.Command{
		Use:    "inspect [--scan] DEVICE",
		Short:  "print what is on a device, as JSON",
		Hidden: true,
		Args:   cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			surface, err := filesystem.Inspect(args[0], scan)
			if err != nil {
				return err
			}
			return json.NewEncoder(cmd.OutOrStdout()).Encode(surface)
		},
	}
	cmd.Flags().BoolVar(&scan, "scan", false, "also check whether the device is blank")
	return cmd
}

// bindReadOnly mounts a volume for a pod that may not write. csi-node runs it as a child process, because whatever looks at a
// mount can hang with its device.
func bindReadOnly() *cobra.Command {
	return &cobra.Command{
		Use:    "bind-read-only SOURCE TARGET",
		Short:  "bind-mount a directory or a device node read-only",
		Hidden: true,
		Args:   cobra.ExactArgs(2),
		RunE:   func(_ *cobra.Command, args []string) error { return mounts.BindReadOnly(args[0], args[1]) },
	}
}
