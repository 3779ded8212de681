package volumes

import (
	"context"
	"errors"
	"net"
	"net/url"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/csicode"
	"github.com/escache/escache-csi/internal/operation"
	"github.com/escache/escache-csi/internal/placement"
)

// Errors of the domain. An error that wraps one of them reaches the caller as the code beside it.
var (
	ErrInvalid     = errors.New("invalid argument")             // InvalidArgument: the request can never succeed
	ErrOutOfRange  = errors.New("out of range")                 // OutOfRange: no size is both enough and allowed
	ErrNotFound    = errors.New("not found")                    // NotFound: volume, node, cluster or pool
	ErrDifferent   = errors.New("exists differently")           // AlreadyExists: same name, other parameters
	ErrNoRoom      = errors.New("no room")                      // ResourceExhausted: cache, memory, pool, ports or minors
	ErrBusy        = operation.ErrBusy                          // Aborted: another operation runs, or another change came first
	ErrRefused     = errors.New("refused")                      // FailedPrecondition: dirty, outdated, attached, watched, wrong key
	ErrUnavailable = errors.New("unavailable")                  // Unavailable: Ceph, an escached or the API server does not answer
	ErrPageToken   = errors.New("unknown page token")           // Aborted, as CSI wants it: start the list again
	ErrUnsupported = errors.New("not supported by this driver") // InvalidArgument: a capability or mode the driver does not have
)

var sentinels = []struct {
	err  error
	code codes.Code
}{
	{ErrInvalid, codes.InvalidArgument},
	{ErrUnsupported, codes.InvalidArgument},
	{ErrOutOfRange, codes.OutOfRange},
	{ErrNotFound, codes.NotFound},
	{ErrDifferent, codes.AlreadyExists},
	{ErrNoRoom, codes.ResourceExhausted},
	{placement.ErrNoFit, codes.ResourceExhausted},
	{ErrBusy, codes.Aborted},
	{ErrPageToken, codes.Aborted},
	{ErrRefused, codes.FailedPrecondition},
	{authority.ErrRefused, codes.FailedPrecondition},
	{ErrUnavailable, codes.Unavailable},
	{authority.ErrUnreachable, codes.Unavailable},
	{context.DeadlineExceeded, codes.DeadlineExceeded},
	{context.Canceled, codes.Canceled},
}

// Code returns the gRPC code for an error of the domain. No other place maps them.
func Code(err error) codes.Code {
	if err == nil {
		return codes.OK
	}
	if s, ok := status.FromError(err); ok {
		return s.Code()
	}
	for _, s := range sentinels {
		if errors.Is(err, s.err) {
			return s.code
		}
	}
	if problem, ok := errors.AsType[*escache.Problem](err); ok {
		return csicode.Of(problem.Code)
	}
	if code, ok := kubernetesCode(err); ok {
		return code
	}
	var network net.Error
	var request *url.Error
	if errors.As(err, &network) || errors.As(err, &request) {
		return codes.Unavailable
	}
	return codes.Internal
}

// KubernetesAnswered reports whether the API server itself refused a write, so that nothing was written.
func KubernetesAnswered(err error) bool {
	return apierrors.ReasonForError(err) != metav1.StatusReasonUnknown && !apierrors.IsTimeout(err) && !apierrors.IsServerTimeout(err) &&
		!apierrors.IsInternalError(err) && !apierrors.IsUnexpectedServerError(err)
}

func kubernetesCode(err error) (codes.Code, bool) {
	switch {
	case apierrors.IsConflict(err), apierrors.IsAlreadyExists(err):
		return codes.Aborted, true // another change came first; the repeated call sees it
	case apierrors.IsInvalid(err), apierrors.IsBadRequest(err), apierrors.IsRequestEntityTooLargeError(err):
		return codes.InvalidArgument, true
	case apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return codes.FailedPrecondition, true
	case apierrors.IsNotFound(err):
		return codes.NotFound, true
	case apierrors.IsTimeout(err), apierrors.IsServerTimeout(err), apierrors.IsTooManyRequests(err),
		apierrors.IsServiceUnavailable(err), apierrors.IsInternalError(err), apierrors.IsUnexpectedServerError(err):
		return codes.Unavailable, true
	}
	return codes.OK, false
}
