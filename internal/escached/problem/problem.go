// Package problem makes the errors with which the API answers. It also maps the errors of
// escached's layers to the API's codes.
package problem

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/escached/cache"
	"github.com/escache/escache-csi/internal/escached/drbd"
	"github.com/escache/escache-csi/internal/escached/krbd"
	"github.com/escache/escache-csi/internal/escached/lvm"
)

// New returns an error that the API answers with code. The text tells the operator what to do
// next.
func New(code escache.Code, format string, args ...any) error {
	return &escache.Problem{Code: code, Detail: fmt.Sprintf(format, args...)}
}

// On is New with a text that begins with the volume.
func On(ref escache.VolumeRef, code escache.Code, format string, args ...any) error {
	return New(code, "%s/%s: "+format, append([]any{ref.Pool, ref.Image}, args...)...)
}

// IfLate returns an error if a call is about an earlier attachment than the newest that was seen here. The
// epoch 0 is that of a caller who does not say which attachment is meant.
func IfLate(ref escache.VolumeRef, epoch, seen int64) error {
	if epoch == 0 || epoch >= seen {
		return nil
	}
	return On(ref, escache.CodeStaleEpoch, "epoch %d is older than %d, which was seen here; read the volume's record again", epoch, seen)
}

// codeOf maps the layers' sentinel errors to the API's codes. Nothing else does.
func codeOf(err error) escache.Code {
	if _, stuck := errors.AsType[*command.StuckError](err); stuck {
		return escache.CodeStuck
	}
	for _, m := range []struct {
		err  error
		code escache.Code
	}{
		// The cache's errors come first: undoing a connect may add errors of the layers below.
		{cache.ErrNoEngine, escache.CodeEngineMissing},
		{cache.ErrForeign, escache.CodeIdentityMismatch},
		{cache.ErrCorrupt, escache.CodeCacheCorrupt},
		{cache.ErrUnchecked, escache.CodeRecovering},
		{cache.ErrRecovering, escache.CodeRecovering},
		{cache.ErrUnserved, escache.CodeCacheError},
		{cache.ErrFailed, escache.CodeCacheError},
		{cache.ErrDirty, escache.CodeDirty},
		{krbd.ErrInUse, escache.CodeImageInUse},
		{krbd.ErrNotFound, escache.CodeImageNotFound},
		{krbd.ErrUnavailable, escache.CodeCephUnavailable},
		{krbd.ErrRefused, escache.CodeCephUnavailable},
		{krbd.ErrConfig, escache.CodeCephUnavailable},
		{krbd.ErrBusy, escache.CodeDeviceOpen},
		{lvm.ErrNoRoom, escache.CodeNoRoom},
		{drbd.ErrPeerNotFenced, escache.CodeFencingRefused},
		{drbd.ErrPeerPrimary, escache.CodeConnected},
		{drbd.ErrNoCurrentData, escache.CodeOutdated},
		{drbd.ErrOpen, escache.CodeDeviceOpen},
		{cache.ErrOpen, escache.CodeDeviceOpen},
		{cache.ErrAbsent, escache.CodeNotConnected},
		{context.DeadlineExceeded, escache.CodeTimeout},
	} {
		if errors.Is(err, m.err) {
			return m.code
		}
	}
	return escache.CodeInternal
}

// Of returns the body with which the API answers err.
func Of(err error) *escache.Problem {
	var p *escache.Problem
	if errors.As(err, &p) {
		// Leave out what was wrapped around the problem: the place in the code does not help
		// callers.
		p = &escache.Problem{Code: p.Code, Detail: p.Detail}
	} else {
		p = &escache.Problem{Code: codeOf(err), Detail: err.Error()}
	}
	p.Status = escache.StatusOf(p.Code)
	p.Title = http.StatusText(p.Status)
	p.Type = "urn:escache:problem:" + string(p.Code)
	return p
}
