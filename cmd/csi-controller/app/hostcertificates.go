package app

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/controller/signer"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/hostcert"
)

// HostCertificateOptions are the flags of the signer of the hosts' certificates. It runs if they are
// given.
type HostCertificateOptions struct {
	// Cert and Key are PEM files with the authority.
	Cert, Key string
	// Account is the service account of csi-node, NAMESPACE/NAME.
	Account string
	// ConfigMap is the name of that in the lease's namespace from which csi-node learns the authority; empty: none.
	ConfigMap string
	// Life is how long a certificate is valid. csi-node renews it when a third of that is left.
	Life time.Duration
	// Former is the name of the certificate that served all hosts, which they may show until a time.
	Former escacheclient.FormerName
	until  string
}

func (o *HostCertificateOptions) bind(f *pflag.FlagSet) {
	f.StringVar(&o.Cert, "host-authority-cert", o.Cert,
		"PEM file of the authority with which csi-node's requests for certificates of hosts are signed; empty: they are not")
	f.StringVar(&o.Key, "host-authority-key", o.Key, "PEM file of the key of --host-authority-cert")
	f.StringVar(&o.ConfigMap, "host-authority-configmap", o.ConfigMap,
		"ConfigMap in the lease's namespace into which the certificate of --host-authority-cert is written, for csi-node; empty: it is not")
	f.StringVar(&o.Account, "host-account", o.Account,
		"NAMESPACE/NAME of csi-node's service account, the only one that may ask for certificates of hosts")
	f.StringVar(&o.Former.Name, "escached-former-name", o.Former.Name,
		"for an upgrade: name of the certificate that served all hosts, which hosts may show that have none of their own yet")
	f.StringVar(&o.Former.CA, "escached-former-ca", o.Former.CA,
		"PEM file of the authority that signed the certificate with --escached-former-name")
	f.StringVar(&o.until, "escached-former-until", o.until, "when hosts may no longer show that certificate, as 2006-01-02T15:04:05Z")
	f.DurationVar(&o.Life, "host-certificate-life", o.Life,
		"how long the certificate of a host is valid; it is renewed when a third is left")
}

func (o *HostCertificateOptions) enabled() bool {
	return o.Cert != "" || o.Key != "" || o.Account != "" || o.ConfigMap != ""
}

func (o *HostCertificateOptions) validate(pattern string) error {
	if o.Former.Name != "" || o.Former.CA != "" || o.until != "" {
		var err error
		if o.Former.Until, err = time.Parse(time.RFC3339, o.until); err != nil || o.Former.Name == "" || o.Former.CA == "" {
			return fmt.Errorf("--escached-former-name %q, --escached-former-ca %q and --escached-former-until %q go together; "+
				"the last is a time such as 2006-01-02T15:04:05Z", o.Former.Name, o.Former.CA, o.until)
		}
	}
	if !o.enabled() {
		return nil
	}
	if namespace, name, found := strings.Cut(o.Account, "/"); o.Cert == "" || o.Key == "" || !found || namespace == "" || name == "" {
		return errors.New("--host-authority-cert, --host-authority-key and --host-account NAMESPACE/NAME go together")
	}
	if !strings.Contains(pattern, hostcert.Placeholder) {
		return fmt.Errorf("--host-account: --escached-server-name %q needs %s in it, or every host's certificate has the same name",
			pattern, hostcert.Placeholder)
	}
	if o.Life < time.Hour {
		return fmt.Errorf("--host-certificate-life %s is below an hour", o.Life)
	}
	return nil
}

// hostCertificates starts the signer, and what tells csi-node of its authority.
func (p parts) hostCertificates(guarded client.Client) error {
	o := p.options.HostCertificates
	if !o.enabled() {
		return nil
	}
	if o.ConfigMap != "" {
		namespace, err := p.options.namespace()
		if err != nil {
			return err
		}
		if err := p.manager.Add(signer.NewPublisher(signer.PublisherConfig{
			Reader: p.manager.GetAPIReader(), Writer: guarded, ConfigMap: client.ObjectKey{Namespace: namespace, Name: o.ConfigMap},
			Cert: o.Cert, Key: o.Key, Log: p.log.With("component", "signer"), Again: time.Minute, Longest: 30 * time.Second,
		})); err != nil {
			return err
		}
	}
	return signer.New(signer.Config{
		Client: guarded, Account: "system:serviceaccount:" + strings.Replace(o.Account, "/", ":", 1),
		Pattern: p.options.EscachedTLS.ServerName, Cert: o.Cert, Key: o.Key, Life: o.Life,
		Log: p.log.With("component", "signer"), Now: time.Now, Longest: 30 * time.Second,
	}).SetupWithManager(p.manager)
}
