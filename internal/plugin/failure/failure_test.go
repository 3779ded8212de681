package failure_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/escache/escache-csi/internal/plugin/failure"
)

func TestEachFailureHasItsExitCodeAndASentence(t *testing.T) {
	volumes := schema.GroupResource{Group: "escache.io", Resource: "cachevolumes"}
	for name, tc := range map[string]struct {
		err  error
		code int
		says string
	}{
		"wrong command line": {fmt.Errorf("%w: name one VOLUME", failure.ErrUsage), failure.Usage, "name one VOLUME"},
		"not in time":        {fmt.Errorf("wait: %w", failure.ErrTimeUp), failure.TimeUp, "wait: time is up"},
		"interrupted":        {failure.ErrInterrupted, failure.TimeUp, "interrupted"},
		"not confirmed":      {fmt.Errorf("%w: no", failure.ErrDeclined), failure.Declined, "nothing was changed: no"},
		"not allowed":        {apierrors.NewForbidden(volumes, "", errors.New("no role")), failure.Failed, "no role. Ask an administrator"},
		"not logged in":      {apierrors.NewUnauthorized("expired"), failure.Failed, "log in again"},
		"no such kind":       {&meta.NoKindMatchError{}, failure.Failed, "install escache-csi's Helm chart"},
		"no such path":       {apierrors.NewNotFound(volumes, ""), failure.Failed, "install escache-csi's Helm chart"},
		"no such object":     {apierrors.NewNotFound(volumes, "pvc-1"), failure.Failed, `"pvc-1" not found`},
	} {
		if code, text := failure.ExitCode(tc.err), failure.Message(tc.err); code != tc.code || !strings.Contains(text, tc.says) {
			t.Errorf("%s: %d, %s", name, code, text)
		}
	}
	if code := failure.ExitCode(nil); code != failure.Done {
		t.Errorf("no error: %d", code)
	}
}
