package reasons

import (
	"go/ast"
	"go/token"
	"strings"
	"testing"
)

// OfEvents returns the reasons of Events in the code of a checkout that no condition has, and where each is. One that
// is made of two parts is returned for each value that the second part can have.
func OfEvents(t *testing.T, checkout string) map[string]string {
	t.Helper()
	f := finder{found: map[string]string{}, constants: map[string]string{}, prefixes: map[string]string{}}
	visit(t, checkout, func(path string, file *ast.File) {
		ast.Inspect(file, func(n ast.Node) bool {
			f.look(path, n)
			return true
		})
	})
	for _, name := range f.named {
		if word := f.constants[name]; word != "" {
			f.found[word] = "api/v1alpha1"
		}
	}
	for prefix, path := range f.prefixes {
		for _, action := range actions(t, checkout, f.constants) {
			f.found[prefix+action] = path
		}
	}
	return f.found
}

type finder struct {
	found     map[string]string // reasons, and where each is
	constants map[string]string
	named     []string          // constants that are reasons
	prefixes  map[string]string // first parts of reasons, and where each is
}

func (f *finder) look(path string, n ast.Node) {
	switch n := n.(type) {
	case *ast.ValueSpec:
		for i, value := range n.Values {
			if word, ok := reason(value); ok {
				f.constants[n.Names[i].Name] = word
			}
		}
	case *ast.CallExpr:
		eventf(n, func(e ast.Expr) { f.take(path, e) })
	case *ast.CompositeLit:
		if kind, ok := n.Type.(*ast.SelectorExpr); !ok || kind.Sel.Name != "Event" {
			return
		}
		for _, field := range n.Elts {
			if pair, ok := field.(*ast.KeyValueExpr); ok && called(pair.Key) {
				f.take(path, pair.Value)
			}
		}
	}
}

// take notes what an expression says of an Event's reason. A variable says nothing: it has the reason of a condition.
func (f *finder) take(path string, e ast.Expr) {
	switch e := e.(type) {
	case *ast.BasicLit:
		if word, ok := reason(e); ok {
			f.found[word] = path
		}
	case *ast.SelectorExpr:
		f.named = append(f.named, e.Sel.Name)
	case *ast.BinaryExpr:
		if word, ok := reason(e.X); ok && e.Op == token.ADD {
			f.prefixes[word] = path
		}
	}
}

// eventf takes the reason of a call of Eventf of client-go's events: object, related, type, reason, action, note.
func eventf(n *ast.CallExpr, take func(ast.Expr)) {
	const reasonAt, least = 3, 6
	if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "Eventf" && len(n.Args) >= least {
		take(n.Args[reasonAt])
	}
}

// actions are the words of a repair's steps. constants are those of the whole code.
func actions(t *testing.T, checkout string, constants map[string]string) []string {
	t.Helper()
	var all []string
	visit(t, checkout, func(path string, file *ast.File) {
		if !strings.Contains(path, "controller/repair/") {
			return
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.ValueSpec:
				all = append(all, ofType("Action", n, constants)...)
			case *ast.FuncDecl:
				if n.Name.Name == "reasonOf" {
					all = append(all, within(n)...)
				}
			}
			return true
		})
	})
	return all
}

// ofType returns the words of constants of a type, also of those that are other constants.
func ofType(name string, spec *ast.ValueSpec, constants map[string]string) []string {
	if kind, ok := spec.Type.(*ast.Ident); !ok || kind.Name != name {
		return nil
	}
	var all []string
	for _, value := range spec.Values {
		if word, ok := reason(value); ok {
			all = append(all, word)
		} else if named, ok := value.(*ast.SelectorExpr); ok {
			all = append(all, constants[named.Sel.Name])
		}
	}
	return all
}

// within returns the reasons that a function names.
func within(f *ast.FuncDecl) []string {
	var all []string
	ast.Inspect(f, func(n ast.Node) bool {
		if e, ok := n.(ast.Expr); ok {
			if word, ok := reason(e); ok {
				all = append(all, word)
			}
		}
		return true
	})
	return all
}
