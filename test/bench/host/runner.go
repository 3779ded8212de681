package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
)

// runner is what a benchmark has in the place of a test.
type runner struct {
	ctx      context.Context
	failed   bool
	cleanups []func()
}

// run runs a benchmark and then everything it registered, and says whether it succeeded.
func run(ctx context.Context, bench func(*runner)) bool {
	r := &runner{ctx: ctx}
	done := make(chan struct{})
	// Fatalf ends the goroutine it is called on, as in a test.
	go func() {
		defer close(done)
		bench(r)
	}()
	<-done
	for _, cleanup := range slices.Backward(r.cleanups) {
		cleaned := make(chan struct{})
		go func() {
			defer close(cleaned)
			cleanup()
		}()
		<-cleaned
	}
	return !r.failed
}

func (r *runner) Helper()                           {}
func (r *runner) Context() context.Context          { return r.ctx }
func (r *runner) Cleanup(f func())                  { r.cleanups = append(r.cleanups, f) }
func (r *runner) Failed() bool                      { return r.failed }
func (r *runner) Logf(format string, args ...any)   { fmt.Fprintf(os.Stderr, format+"\n", args...) }
func (r *runner) Errorf(format string, args ...any) { r.failed = true; r.Logf(format, args...) }

func (r *runner) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}
