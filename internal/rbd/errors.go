package rbd

import (
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Errors of this package. Every error it returns wraps one of them, with what was being done, or is
// a context's error.
var (
	ErrClusterNotFound = errors.New("no such cluster in the configuration")
	ErrConfig          = errors.New("the cluster's configuration cannot be used")
	ErrPoolNotFound    = errors.New("no such pool")
	ErrPoolNotReady    = errors.New("the pool is not ready for RBD")
	ErrNotFound        = errors.New("not found")
	ErrExists          = errors.New("exists already")
	ErrBusy            = errors.New("in use")
	ErrHasSnapshots    = errors.New("has snapshots or clones")
	ErrInvalid         = errors.New("invalid")
	ErrPermission      = errors.New("refused by Ceph for this user and key")
	ErrFull            = errors.New("no space in Ceph")
	ErrUnavailable     = errors.New("no Ceph available")
	ErrForeign         = errors.New("the image belongs to another Kubernetes cluster")
	ErrReleased        = errors.New("the image was released")
	ErrNotMoved        = errors.New("it was not this driver that moved it to the trash")
	ErrCeph            = errors.New("failure of Ceph")
)

// errnos translates Ceph's error numbers.
var errnos = map[syscall.Errno]error{
	syscall.ENOENT:       ErrNotFound,
	syscall.EEXIST:       ErrExists,
	syscall.EBUSY:        ErrBusy,
	syscall.EROFS:        ErrBusy, // the holder of the exclusive lock does not give it up
	syscall.ENOTEMPTY:    ErrHasSnapshots,
	syscall.EINVAL:       ErrInvalid,
	syscall.EDOM:         ErrInvalid,
	syscall.ERANGE:       ErrInvalid,
	syscall.ENOSYS:       ErrInvalid,
	syscall.EOPNOTSUPP:   ErrInvalid,
	syscall.EPERM:        ErrPermission,
	syscall.EACCES:       ErrPermission,
	syscall.ENOSPC:       ErrFull,
	syscall.EDQUOT:       ErrFull,
	syscall.ETIMEDOUT:    ErrUnavailable,
	syscall.ENOTCONN:     ErrUnavailable,
	syscall.ESHUTDOWN:    ErrUnavailable, // this client is on the blocklist
	syscall.ECONNREFUSED: ErrUnavailable,
	syscall.ECONNRESET:   ErrUnavailable,
	syscall.EHOSTUNREACH: ErrUnavailable,
	syscall.ENETUNREACH:  ErrUnavailable,
}

// errno returns Ceph's error number behind err, 0 if there is none.
func errno(err error) syscall.Errno {
	var coded interface{ ErrorCode() int }
	if !errors.As(err, &coded) {
		return 0
	}
	code := coded.ErrorCode()
	return syscall.Errno(max(code, -code))
}

// failure is an error of Ceph with its sentinel.
type failure struct {
	sentinel error
	number   syscall.Errno
}

func (f *failure) Error() string  { return fmt.Sprintf("%v: %s", f.sentinel, f.number.Error()) }
func (f *failure) Unwrap() error  { return f.sentinel }
func (f *failure) ErrorCode() int { return int(f.number) }

// translate gives an error of go-ceph its sentinel. Errors that have one already keep it, and the
// text around it.
func translate(err error) error {
	number := errno(err)
	var done *failure
	if err == nil || number == 0 || errors.As(err, &done) {
		return err
	}
	sentinel, ok := errnos[number]
	if !ok {
		sentinel = ErrCeph
	}
	return &failure{sentinel, number}
}

// UnavailableError is an ErrUnavailable that says what hangs, and since when.
type UnavailableError struct {
	Cluster string
	Op      string // the call that was refused or given up
	Reason  string
	// Cause is set if the caller cancelled. It is not set if the deadline passed: that is not the
	// caller's doing.
	Cause error
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s on cluster %s: %v: %s", e.Op, e.Cluster, ErrUnavailable, e.Reason)
}

// Is makes errors.Is(err, ErrUnavailable) true.
func (e *UnavailableError) Is(target error) bool { return target == ErrUnavailable }

func (e *UnavailableError) Unwrap() error { return e.Cause }

// ExistsError is an ErrExists that describes the existing image.
type ExistsError struct{ Image ImageInfo }

func (e *ExistsError) Error() string {
	return fmt.Sprintf("image %s/%s %v with %d bytes", e.Image.Pool, e.Image.Name, ErrExists, e.Image.SizeBytes)
}

// Is makes errors.Is(err, ErrExists) true.
func (e *ExistsError) Is(target error) bool { return target == ErrExists }

// result returns the label for an outcome in metrics.
func result(err error) string {
	if err == nil {
		return "ok"
	}
	for _, r := range []struct {
		sentinel error
		label    string
	}{
		{ErrUnavailable, "unavailable"}, {ErrNotFound, "not_found"}, {ErrExists, "exists"}, {ErrBusy, "busy"},
		{ErrPoolNotFound, "pool_not_found"}, {ErrPoolNotReady, "pool_not_ready"}, {ErrHasSnapshots, "has_snapshots"},
		{ErrInvalid, "invalid"}, {ErrPermission, "permission"}, {ErrFull, "full"}, {ErrConfig, "config"},
		{ErrForeign, "foreign"}, {ErrReleased, "released"}, {ErrNotMoved, "not_moved"},
	} {
		if errors.Is(err, r.sentinel) {
			return r.label
		}
	}
	return "error"
}

// ago formats the time since a moment for operators.
func ago(now, since time.Time) string { return now.Sub(since).Round(time.Second / 10).String() }
