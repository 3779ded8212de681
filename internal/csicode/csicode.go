// Package csicode maps the error codes of the escache API to the gRPC codes of CSI, for
// csi-controller and csi-node alike.
package csicode

import (
	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
)

// Of returns the gRPC code for what an escached answered. A refusal that only time or an operator
// can end is FailedPrecondition. A request that a correct driver would not have sent is Internal:
// it is a bug, or the two programs do not fit each other. A host without a replica (not_found) is a
// refusal too: to CSI, NotFound would mean that the volume itself does not exist.
func Of(code escache.Code) codes.Code {
	switch code { //nolint:exhaustive // the rest, also codes of a later API, are refusals
	case escache.CodeBusy:
		return codes.Aborted
	case escache.CodeNoRoom:
		return codes.ResourceExhausted
	case escache.CodeImageNotFound:
		return codes.NotFound
	case escache.CodeCephUnavailable, escache.CodePeerUnavailable, escache.CodeCacheError, escache.CodeStuck,
		escache.CodeRecovering, escache.CodeOtherHost:
		return codes.Unavailable
	case escache.CodeTimeout:
		return codes.DeadlineExceeded
	case escache.CodeInvalidRequest, escache.CodeInternal, escache.CodeUnknownPath, escache.CodeMethodNotAllowed:
		return codes.Internal
	default:
		return codes.FailedPrecondition
	}
}
