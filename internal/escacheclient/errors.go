package escacheclient

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"mime"
	"net"
	"net/http"
	"net/url"

	"github.com/go-resty/resty/v2"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/tlsfiles"
)

// Causes of a call without an answer. A *CallError wraps them.
var (
	// ErrUnreachable: the service could not be reached, or the connection broke before the answer
	// was complete.
	ErrUnreachable = errors.New("escache service is unreachable")
	// ErrTimeout: the request was sent, and the deadline passed before the answer came. What it
	// asked for may still happen.
	ErrTimeout = errors.New("escache service did not answer in time")
	// ErrTLS: the two sides do not accept each other's certificates.
	ErrTLS = errors.New("TLS to the escache service failed")
)

// Outcomes that Observe is told beside the API's codes.
const (
	OutcomeOK          = "ok"
	OutcomeUnreachable = "unreachable"
	OutcomeTimeout     = "no_answer"
	OutcomeTLS         = "tls"
	OutcomeCanceled    = "canceled"
	OutcomeUnexpected  = "unexpected"
)

// CallError says which call to which node failed. Unwrap gives an *escache.Problem of the API, an
// *UnexpectedAnswerError, or one of the causes above.
type CallError struct {
	Node string
	Call string
	Err  error
}

// Error names node, call and cause.
func (e *CallError) Error() string { return fmt.Sprintf("%s on %s: %v", e.Call, e.Node, e.Err) }

// Unwrap returns the cause.
func (e *CallError) Unwrap() error { return e.Err }

// UnexpectedAnswerError is an answer that the API does not have: of a proxy, of another service, or
// cut short.
type UnexpectedAnswerError struct {
	Status int
	Reason string
	// Cut is the beginning of the body.
	Cut string
}

// Error says what came instead of an answer of the API.
func (e *UnexpectedAnswerError) Error() string {
	return fmt.Sprintf("status %d with an answer that is not of the escache API (%s): %q; check that the address is an escache service's",
		e.Status, e.Reason, e.Cut)
}

const cutBytes = 200

func unexpected(resp *resty.Response, reason string) error {
	body := resp.Body()
	if len(body) > cutBytes {
		body = body[:cutBytes]
	}
	return &UnexpectedAnswerError{Status: resp.StatusCode(), Reason: reason, Cut: string(body)}
}

// problemOf turns an error answer into the API's problem.
func problemOf(resp *resty.Response) error {
	kind, _, err := mime.ParseMediaType(resp.Header().Get("Content-Type"))
	if err != nil || kind != escache.ProblemContentType {
		return unexpected(resp, fmt.Sprintf("content type %q", resp.Header().Get("Content-Type")))
	}
	var problem escache.Problem
	if err := json.Unmarshal(resp.Body(), &problem); err != nil {
		return unexpected(resp, err.Error())
	}
	if problem.Code == "" {
		return unexpected(resp, "no code")
	}
	problem.Status = resp.StatusCode()
	return &problem
}

// causeOf returns why a call got no answer. The request may have been sent only if connected.
func causeOf(ctx context.Context, err error, connected bool) error {
	if sent, ok := errors.AsType[*url.Error](err); ok { // its text repeats method and URL
		err = sent.Err
	}
	if advice := tlsAdvice(err); advice != "" {
		return fmt.Errorf("%w: %w; %s", ErrTLS, err, advice)
	}
	switch {
	case errors.Is(ctx.Err(), context.Canceled):
		return fmt.Errorf("given up by the caller: %w", context.Canceled)
	case !connected:
		return fmt.Errorf("%w: %w", ErrUnreachable, err)
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fmt.Errorf("%w: %w", ErrTimeout, context.DeadlineExceeded)
	default:
		return fmt.Errorf("%w: the connection broke before the answer was complete: %w", ErrUnreachable, err)
	}
}

// tlsAdvice says what to do about a failed handshake. It is empty if err is something else.
func tlsAdvice(err error) string {
	var (
		authority x509.UnknownAuthorityError
		hostname  x509.HostnameError
		invalid   x509.CertificateInvalidError
		record    tls.RecordHeaderError
		verify    *tls.CertificateVerificationError
		files     *tlsfiles.Error
		alert     *net.OpError
	)
	switch {
	case errors.As(err, &files):
		return "check that the TLS files exist and can be read, and that key and certificate belong together"
	case errors.As(err, &authority):
		return "its certificate is of another authority: give this client the authority that signed it"
	case errors.As(err, &hostname):
		return "its certificate is for another name or address: issue one with the address that is called"
	case errors.As(err, &invalid):
		return "its certificate is not valid (expired, not yet valid, or not for servers): issue a new one and check both clocks"
	case errors.As(err, &verify):
		return "issue the service a new certificate"
	case errors.As(err, &record) || errors.Is(err, http.ErrSchemeMismatch):
		return "the other side does not speak TLS: check the port"
	case errors.As(err, &alert) && alert.Op == "remote error":
		return "it refused this client's certificate, or has none of its own yet: check that this client's has not expired and is signed " +
			"by the authority the service trusts, and the service's log"
	}
	return ""
}

// outcomeOf is the word for metrics.
func outcomeOf(err error) string {
	var problem *escache.Problem
	switch {
	case err == nil:
		return OutcomeOK
	case errors.As(err, &problem):
		return string(problem.Code)
	case errors.Is(err, ErrTLS):
		return OutcomeTLS
	case errors.Is(err, ErrTimeout):
		return OutcomeTimeout
	case errors.Is(err, ErrUnreachable):
		return OutcomeUnreachable
	case errors.Is(err, context.Canceled):
		return OutcomeCanceled
	default:
		return OutcomeUnexpected
	}
}
