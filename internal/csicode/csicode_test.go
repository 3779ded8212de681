package csicode

import (
	"testing"

	"google.golang.org/grpc/codes"

	"github.com/escache/escache-csi/api/escache"
)

func TestEveryCodeOfTheAPIHasTheCodeThatCSIWants(t *testing.T) {
	want := map[escache.Code]codes.Code{
		escache.CodeInvalidRequest:   codes.Internal,
		escache.CodeUnauthorized:     codes.FailedPrecondition, // an operator has to renew a certificate
		escache.CodeForbidden:        codes.FailedPrecondition, // an operator has to name the client
		escache.CodeUnknownPath:      codes.Internal,
		escache.CodeMethodNotAllowed: codes.Internal,
		escache.CodeNotFound:         codes.FailedPrecondition, // this host has no replica; the volume exists
		escache.CodeImageNotFound:    codes.NotFound,
		escache.CodeBusy:             codes.Aborted,
		escache.CodeReplicaMismatch:  codes.FailedPrecondition,
		escache.CodePortInUse:        codes.FailedPrecondition,
		escache.CodeConnected:        codes.FailedPrecondition,
		escache.CodeNotConnected:     codes.FailedPrecondition,
		escache.CodeDirty:            codes.FailedPrecondition,
		escache.CodeDirtyUnknown:     codes.FailedPrecondition,
		escache.CodeDeviceOpen:       codes.FailedPrecondition,
		escache.CodeStaleEpoch:       codes.FailedPrecondition,
		escache.CodeOutdated:         codes.FailedPrecondition,
		escache.CodeIdentityMismatch: codes.FailedPrecondition,
		escache.CodeCacheCorrupt:     codes.FailedPrecondition,
		escache.CodeImageInUse:       codes.FailedPrecondition,
		escache.CodeFencingRefused:   codes.FailedPrecondition,
		escache.CodeHeld:             codes.FailedPrecondition,
		escache.CodeNotSuperseded:    codes.FailedPrecondition,
		escache.CodeSecretMissing:    codes.FailedPrecondition, // a repair or the next attachment gives it again
		escache.CodeOtherHost:        codes.Unavailable,        // the host that is meant may answer the next time
		escache.CodeEngineMissing:    codes.FailedPrecondition, // an operator has to upgrade escached, or load a module
		escache.CodeInternal:         codes.Internal,
		escache.CodeCephUnavailable:  codes.Unavailable,
		escache.CodePeerUnavailable:  codes.Unavailable,
		escache.CodeCacheError:       codes.Unavailable,
		escache.CodeStuck:            codes.Unavailable,
		escache.CodeRecovering:       codes.Unavailable,
		escache.CodeTimeout:          codes.DeadlineExceeded,
		escache.CodeNoRoom:           codes.ResourceExhausted,
	}
	for _, code := range escache.Codes() {
		wanted, listed := want[code]
		if !listed {
			t.Errorf("%s: say here which gRPC code it has", code)
		}
		if got := Of(code); got != wanted {
			t.Errorf("%s: got %s, want %s", code, got, wanted)
		}
	}
	if got := Of("of_a_later_api"); got != codes.FailedPrecondition {
		t.Errorf("an unknown code: got %s", got)
	}
}
