package cachetest

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache"
)

// recorder is the T of a check that should fail.
type recorder struct {
	ctx    context.Context
	failed []string
}

func (r *recorder) Helper()                  {}
func (r *recorder) Context() context.Context { return r.ctx }
func (r *recorder) Errorf(format string, args ...any) {
	r.failed = append(r.failed, fmt.Sprintf(format, args...))
}

func (r *recorder) Fatalf(format string, args ...any) {
	r.Errorf(format, args...)
	runtime.Goexit()
}

func TestEveryCheckCatchesItsMutants(t *testing.T) {
	var names []string
	for _, check := range Checks() {
		names = append(names, check.Name)
		if len(mutants[check.Name]) == 0 {
			t.Errorf("%q has no mutant: it may be unable to fail", check.Name)
		}
		for name, mutate := range mutants[check.Name] {
			t.Run(check.Name+"/"+name, func(t *testing.T) {
				f := NewFake()
				b := &broken{Fake: f}
				mutate(f, b)
				r := &recorder{ctx: t.Context()}
				done := make(chan struct{})
				go func() {
					defer close(done)
					check.Run(r, &mutant{Fake: f, engine: func(*Fake) cache.Engine { return b }})
				}()
				<-done
				if len(r.failed) == 0 {
					t.Error("the check did not notice")
				}
			})
		}
	}
	for name := range mutants {
		if !slices.Contains(names, name) {
			t.Errorf("there is no check %q", name)
		}
	}
}

func TestTheFakeKeepsTheContract(t *testing.T) {
	Run(t, func(*testing.T) Host { return NewFake() })
	t.Run("I/O goes on during a hold", func(t *testing.T) {
		Run(t, func(*testing.T) Host {
			f := NewFake()
			f.GoesOn = true
			return f
		})
	})
}
