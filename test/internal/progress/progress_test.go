package progress

import (
	"bytes"
	"errors"
	"regexp"
	"testing"
)

func TestEveryStepEndsWithALineThatSaysHow(t *testing.T) {
	tests := map[string]struct {
		err  error
		want string
	}{
		"success": {nil, `^\[ +\d+\.\d+s\] boot n1 … ok \d+\.\d+s\n$`},
		"failure": {errors.New("no"), `^\[ +\d+\.\d+s\] boot n1 … failed \d+\.\d+s\n$`},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			err := New(&out).Do("boot n1", func() error { return test.err })
			if !errors.Is(err, test.err) {
				t.Errorf("error %v is not passed on", err)
			}
			if !regexp.MustCompile(test.want).Match(out.Bytes()) {
				t.Errorf("got %q", out.String())
			}
		})
	}
}
