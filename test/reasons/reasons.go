// Package reasons finds the reasons of conditions and Events in the driver's code.
package reasons

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// OfConditions returns all reasons of conditions in the code of a checkout, and where each is.
func OfConditions(t *testing.T, checkout string) map[string]string {
	t.Helper()
	found := map[string]string{}
	visit(t, checkout, func(path string, file *ast.File) { collect(file, func(reason string) { found[reason] = path }) })
	return found
}

func visit(t *testing.T, checkout string, look func(path string, file *ast.File)) {
	t.Helper()
	for _, folder := range []string{"api/v1alpha1", "internal/controller", "internal/node", "internal/authority", "internal/redundancy"} {
		err := filepath.WalkDir(filepath.Join(checkout, folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			look(path, file)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
}

// types are those whose values are reasons of conditions.
var types = []string{"Reason", "Action", "DiscardPhase"}

// collect finds constants of these types or with such a name, what is assigned to something called
// reason, what stands in a condition, and what is passed to the functions that write one.
func collect(file *ast.File, add func(reason string)) {
	take := func(e ast.Expr) {
		if s, ok := reason(e); ok {
			add(s)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			kind, _ := n.Type.(*ast.Ident)
			for i, value := range n.Values {
				if called(n.Names[i]) || kind != nil && slices.Contains(types, kind.Name) {
					take(value)
				}
			}
		case *ast.AssignStmt:
			for i, value := range n.Rhs {
				if len(n.Lhs) == len(n.Rhs) && called(n.Lhs[i]) {
					take(value)
				}
			}
		case *ast.CompositeLit:
			condition(n, take)
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "condition" {
				for _, arg := range n.Args {
					take(arg)
				}
			}
		}
		return true
	})
}

// condition takes the reason of a metav1.Condition, and of the table of good ones in csi-node.
func condition(n *ast.CompositeLit, take func(ast.Expr)) {
	if kind, ok := n.Type.(*ast.SelectorExpr); ok && kind.Sel.Name == "Condition" {
		for _, field := range n.Elts {
			if pair, ok := field.(*ast.KeyValueExpr); ok && called(pair.Key) {
				take(pair.Value)
			}
		}
	}
	if table, ok := n.Type.(*ast.MapType); ok {
		row, ok := table.Value.(*ast.StructType)
		if !ok || len(row.Fields.List) == 0 || len(row.Fields.List[0].Names) == 0 || !called(row.Fields.List[0].Names[0]) {
			return
		}
		for _, pair := range n.Elts {
			if pair, ok := pair.(*ast.KeyValueExpr); ok {
				if value, ok := pair.Value.(*ast.CompositeLit); ok && len(value.Elts) > 0 {
					take(value.Elts[0])
				}
			}
		}
	}
}

// called reports whether an expression has the name of a reason.
func called(e ast.Expr) bool {
	name := ""
	switch e := e.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
	}
	return strings.HasPrefix(name, "reason") || strings.HasPrefix(name, "Reason")
}

var camelCase = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)

func reason(e ast.Expr) (string, bool) {
	text, ok := e.(*ast.BasicLit)
	if !ok || text.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(text.Value)
	return s, err == nil && camelCase.MatchString(s)
}
