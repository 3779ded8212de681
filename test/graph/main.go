// Command graph prints how the folders of this module import each other, and exits 1 if an import
// goes the wrong way:
//
//	go run ./test/graph          this checkout
//	go run ./test/graph DIR      another one, for instance of an older commit
//
// The first folder of an import path is the wing. Imports may only go down: test → cmd, internal →
// api (see wings.go).
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() {
	flag.Usage = func() {
		fmt.Fprintln(os.Stderr, "graph [DIR]: print the imports between the module's folders; fail if one goes the wrong way")
	}
	flag.Parse()
	dir := "."
	if flag.NArg() > 0 {
		dir = flag.Arg(0)
	}
	imports, err := list(context.Background(), dir)
	if err != nil {
		fmt.Fprintln(os.Stderr, "graph:", err)
		os.Exit(2)
	}
	if !write(os.Stdout, imports) {
		os.Exit(1)
	}
}

// write prints the report and returns whether every import goes the right way.
func write(out io.Writer, imports []imported) bool {
	fmt.Fprintln(out, "arrows between wings (imports in tests in brackets)")
	for _, a := range arrowsIn(imports, "") {
		fmt.Fprintf(out, "  %-8s → %-8s %4d  (%d)\n", a.from, a.to, a.imports, a.inTests)
	}

	fmt.Fprintln(out, "folders inside (without tests)")
	var circles [][]string
	for _, folder := range foldersOf(imports) {
		arrows := productionOnly(arrowsIn(imports, folder))
		found := circlesOf(arrows)
		circles = append(circles, found...)
		if len(arrows) > 0 {
			fmt.Fprintf(out, "  %-28s %2d folders, %d floors, %2d arrows\n",
				orModule(folder), len(nodesOf(arrows)), floorsOf(arrows), len(arrows))
		}
	}

	back := wrongWay(imports)
	fmt.Fprintf(out, "arrows back: %d\n", len(back))
	for _, i := range back {
		fmt.Fprintf(out, "  %s\n", i)
	}
	fmt.Fprintf(out, "circles among folders: %d\n", len(circles))
	for _, circle := range circles {
		fmt.Fprintf(out, "  %s\n", strings.Join(circle, " ↔ "))
	}
	between := parentsBetween(imports)
	fmt.Fprintf(out, "packages that stand above and below their own sub-folders (allowed, hard to follow): %d\n", len(between))
	for _, p := range between {
		fmt.Fprintf(out, "  %s imports %s; imported by %s\n", p.name, strings.Join(p.below, ", "), strings.Join(p.above, ", "))
	}
	return len(back) == 0 && len(circles) == 0
}

func orModule(folder string) string {
	if folder == "" {
		return "(the module)"
	}
	return folder
}
