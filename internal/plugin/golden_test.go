package plugin

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/plugin/plugintest"
	"github.com/escache/escache-csi/internal/plugin/state"
)

// shown is what status shows of a state.
func shown(t *testing.T, s *state.State, f statusFlags) string {
	t.Helper()
	v, err := newView(s, f, plugintest.Noon)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := v.print(&out, f.output, 0); err != nil {
		t.Fatal(err)
	}
	return out.String()
}

func TestStatusOutputs(t *testing.T) {
	for _, output := range []string{"table", "wide", "name", "json", "yaml"} {
		plugintest.Golden(t, "status."+output, shown(t, plugintest.Sample(), statusFlags{output: output}))
	}
	plugintest.Golden(t, "status.empty", shown(t, &state.State{}, statusFlags{}))
}

func TestStatusFitsEightyColumns(t *testing.T) {
	v, err := newView(plugintest.Sample(), statusFlags{}, plugintest.Noon)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if err := v.print(&out, "", 80); err != nil {
		t.Fatal(err)
	}
	for line := range strings.SplitSeq(out.String(), "\n") {
		if n := len([]rune(line)); n > 80 {
			t.Errorf("%d characters: %s", n, line)
		}
	}
}

func TestProgressOnATerminalAndElsewhere(t *testing.T) {
	f := &plugintest.Sample().Flushes[0]
	plugintest.Golden(t, "progress.bars", strings.Join(bars(f, maxBars), "\n")+"\n")
	c, out := plugintest.Output()
	p := newProgress(c)
	p.show(f)
	p.show(f) // no change, no line
	f.Status.Phase = v1alpha1.FlushDrained
	p.show(f)
	plugintest.Golden(t, "progress.lines", out.String())
	for range 100 {
		f.Status.Volumes = append(f.Status.Volumes, v1alpha1.FlushedVolume{Name: "pvc-x", Phase: v1alpha1.FlushPending})
	}
	for most, want := range map[int]int{maxBars: maxBars + 2, 3: 5, -2: 2} {
		if n := len(bars(f, most)); n != want {
			t.Errorf("%d lines where %d bars fit, want %d", n, most, want)
		}
	}
}

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

func TestSecretsAreCut(t *testing.T) {
	in := `key = AQBvXy1nAAAAABAAo2T3m5Q1YB0T7l0bW7JtGg== token: abcdef0123 "password":"hunter22" eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJr.c2ln volume pvc-1 ok`
	out := string(redactSecrets([]byte(in)))
	for _, secret := range []string{"AQBv", "abcdef", "hunter22", "eyJ"} {
		if strings.Contains(out, secret) {
			t.Errorf("%s is left in %s", secret, out)
		}
	}
	if !strings.Contains(out, "volume pvc-1 ok") {
		t.Errorf("too much is cut: %s", out)
	}
}
