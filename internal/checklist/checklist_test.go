package checklist

import (
	"context"
	"encoding/json"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

func TestACheckThatDoesNotEndDoesNotStopTheOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		forever := make(chan struct{})
		defer close(forever)
		results := Run(t.Context(), []Check{
			{Name: "stuck", Timeout: time.Second, Run: func(context.Context) []Result { <-forever; return nil }},
			{Name: "late", Timeout: time.Second, Run: func(ctx context.Context) []Result {
				<-ctx.Done()
				return []Result{Badf(Failed, "wait", "it gave up: %v", ctx.Err())}
			}},
			One("well", func(context.Context) Result { return Goodf("all of it") }),
			{Name: "several", Run: func(context.Context) []Result { return []Result{Goodf("x").Of("a"), Badf(Warning, "do", "y").Of("b")} }},
		})
		var names []string
		for _, r := range results {
			names = append(names, r.Check+" "+string(r.State))
		}
		if got := strings.Join(names, ", "); got != "stuck failed, late failed, well ok, a ok, b warning" {
			t.Errorf("%s", got)
		}
		if !strings.Contains(results[0].Found, "within 1s") || !strings.Contains(results[1].Found, "gave up") {
			t.Errorf("%+v", results[:2])
		}
	})
}

func TestAnInterruptLeavesTheRestUnknown(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	results := Run(ctx, []Check{
		One("first", func(context.Context) Result { stop(); return Goodf("done") }),
		One("second", func(context.Context) Result { t.Error("it was made all the same"); return Goodf("") }),
	})
	if len(results) != 2 || results[0].State != OK || results[1].State != Unknown || ExitCode(results) != 0 {
		t.Errorf("%+v", results)
	}
}

func TestOnlyFailuresMakeTheExitCode(t *testing.T) {
	for state, want := range map[State]int{OK: 0, Warning: 0, Unknown: 0, Failed: 1} {
		if got := ExitCode([]Result{Goodf("x"), Badf(state, "", "y"), Goodf("z")}); got != want {
			t.Errorf("%s: exit code %d", state, got)
		}
	}
}

func TestTheTableFitsAndHasARemedyBelowEachFinding(t *testing.T) {
	long := strings.Repeat("word ", 30)
	var out strings.Builder
	err := Print(&out, "table", 80, []Result{
		{Check: "module rbd", State: Failed, Found: "not there\nat all", Remedy: "install it: " + long},
		{Check: "ports", State: OK, Found: long},
		{Check: "StorageClass with-a-name-that-is-long", State: Warning, Found: "it has no pool", Remedy: "name one"},
		{Check: "pool", State: Unknown, Found: "not checked", Remedy: "name one with --pool"},
	})
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(out.String()) {
		if n := len([]rune(strings.TrimRight(line, "\n"))); n > 80 {
			t.Errorf("%d characters: %q", n, line)
		}
	}
	for _, want := range []string{
		"STATE    CHECK       FOUND\nfailed   module rbd  not there at all\n         -> install it: word",
		"\n            word word", "\nok       ports       word",
		"warning  StorageClass with-a-name-that-is-long\n                     it has no pool\n         -> name one\n",
		"\n4 checks: 1 ok, 1 warning, 1 failed, 1 unknown.\n",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("it does not have %q:\n%s", want, out.String())
		}
	}
}

func TestJSONHasAllAndTheCounts(t *testing.T) {
	var out strings.Builder
	if err := Print(&out, "json", 80, []Result{Goodf("<x>").Of("a"), Badf(Failed, "do", "y").Of("b"), Badf(Warning, "do", "z").Of("c")}); err != nil {
		t.Fatal(err)
	}
	var got struct {
		Checks   []Result `json:"checks"`
		Failed   int      `json:"failed"`
		Warnings int      `json:"warnings"`
		Unknown  int      `json:"unknown"`
	}
	if err := json.Unmarshal([]byte(out.String()), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Checks) != 3 || got.Failed != 1 || got.Warnings != 1 || got.Unknown != 0 || got.Checks[1] != (Result{"b", Failed, "y", "do"}) ||
		!strings.Contains(out.String(), "<x>") {
		t.Errorf("%s", out.String())
	}
	if err := Print(&out, "json", 80, nil); err != nil || !strings.Contains(out.String(), `"checks": []`) {
		t.Errorf("%v, %s", err, out.String())
	}
}
