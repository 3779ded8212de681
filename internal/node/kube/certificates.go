package kube

import (
	"context"
	"fmt"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const certificateRequests = "/apis/certificates.k8s.io/v1/certificatesigningrequests"

// CertificateRequest asks a signer for a certificate.
type CertificateRequest struct {
	// Prefix begins the object's name.
	Prefix string
	Signer string
	// Request is PEM.
	Request []byte
	Usages  []string
}

// CertificateAnswer is what has become of a CertificateRequest. Neither field is set before it is
// decided.
type CertificateAnswer struct {
	// Certificate is PEM.
	Certificate []byte
	// Refused says why there will be no certificate.
	Refused string
}

// signingRequest has the fields of a certificates.k8s.io/v1 CertificateSigningRequest that this
// package uses.
type signingRequest struct {
	metav1.TypeMeta `json:",inline"`

	Metadata metav1.ObjectMeta `json:"metadata"`
	Spec     struct {
		Request    []byte   `json:"request"`
		SignerName string   `json:"signerName"`
		Usages     []string `json:"usages"`
	} `json:"spec"`
	Status struct {
		Conditions []struct {
			Type    string `json:"type"`
			Reason  string `json:"reason"`
			Message string `json:"message"`
		} `json:"conditions,omitempty"`
		Certificate []byte `json:"certificate,omitempty"`
	} `json:"status"`
}

// RequestCertificate creates a CertificateSigningRequest and returns its name. The API server notes in
// it whose request it is, and of which node the account's token is.
func (c *Client) RequestCertificate(ctx context.Context, r CertificateRequest) (name string, err error) {
	object := signingRequest{
		TypeMeta: metav1.TypeMeta{APIVersion: "certificates.k8s.io/v1", Kind: "CertificateSigningRequest"},
		Metadata: metav1.ObjectMeta{GenerateName: r.Prefix},
	}
	object.Spec.Request, object.Spec.SignerName, object.Spec.Usages = r.Request, r.Signer, r.Usages
	var made signingRequest
	if err := c.call(ctx, http.MethodPost, certificateRequests, "application/json", object, &made); err != nil {
		return "", fmt.Errorf("create a CertificateSigningRequest: %w", err)
	}
	return made.Metadata.Name, nil
}

// Certificate returns what has become of a request. Kubernetes removes decided ones after an hour,
// and others after a day: then it returns ErrNotFound.
func (c *Client) Certificate(ctx context.Context, name string) (CertificateAnswer, error) {
	var object signingRequest
	if err := c.call(ctx, http.MethodGet, certificateRequests+"/"+url.PathEscape(name), "", nil, &object); err != nil {
		return CertificateAnswer{}, fmt.Errorf("read CertificateSigningRequest %s: %w", name, err)
	}
	answer := CertificateAnswer{Certificate: object.Status.Certificate}
	for _, condition := range object.Status.Conditions {
		if condition.Type == "Denied" || condition.Type == "Failed" {
			answer.Refused = fmt.Sprintf("%s (%s): %s", condition.Type, condition.Reason, condition.Message)
		}
	}
	return answer, nil
}
