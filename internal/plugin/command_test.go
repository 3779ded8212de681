package plugin

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/internal/plugin/failure"
)

// run runs the command line against an API server that gives the same answer to every request.
func run(t *testing.T, code int, status string, args ...string) (exit int, out, errOut string) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(code)
		_, _ = w.Write([]byte(status))
	}))
	t.Cleanup(s.Close)
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var o, e bytes.Buffer
	exit = Run("test", append(args, "--server", s.URL), strings.NewReader(""), &o, &e)
	return exit, o.String(), e.String()
}

func TestWrongUseIsASentence(t *testing.T) {
	for _, tc := range []struct {
		args []string
		exit int
		says string
	}{
		{[]string{"flush"}, failure.Usage, "name exactly one of"},
		{[]string{"flush", "a", "--node=n1"}, failure.Usage, "name exactly one of"},
		{[]string{"evacuate"}, failure.Usage, "name one NODE"},
		{[]string{"status", "-o", "xml"}, failure.Usage, "none of table"},
		{[]string{"status", "--sort-by=colour"}, failure.Usage, "none of age, cache, claim, dirty"},
		{[]string{"explain", "pool/x"}, failure.Usage, "only volume/, snapshot/"},
		{[]string{"preflight", "-o", "yaml"}, failure.Usage, "none of table, json"},
		{[]string{"status", "--nonsense"}, failure.Usage, "nonsense"},
		{[]string{"status", "extra"}, failure.Usage, "extra"},
		{[]string{"nonsense"}, failure.Usage, "nonsense"},
	} {
		exit, _, errOut := run(t, http.StatusOK, "{}", tc.args...)
		if exit != tc.exit || !strings.Contains(errOut, tc.says) || strings.Count(errOut, "\n") > 3 {
			t.Errorf("%v: exit %d, %q", tc.args, exit, errOut)
		}
	}
}

func TestServerThatDoesNotAnswer(t *testing.T) {
	t.Setenv("KUBECONFIG", filepath.Join(t.TempDir(), "none"))
	var o, e bytes.Buffer
	if exit := Run("test", []string{"status", "--server", "http://127.0.0.1:1"}, strings.NewReader(""), &o, &e); exit != failure.Failed ||
		!strings.Contains(e.String(), "127.0.0.1:1 does not answer") {
		t.Errorf("exit %d: %s", exit, e.String())
	}
}
