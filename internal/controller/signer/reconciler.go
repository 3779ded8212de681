// Package signer signs the certificates that csi-node asks for, for the escached of its own node.
//
// The key of a host's certificate is made on that host and never leaves it. So root of one host
// cannot play another host's escached.
package signer

import (
	"context"
	"crypto/x509"
	"fmt"
	"log/slog"
	"time"

	certificates "k8s.io/api/certificates/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/predicate"

	"github.com/escache/escache-csi/internal/hostcert"
	"github.com/escache/escache-csi/internal/issuer"
)

type (
	request   = certificates.CertificateSigningRequest
	condition = certificates.CertificateSigningRequestCondition
)

// Config holds what a Reconciler needs.
type Config struct {
	// Client writes only while this process leads.
	Client client.Client
	// Account is csi-node's user name in Kubernetes, system:serviceaccount:NAMESPACE:NAME.
	Account string
	// Pattern is that of the names in certificates; see hostcert.Name.
	Pattern string
	// Cert and Key are PEM files with the authority. They are read for each signature.
	Cert, Key string
	// Life is how long a certificate is valid.
	Life time.Duration
	Log  *slog.Logger
	Now  func() time.Time
	// Longest bounds one try.
	Longest time.Duration
}

// Reconciler decides requests. It is safe for concurrent use.
type Reconciler struct{ Config }

// New returns a reconciler.
func New(config Config) *Reconciler { return &Reconciler{config} }

// SetupWithManager makes the manager call Reconcile for every request of the signer, while this
// process leads.
func (r *Reconciler) SetupWithManager(m ctrl.Manager) error {
	return ctrl.NewControllerManagedBy(m).Named("signer").
		For(&request{}).
		WithEventFilter(predicate.NewPredicateFuncs(func(o client.Object) bool {
			csr, ok := o.(*request)
			return ok && open(csr)
		})).
		Complete(r)
}

// Requests keeps requests of other signers out of a manager's cache.
func Requests() cache.Options {
	return cache.Options{ByObject: map[client.Object]cache.ByObject{
		&request{}: {Field: fields.OneTermEqualSelector("spec.signerName", hostcert.Signer)},
	}}
}

// open reports whether a request of our signer is not decided yet.
func open(csr *request) bool {
	return csr.Spec.SignerName == hostcert.Signer && len(csr.Status.Certificate) == 0 &&
		!has(csr, certificates.CertificateDenied) && !has(csr, certificates.CertificateFailed)
}

func has(csr *request, kind certificates.RequestConditionType) bool {
	for _, c := range csr.Status.Conditions {
		if c.Type == kind {
			return true
		}
	}
	return false
}

// Reconcile decides one request.
func (r *Reconciler) Reconcile(ctx context.Context, changed ctrl.Request) (ctrl.Result, error) {
	ctx, cancel := context.WithTimeout(ctx, r.Longest)
	defer cancel()
	csr := &request{}
	err := r.Client.Get(ctx, changed.NamespacedName, csr)
	if err == nil && open(csr) {
		err = r.decide(ctx, csr)
	}
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		return ctrl.Result{}, nil // it has changed, and comes again, or is gone
	}
	return ctrl.Result{}, err
}

func (r *Reconciler) decide(ctx context.Context, csr *request) error {
	node, key, refusal := rules{r.Account, r.Pattern}.judge(csr)
	if refusal != nil {
		r.Log.WarnContext(ctx, "certificate refused", "request", csr.Name, "requester", csr.Spec.Username, "error", refusal)
		return r.refuse(ctx, csr, refusal)
	}
	// Before the approval, so that nothing is approved that cannot be signed.
	authority, err := readAuthority(r.Cert, r.Key)
	if err != nil {
		return err
	}
	host := issuer.Subject{CommonName: node, DNSNames: []string{hostcert.Name(r.Pattern, node)}, Usage: x509.ExtKeyUsageServerAuth}
	certificate, err := authority.Sign(key, host, r.Now(), r.Life)
	if err != nil {
		return err
	}
	if !has(csr, certificates.CertificateApproved) {
		message := "csi-node asks for the certificate of the node that it runs on"
		if err := r.add(ctx, csr, certificates.CertificateApproved, "OwnNode", message); err != nil {
			return err
		}
	}
	csr.Status.Certificate = certificate
	if err := r.Client.Status().Update(ctx, csr); err != nil {
		return fmt.Errorf("write the certificate of %s into %s: %w", node, csr.Name, err)
	}
	r.Log.InfoContext(ctx, "certificate signed", "request", csr.Name, "node", node)
	return nil
}

// refuse makes an end of a request. One that somebody has approved by hand cannot be denied any
// more: it fails.
func (r *Reconciler) refuse(ctx context.Context, csr *request, why error) error {
	if !has(csr, certificates.CertificateApproved) {
		return r.add(ctx, csr, certificates.CertificateDenied, "NotAllowed", why.Error())
	}
	csr.Status.Conditions = append(csr.Status.Conditions, r.condition(certificates.CertificateFailed, "NotAllowed", why.Error()))
	if err := r.Client.Status().Update(ctx, csr); err != nil {
		return fmt.Errorf("refuse %s: %w", csr.Name, err)
	}
	return nil
}

// add approves or denies.
func (r *Reconciler) add(ctx context.Context, csr *request, kind certificates.RequestConditionType, reason, message string) error {
	csr.Status.Conditions = append(csr.Status.Conditions, r.condition(kind, reason, message))
	if err := r.Client.SubResource("approval").Update(ctx, csr); err != nil {
		return fmt.Errorf("%s %s: %w", kind, csr.Name, err)
	}
	return nil
}

func (r *Reconciler) condition(kind certificates.RequestConditionType, reason, message string) condition {
	now := metav1.NewTime(r.Now())
	return condition{
		Type: kind, Status: corev1.ConditionTrue, Reason: reason, Message: message, LastUpdateTime: now, LastTransitionTime: now,
	}
}
