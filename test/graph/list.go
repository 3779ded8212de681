package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
)

// imported is one import of one package of the module by another. Both are paths below the module's
// root.
type imported struct {
	from, to string
	inTest   bool // only by files that end in _test.go
}

func (i imported) String() string {
	if i.inTest {
		return i.from + " (test) → " + i.to
	}
	return i.from + " → " + i.to
}

// list asks the go command for all packages of the checkout in dir. Build tags add files and take
// none away; which of Ceph's releases is installed makes no difference to our imports.
func list(ctx context.Context, dir string) ([]imported, error) {
	cmd := exec.CommandContext(ctx, "go", "list", "-tags", "e2e lab", "-json=ImportPath,Imports,TestImports,XTestImports,Module", "./...")
	cmd.Dir = dir
	out, err := cmd.Output()
	if err != nil {
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			err = fmt.Errorf("%w: %s", err, exit.Stderr)
		}
		return nil, fmt.Errorf("go list in %s: %w", dir, err)
	}
	return parse(string(out))
}

// parse reads the JSON objects that go list prints one after the other.
func parse(out string) ([]imported, error) {
	var all []imported
	for decoder := json.NewDecoder(strings.NewReader(out)); ; {
		var p struct {
			ImportPath   string   `json:"ImportPath"`
			Imports      []string `json:"Imports"`
			TestImports  []string `json:"TestImports"`
			XTestImports []string `json:"XTestImports"`
			Module       struct {
				Path string `json:"Path"`
			} `json:"Module"`
		}
		if err := decoder.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, fmt.Errorf("read go list's output: %w", err)
		}
		root := p.Module.Path + "/"
		add := func(paths []string, inTest bool) {
			for _, path := range paths {
				to, ours := strings.CutPrefix(path, root)
				from := strings.TrimPrefix(p.ImportPath, root)
				if ours && from != to && !slices.Contains(all, imported{from, to, false}) {
					all = append(all, imported{from, to, inTest})
				}
			}
		}
		add(p.Imports, false)
		add(p.TestImports, true)
		add(p.XTestImports, true)
	}
	slices.SortFunc(all, func(a, b imported) int { return strings.Compare(a.String(), b.String()) })
	return slices.Compact(all), nil
}
