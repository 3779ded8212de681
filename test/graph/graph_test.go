package main

import (
	"reflect"
	"strings"
	"testing"
)

func TestThisModuleHasNoArrowBackAndNoCircle(t *testing.T) {
	imports, err := list(t.Context(), "../..")
	if err != nil {
		t.Fatal(err)
	}
	if len(imports) < 100 {
		t.Fatalf("only %d imports were found in the module", len(imports))
	}
	var report strings.Builder
	if !write(&report, imports) {
		t.Error(report.String())
	}
}

func TestParseKeepsOurOwnImportsAndMarksThoseOfTests(t *testing.T) {
	got, err := parse(`
		{"ImportPath": "m/b", "Imports": ["fmt", "m/a"], "TestImports": ["m/a", "m/c"], "XTestImports": ["m/b", "m/c"], "Module": {"Path": "m"}}
		{"ImportPath": "m/a", "Module": {"Path": "m"}}`)
	if err != nil {
		t.Fatal(err)
	}
	want := []imported{{"b", "c", true}, {"b", "a", false}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("imports %v, want %v", got, want)
	}
}

func TestWrongWay(t *testing.T) {
	for _, test := range []struct {
		i     imported
		wrong bool
	}{
		{imported{"api/x", "internal/y", false}, true},
		{imported{"api/x", "test/y", true}, true},
		{imported{"internal/x", "api/y", false}, false},
		{imported{"internal/x", "cmd/y", true}, true},
		{imported{"internal/x", "test/y", false}, true},
		{imported{"internal/x", "test/y", true}, false},
		{imported{"cmd/x", "test/y", true}, false},
		{imported{"cmd/x", "internal/y", false}, false},
		{imported{"test/x", "cmd/y", false}, false},
	} {
		if got := len(wrongWay([]imported{test.i})) > 0; got != test.wrong {
			t.Errorf("%v: wrong way is %t", test.i, got)
		}
	}
}

func TestACircleAmongFoldersFailsTheReport(t *testing.T) {
	// No packages import each other here, as Go forbids, but their folders do.
	imports := []imported{
		{"internal/a/one", "internal/b", false},
		{"internal/b", "internal/c", false},
		{"internal/c", "internal/a/two", false},
		{"internal/d", "internal/a/one", false},
	}
	arrows := arrowsIn(imports, "internal")
	if got, want := circlesOf(arrows), [][]string{{"internal/a", "internal/b", "internal/c"}}; !reflect.DeepEqual(got, want) {
		t.Errorf("circles %v, want %v", got, want)
	}
	if got := floorsOf(arrows); got != 2 {
		t.Errorf("%d floors, want 2: d above the circle", got)
	}
	var report strings.Builder
	if write(&report, imports) {
		t.Errorf("a circle was accepted:\n%s", report.String())
	}
}

func TestParentBetweenItsSubFolders(t *testing.T) {
	got := parentsBetween([]imported{
		{"internal/a", "internal/a/low", false},
		{"internal/a/high", "internal/a", false},
		{"internal/b", "internal/b/low", false},
		{"internal/b/high", "internal/b", true},
	})
	if want := []parentBetween{{"internal/a", []string{"high"}, []string{"low"}}}; !reflect.DeepEqual(got, want) {
		t.Errorf("parents %v, want %v", got, want)
	}
}
