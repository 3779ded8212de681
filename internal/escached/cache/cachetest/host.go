// Package cachetest has the contract of cache.Engine, as tests that every engine must pass. It also
// has Fake, an engine in memory for the tests of code that uses an engine.
package cachetest

import (
	"context"
	"io"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// Host is the host of an engine under test. It has one disk and one origin, both blank at the
// start.
type Host interface {
	// Engine returns a new engine, as a new process on the same host would have.
	Engine() cache.Engine
	// Spec names the disk and the origin. Its options are zero.
	Spec() cache.Spec
	// OriginNumber returns the origin's device number, MAJOR:MINOR.
	OriginNumber() string
	// Open opens a cache's device, the disk or the origin, past the page cache.
	Open(path string) (File, error)
	// Refuse makes the origin refuse all writes from now on, or take them again.
	Refuse(refuse bool)
	// Grow makes the origin larger.
	Grow(bytes int64)
}

// File is an open device. Reads and writes are of whole blocks of 4 KiB. A write that returned is
// acknowledged.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
}

// Breaker is a Host that can stop an engine in the middle of a call.
type Breaker interface {
	Host

	// BreakAt makes the n-th change from now on fail, or panic if kill is true. n starts at 1.
	// Broke reports whether that change was reached, and cancels BreakAt.
	BreakAt(n int, kill bool)
	Broke() bool
}

// T is what a check needs of testing.T.
type T interface {
	Helper()
	Context() context.Context
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Check is one rule of the contract.
type Check struct {
	Name string
	Run  func(t T, h Host)
}

// Run runs all checks, each on a host of its own.
func Run(t *testing.T, newHost func(t *testing.T) Host) {
	t.Helper()
	for _, c := range Checks() {
		t.Run(c.Name, func(t *testing.T) { c.Run(t, newHost(t)) })
	}
}
