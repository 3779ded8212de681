package app

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/escache/escache-csi/internal/controller/renewal"
	"github.com/escache/escache-csi/internal/hostcert"
)

// RenewalOptions are the flags of the renewal of the certificates that the chart has generated. It runs
// if Prefix is given.
type RenewalOptions struct {
	// Prefix begins the names of the Secrets with the certificates, which are in the lease's namespace.
	Prefix string
	// ClientName is the name in csi-controller's own certificate.
	ClientName string
	// Life and AuthorityLife are how long renewed certificates last.
	Life, AuthorityLife time.Duration
}

func defaultRenewal() RenewalOptions {
	return RenewalOptions{Life: 365 * 24 * time.Hour, AuthorityLife: 3650 * 24 * time.Hour}
}

func (o *RenewalOptions) bind(f *pflag.FlagSet) {
	f.StringVar(&o.Prefix, "renew-certificates", o.Prefix,
		"beginning of the names of the Secrets with the certificates that the chart has generated, which are renewed when a third of "+
			"their life is left; empty: they are not")
	f.StringVar(&o.ClientName, "client-name", o.ClientName, "name in csi-controller's own certificate")
	f.DurationVar(&o.Life, "client-certificate-life", o.Life, "how long csi-controller's own certificate is valid when it is renewed")
	f.DurationVar(&o.AuthorityLife, "authority-life", o.AuthorityLife,
		"how long the certificate of an authority is valid when it is renewed")
}

// validate checks the flags. pattern is that of the names in hosts' certificates.
func (o *RenewalOptions) validate(pattern string, plaintext bool) error {
	switch {
	case o.Prefix == "":
		return nil
	case plaintext:
		return errors.New("--renew-certificates: there are none with --escached-plaintext")
	case o.ClientName == "" || pattern == "":
		return errors.New("--renew-certificates needs --client-name and --escached-server-name")
	case o.Life < time.Hour || o.AuthorityLife < time.Hour:
		return fmt.Errorf("--client-certificate-life %s or --authority-life %s is below an hour", o.Life, o.AuthorityLife)
	}
	return nil
}

// certificates starts the renewal.
func (p parts) certificates(guarded client.Client) error {
	o := p.options.Renewal
	if o.Prefix == "" {
		return nil
	}
	namespace, err := p.options.namespace()
	if err != nil {
		return err
	}
	config := renewal.Config{
		Reader: p.manager.GetAPIReader(), Writer: guarded, Namespace: namespace, Prefix: o.Prefix,
		ClientName: o.ClientName, Life: o.Life, AuthorityLife: o.AuthorityLife,
		Events: p.manager.GetEventRecorder("escache-csi-controller"), Log: p.log.With("component", "renewal"), Now: time.Now,
		Again: time.Minute, Longest: 30 * time.Second,
	}
	if name := p.options.EscachedTLS.ServerName; !strings.Contains(name, hostcert.Placeholder) {
		config.SharedName = name
	}
	return p.manager.Add(renewal.New(config))
}
