package node

import (
	"context"
	"errors"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/authority"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/csicode"
	"github.com/escache/escache-csi/internal/escacheclient"
	"github.com/escache/escache-csi/internal/node/filesystem"
	"github.com/escache/escache-csi/internal/node/kube"
	"github.com/escache/escache-csi/internal/node/mounts"
	"github.com/escache/escache-csi/internal/operation"
)

// Errors of the node service.
var (
	// ErrInvalid: the request is wrong whatever the state of the system.
	ErrInvalid = errors.New("invalid request")
	// ErrNotHere: the volume is not at that path.
	ErrNotHere = errors.New("no such volume at this path")
	// ErrIncompatible: it is there already, in another way than asked for.
	ErrIncompatible = errors.New("already there in another way")
	// ErrRefused: the state of the volume or the host forbids it; the text says what to do first.
	ErrRefused = errors.New("refused")
	// ErrBusy: another operation on the volume is running.
	ErrBusy = operation.ErrBusy
	// ErrFrozen: I/O of the volume waits.
	ErrFrozen = errors.New("the volume's I/O is frozen")
	// ErrUnavailable: something the call needs is not there now; it is worth trying again.
	ErrUnavailable = errors.New("not available now")
	// ErrNotClean: time was up before the cache was written back.
	ErrNotClean = errors.New("not clean yet")
	// ErrTooLarge: larger than the limit in the request.
	ErrTooLarge = errors.New("larger than the limit")
	// ErrUndone: the call failed, and what it had done could not be undone yet.
	ErrUndone = errors.New("could not be undone")
)

// Code is the one place where errors become gRPC codes. The kubelet takes some of them as final: after those it forgets the
// volume, so they may be returned only when nothing is left behind (see IsFinal).
func Code(err error) codes.Code {
	if problem := new(escache.Problem); errors.As(err, &problem) && !errors.Is(err, ErrUndone) {
		return csicode.Of(problem.Code)
	}
	for _, rule := range []struct {
		code codes.Code
		errs []error
	}{
		{codes.Unavailable, []error{
			ErrUndone, ErrFrozen, ErrUnavailable, command.ErrStuck, kube.ErrUnavailable, escacheclient.ErrUnreachable, escacheclient.ErrTLS,
		}},
		{codes.DeadlineExceeded, []error{ErrNotClean, command.ErrTimeout, escacheclient.ErrTimeout, context.DeadlineExceeded}},
		{codes.Canceled, []error{context.Canceled}},
		{codes.Aborted, []error{ErrBusy, kube.ErrConflict, filesystem.ErrInUse}},
		{codes.InvalidArgument, []error{ErrInvalid, filesystem.ErrOptions, filesystem.ErrUnknownType}},
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

// IsFinal reports whether the kubelet, seeing this code from NodeStage, takes the volume as not staged and does not call
// NodeUnstage for it.
func IsFinal(code codes.Code) bool {
	switch code { //nolint:exhaustive // all others are final
	case codes.Canceled, codes.DeadlineExceeded, codes.Unavailable, codes.ResourceExhausted, codes.Aborted:
		return false
	default:
		return true
	}
}
