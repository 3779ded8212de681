package console

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/escache/escache-csi/internal/plugin/failure"
)

func TestNameHasToBeTyped(t *testing.T) {
	for typed, want := range map[string]error{"pvc-1\n": nil, "yes\n": failure.ErrDeclined, "": failure.ErrDeclined} {
		c := New(genericiooptions.IOStreams{In: strings.NewReader(typed), Out: &bytes.Buffer{}})
		if err := c.Confirm("All is lost.", "pvc-1"); !errors.Is(err, want) {
			t.Errorf("%q: %v", typed, err)
		}
	}
}
