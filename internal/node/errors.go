package node

import (
	"context"
	"errors"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/csicode"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/fstype"
	"github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
	"github.com/escache/escache-csi/internal/operation"
)

// Errors of the node service.
var (
	// ErrInvalid: the request is wrong whatever the state of the system.
	ErrInvalid = errors.New("invalid request")
	// ErrNotHere: the volume is not at that path, or not connected on this node.
	ErrNotHere = errors.New("no such volume at this path")
	// ErrIncompatible: the path has a mount already, and it is not the one that is wanted.
	ErrIncompatible = errors.New("already there, but different")
	// ErrRefused: the state of the volume or the host forbids the call; the text says what to do
	// first.
	ErrRefused = errors.New("refused")
	// ErrBusy: another operation on the volume is running.
	ErrBusy = operation.ErrBusy
	// ErrFrozen: I/O of the volume is suspended.
	ErrFrozen = errors.New("the volume's I/O is frozen")
	// ErrUnavailable: something that the call needs does not answer now; a later try may succeed.
	ErrUnavailable = errors.New("not available now")
	// ErrNotClean: the cache was not written back in time.
	ErrNotClean = errors.New("not clean yet")
	// ErrTooLarge: larger than the limit in the request.
	ErrTooLarge = errors.New("larger than the limit")
	// ErrUndone: the call failed, and what it had done could not be undone yet.
	ErrUndone = errors.New("could not be undone")
)

// Code returns the gRPC code of an error. The kubelet takes some codes of NodeStageVolume as final
// and then forgets the volume, so the service returns those only if it has left nothing behind (see
// IsFinal).
func Code(err error) codes.Code {
	if problem := new(escache.Problem); errors.As(err, &problem) && !errors.Is(err, ErrUndone) {
		return csicode.Of(problem.Code)
	}
	for _, rule := range []struct {
		code codes.Code
		errs []error
	}{
		{codes.Unavailable, []error{
			ErrUndone, ErrFrozen, ErrUnavailable, command.ErrStuck, escacheclient.ErrUnreachable, escacheclient.ErrTLS,
			kube.ErrUnavailable,
			kube.ErrForbidden, // an API server that starts also says that, and an administrator can change it
		}},
		{codes.DeadlineExceeded, []error{ErrNotClean, command.ErrTimeout, escacheclient.ErrTimeout, context.DeadlineExceeded}},
		{codes.Canceled, []error{context.Canceled}},
		{codes.Aborted, []error{ErrBusy, kube.ErrConflict, filesystem.ErrInUse}},
		{codes.InvalidArgument, []error{ErrInvalid, filesystem.ErrOptions, fstype.ErrUnknown}},
		{codes.NotFound, []error{ErrNotHere, kube.ErrNotFound}},
		{codes.AlreadyExists, []error{ErrIncompatible}},
		{codes.OutOfRange, []error{ErrTooLarge}},
		{codes.FailedPrecondition, []error{
			ErrRefused, authority.ErrRefused, mounts.ErrBusy, filesystem.ErrForeign, filesystem.ErrVanished,
		}},
	} {
		for _, known := range rule.errs {
			if errors.Is(err, known) {
				return rule.code
			}
		}
	}
	if err == nil {
		return codes.OK
	}
	return codes.Internal
}

// answers reports whether an error is an answer of escached with one of the codes.
func answers(err error, codes ...escache.Code) bool {
	problem := new(escache.Problem)
	return errors.As(err, &problem) && slices.Contains(codes, problem.Code)
}

// IsFinal reports whether the kubelet, after this code from NodeStageVolume, takes the volume as
// not staged and does not call NodeUnstageVolume for it.
func IsFinal(code codes.Code) bool {
	switch code { //nolint:exhaustive // all others are final
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	default:
		return true
	}
}
