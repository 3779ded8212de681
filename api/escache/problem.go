package escache

import (
	"fmt"
	"maps"
	"net/http"
	"slices"
)

// ProblemContentType is the media type of every error body (RFC 9457).
const ProblemContentType = "application/problem+json"

// Code is the stable name of an error. Callers decide by the code, never by the text.
type Code string

// Codes of the API's errors, each with its HTTP status.
const (
	CodeInvalidRequest   Code = "invalid_request"    // 400: the body or a parameter is wrong
	CodeUnauthorized     Code = "unauthorized"       // 401: no client certificate, or one from another authority
	CodeForbidden        Code = "forbidden"          // 403: the client's certificate has the name of nobody who may call
	CodeUnknownPath      Code = "unknown_path"       // 404: the API has no such path
	CodeMethodNotAllowed Code = "method_not_allowed" // 405: the path has no such method
	CodeNotFound         Code = "not_found"          // 404: this host has no replica of this volume
	CodeImageNotFound    Code = "image_not_found"    // 404: Ceph has no such image
	CodeBusy             Code = "busy"               // 409: another operation on this volume is running; detail names it and its age
	CodeReplicaMismatch  Code = "replica_mismatch"   // 409: this host has a replica with other parameters
	CodePortInUse        Code = "port_in_use"        // 409: another volume has the port or minor number
	CodeConnected        Code = "connected"          // 409: refused while the device is connected here, or on the peer that needs it
	CodeNotConnected     Code = "not_connected"      // 409: the volume is not connected here
	CodeDirty            Code = "dirty"              // 409: refused while the cache holds dirty data
	CodeDirtyUnknown     Code = "dirty_unknown"      // 409: refused because it is unknown whether the cache is clean
	CodeDeviceOpen       Code = "device_open"        // 409: refused while the device is open
	CodeStaleEpoch       Code = "stale_epoch"        // 409: a newer epoch has been seen here
	CodeOutdated         Code = "outdated"           // 409: this replica is not current
	CodeIdentityMismatch Code = "identity_mismatch"  // 409: image or cache belongs to another volume
	CodeCacheCorrupt     Code = "cache_corrupt"      // 409: the cache's superblock is damaged
	CodeImageInUse       Code = "image_in_use"       // 409: another client holds the image's exclusive lock
	CodeFencingRefused   Code = "fencing_refused"    // 409: the arbiter does not allow this host to go on without its peer
	CodeHeld             Code = "held"               // 409: refused while the volume is held
	CodeNotSuperseded    Code = "not_superseded"     // 409: nothing proves that another node has taken the volume over
	CodeSecretMissing    Code = "secret_missing"     // 409: this host has lost the secret of the replication link
	CodeEngineMissing    Code = "engine_missing"     // 409: this host cannot run the cache engine of the volume
	CodeOtherHost        Code = "other_host"         // 421: the request is meant for another host
	CodeInternal         Code = "internal"           // 500: a bug, or an unexpected error
	CodeCephUnavailable  Code = "ceph_unavailable"   // 503: Ceph does not answer
	CodePeerUnavailable  Code = "peer_unavailable"   // 503: the peer is needed for this and does not answer
	CodeCacheError       Code = "cache_error"        // 503: the cache reports an error
	CodeStuck            Code = "stuck"              // 503: an earlier command of this volume is stuck in the kernel
	CodeRecovering       Code = "recovering"         // 503: what is on this host, or in the volume's cache, is still being read
	CodeTimeout          Code = "timeout"            // 504: the deadline passed first
	CodeNoRoom           Code = "no_room"            // 507: no cache space, memory, port or minor number is free
)

// Problem is the body of every answer that reports an error (RFC 9457).
//
//nolint:errname // the standard calls it a problem
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
	Code   Code   `json:"code"`
}

// Error returns the detail, which says what happened and what to do, and the code.
func (p *Problem) Error() string {
	return fmt.Sprintf("%s (%s)", p.Detail, p.Code)
}

// statuses has the HTTP status of every code. openapi.yaml repeats it in x-code-status, and a test
// compares the two.
var statuses = map[Code]int{
	CodeInvalidRequest:   http.StatusBadRequest,
	CodeUnauthorized:     http.StatusUnauthorized,
	CodeForbidden:        http.StatusForbidden,
	CodeUnknownPath:      http.StatusNotFound,
	CodeMethodNotAllowed: http.StatusMethodNotAllowed,
	CodeNotFound:         http.StatusNotFound,
	CodeImageNotFound:    http.StatusNotFound,
	CodeBusy:             http.StatusConflict,
	CodeReplicaMismatch:  http.StatusConflict,
	CodePortInUse:        http.StatusConflict,
	CodeConnected:        http.StatusConflict,
	CodeNotConnected:     http.StatusConflict,
	CodeDirty:            http.StatusConflict,
	CodeDirtyUnknown:     http.StatusConflict,
	CodeDeviceOpen:       http.StatusConflict,
	CodeStaleEpoch:       http.StatusConflict,
	CodeOutdated:         http.StatusConflict,
	CodeIdentityMismatch: http.StatusConflict,
	CodeCacheCorrupt:     http.StatusConflict,
	CodeImageInUse:       http.StatusConflict,
	CodeFencingRefused:   http.StatusConflict,
	CodeHeld:             http.StatusConflict,
	CodeNotSuperseded:    http.StatusConflict,
	CodeSecretMissing:    http.StatusConflict,
	CodeEngineMissing:    http.StatusConflict,
	CodeOtherHost:        http.StatusMisdirectedRequest,
	CodeInternal:         http.StatusInternalServerError,
	CodeCephUnavailable:  http.StatusServiceUnavailable,
	CodePeerUnavailable:  http.StatusServiceUnavailable,
	CodeCacheError:       http.StatusServiceUnavailable,
	CodeStuck:            http.StatusServiceUnavailable,
	CodeRecovering:       http.StatusServiceUnavailable,
	CodeTimeout:          http.StatusGatewayTimeout,
	CodeNoRoom:           http.StatusInsufficientStorage,
}

// StatusOf returns the HTTP status for a code, and 500 for a code that the API does not have.
func StatusOf(code Code) int {
	if status, ok := statuses[code]; ok {
		return status
	}
	return http.StatusInternalServerError
}

// Codes returns every code of the API, sorted.
func Codes() []Code {
	return slices.Sorted(maps.Keys(statuses))
}
