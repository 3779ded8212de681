package console

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

func TestPollEndsWithWhatItSeesOrWithTheTime(t *testing.T) {
	refused, broken, late := errors.New("refused"), errors.New("broken"), errors.New("late")
	for name, tc := range map[string]struct {
		look  func(n int) (bool, error)
		want  error
		looks int
	}{
		"done at once":        {func(int) (bool, error) { return true, nil }, nil, 1},
		"done later":          {func(n int) (bool, error) { return n == 3, nil }, nil, 3},
		"refused":             {func(n int) (bool, error) { return n == 2, map[bool]error{true: refused}[n == 2] }, refused, 2},
		"cannot look":         {func(int) (bool, error) { return false, broken }, broken, 1},
		"never":               {func(int) (bool, error) { return false, nil }, late, 5},
		"done when time ends": {func(n int) (bool, error) { time.Sleep(time.Minute); return true, nil }, nil, 1},
		"fails at the end":    {func(n int) (bool, error) { time.Sleep(time.Minute); return false, broken }, late, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 4500*time.Millisecond)
				defer cancel()
				looks := 0
				err := Poll(ctx, time.Second, func() (bool, error) { looks++; return tc.look(looks) }, func() error { return late })
				if !errors.Is(err, tc.want) || looks != tc.looks {
					t.Errorf("%v after %d looks", err, looks)
				}
			})
		})
	}
}
