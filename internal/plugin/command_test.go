package plugin

import (
	"bytes"
	"io"
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

func TestRepairNamesOneThing(t *testing.T) {
	for _, args := range [][]string{{"repair"}, {"repair", "a", "--host=n1"}, {"repair", "--group=g", "--host=n1"}, {"repair", "a", "b"}} {
		exit, _, errOut := run(t, http.StatusOK, "{}", args...)
		if exit != failure.Usage || !strings.Contains(errOut, "name exactly one of") {
			t.Errorf("%v: exit %d, %q", args, exit, errOut)
		}
	}
}

func TestCordonNamesOneThing(t *testing.T) {
	for _, args := range [][]string{{"cordon"}, {"cordon", "a", "b"}, {"uncordon"}} {
		exit, _, errOut := run(t, http.StatusOK, "{}", args...)
		if exit != failure.Usage || !strings.Contains(errOut, "name one GROUP|HOST") {
			t.Errorf("%v: exit %d, %q", args, exit, errOut)
		}
	}
}

func TestReplaceHostNamesTwoHosts(t *testing.T) {
	for _, args := range [][]string{{"replace-host"}, {"replace-host", "n3"}, {"replace-host", "a", "b", "c"}, {"replace-host", "a", "b", "--apply", "--dry-run"}} {
		if exit, _, errOut := run(t, http.StatusOK, "{}", args...); exit != failure.Usage {
			t.Errorf("%v: exit %d, %q", args, exit, errOut)
		}
	}
}

func TestRebalanceTakesOneOfDryRunAndApply(t *testing.T) {
	for args, want := range map[string]string{
		"rebalance":                      "say --dry-run",
		"rebalance --dry-run --apply":    "say --dry-run",
		"rebalance --dry-run rack1":      `has no "rack1"`,
		"rebalance --dry-run --empty=":   "--empty needs the name",
		"rebalance --apply --parallel=0": "--parallel is 1 at least",
		"move":                           "name one VOLUME",
		"move v1":                        "say where to",
		"move v1 --group=a --cancel":     "say where to",
	} {
		var out bytes.Buffer
		if exit := Run("test", strings.Fields(args), strings.NewReader(""), io.Discard, &out); exit != failure.Usage || !strings.Contains(out.String(), want) {
			t.Errorf("%s: exit %d: %s", args, exit, out.String())
		}
	}
}

func TestWrongUseOfBench(t *testing.T) {
	for _, tc := range []struct{ args, says string }{
		{"", "name the --storage-class"},
		{"--storage-class=a -o yaml", "none of table, json"},
		{"--storage-class=a --size=large", "no size such as 1Gi"},
		{"--storage-class=a --size=1Mi", "not between 256Mi and 1Ti"},
		{"--storage-class=a --seconds=0", "less than 1"},
		{"--storage-class=a --rounds=0", "less than 1"},
		{"--storage-class=a --rounds=50 --seconds=1", "a turn of 20ms"},
		{"--storage-class=a --timeout=0s", "no time to wait"},
		{"--storage-class=a extra", "extra"},
	} {
		exit, _, errOut := run(t, http.StatusOK, "{}", append([]string{"bench"}, strings.Fields(tc.args)...)...)
		if exit != failure.Usage || !strings.Contains(errOut, tc.says) {
			t.Errorf("%s: exit %d, %q", tc.args, exit, errOut)
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
