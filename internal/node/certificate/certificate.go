// Package certificate keeps the certificate of this host's escached: it asks csi-controller for one
// through the Kubernetes API, with a key that never leaves the host, and again well before its end.
package certificate

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"time"

	"github.com/escache/escache-csi/internal/hostcert"
	"github.com/escache/escache-csi/internal/issuer"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/pause"
)

const (
	// checkEvery is the time between two looks at the certificate.
	checkEvery = time.Minute
	// firstWait and longestWait bound the time between two looks at a request, which doubles.
	firstWait, longestWait = time.Second, 30 * time.Second
	// refusedWait is the time to the next request after one that was refused.
	refusedWait = 5 * time.Minute
)

// API is the Kubernetes API; *kube.Client.
type API interface {
	RequestCertificate(ctx context.Context, r kube.CertificateRequest) (name string, err error)
	Certificate(ctx context.Context, name string) (kube.CertificateAnswer, error)
}

// Options configure a Keeper.
type Options struct {
	// Node is this node's name, Name the DNS name that its certificate has to have.
	Node, Name string
	// File is where certificate and key are, in one PEM file: two files could not change in the same
	// moment. escached reads it again when it changes.
	File string
	// Authority is a PEM file with the authority that signs. A certificate of another one is
	// replaced. Empty: any authority will do.
	Authority string
	API       API
	Log       *slog.Logger
}

// Keeper keeps the certificate.
type Keeper struct {
	options Options
	now     func() time.Time

	pending *pending
	wait    time.Duration
	// told is the last trouble in the log, so that a lasting one is logged once.
	told string
}

// pending is a request without an answer.
type pending struct {
	name string
	key  []byte
}

// New returns a Keeper.
func New(options Options) *Keeper {
	return &Keeper{options: options, now: time.Now, wait: firstWait}
}

// Run keeps the certificate until ctx ends.
func (k *Keeper) Run(ctx context.Context) error {
	for {
		if err := pause.For(ctx, k.step(ctx)); err != nil {
			return nil //nolint:nilerr // ctx has ended
		}
	}
}

// step does what is to do now, and returns the time to the next step.
func (k *Keeper) step(ctx context.Context) time.Duration {
	if k.pending == nil {
		reason := k.due()
		if reason == nil {
			k.told = ""
			return checkEvery
		}
		if err := k.ask(ctx); err != nil {
			k.tell(ctx, "could not ask for a certificate", err)
			return k.longer()
		}
		k.options.Log.InfoContext(ctx, "asked for a certificate of this host's escached", "request", k.pending.name, "why", reason)
		return k.again()
	}
	answer, err := k.options.API.Certificate(ctx, k.pending.name)
	switch {
	case errors.Is(err, kube.ErrNotFound):
		k.pending = nil
		return k.longer()
	case err != nil:
		k.tell(ctx, "could not read the request for a certificate", err)
		return k.longer()
	case answer.Refused != "":
		k.tell(ctx, "the certificate of this host's escached was refused", errors.New(answer.Refused))
		k.pending = nil
		return refusedWait
	case len(answer.Certificate) == 0:
		return k.longer()
	}
	err = k.take(slices.Concat(answer.Certificate, k.pending.key))
	k.pending = nil
	if err != nil {
		k.tell(ctx, "the certificate of this host's escached cannot be used", err)
		return refusedWait
	}
	k.options.Log.InfoContext(ctx, "this host's escached has a new certificate", "file", k.options.File)
	return k.again()
}

func (k *Keeper) tell(ctx context.Context, what string, err error) {
	if text := what + err.Error(); text != k.told {
		k.told = text
		k.options.Log.WarnContext(ctx, what, "node", k.options.Node, "error", err)
	}
}

// again and longer return the time to the next look.
func (k *Keeper) again() time.Duration {
	k.wait = firstWait
	return k.wait
}

func (k *Keeper) longer() time.Duration {
	k.wait = min(2*k.wait, longestWait)
	return k.wait
}

func (k *Keeper) ask(ctx context.Context) error {
	key, request, err := hostcert.NewRequest(k.options.Node, k.options.Name)
	if err != nil {
		return err
	}
	name, err := k.options.API.RequestCertificate(ctx, kube.CertificateRequest{
		Prefix: "escached-" + k.options.Node + "-", Signer: hostcert.Signer, Request: request, Usages: hostcert.Usages(),
	})
	if err == nil {
		k.pending = &pending{name, key}
	}
	return err
}

// due returns why another certificate is needed; nil if none is.
func (k *Keeper) due() error {
	content, err := os.ReadFile(k.options.File)
	if err != nil {
		return err
	}
	leaf, err := k.check(content)
	if err != nil {
		return err
	}
	if !k.now().Before(issuer.RenewAt(leaf)) {
		return fmt.Errorf("it ends at %s", leaf.NotAfter.Format(time.RFC3339))
	}
	return k.signedByTheAuthority(leaf)
}

// check returns the certificate of a file that escached can use.
func (k *Keeper) check(content []byte) (*x509.Certificate, error) {
	pair, err := tls.X509KeyPair(content, content)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, err
	}
	return leaf, leaf.VerifyHostname(k.options.Name)
}

func (k *Keeper) signedByTheAuthority(leaf *x509.Certificate) error {
	if k.options.Authority == "" {
		return nil
	}
	content, _ := os.ReadFile(k.options.Authority) // without it the certificate is kept as it is
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(content) {
		return nil
	}
	if _, err := leaf.Verify(x509.VerifyOptions{Roots: roots, CurrentTime: k.now()}); err != nil {
		return fmt.Errorf("it is not of the authority in %s: %w", k.options.Authority, err)
	}
	return nil
}

// take puts a new certificate with its key in place of the old one.
func (k *Keeper) take(content []byte) error {
	if _, err := k.check(content); err != nil {
		return err
	}
	return replace(k.options.File, content)
}
