// messages writes what the programs say as pages that the prose linter reads (hack/prose.sh):
//
//	messages DIR FILE.go…
//
// For each file it writes DIR/FILE.go.md. A text stands on the line on which it begins in the Go file, so that a finding names that line.
// Texts are the string literals of three words or more: help, errors, Events, conditions and log lines. In the API's types they are the
// comments, from which the CRDs' descriptions are made.
package main

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
)

func main() {
	if err := run(os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "messages:", err)
		os.Exit(1)
	}
}

func run(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("name a directory for the pages, and Go files, not %q", args)
	}
	for _, name := range args[1:] {
		source, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		page, err := pageOf(name, source)
		if err != nil {
			return err
		}
		to := filepath.Join(args[0], name+".md")
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(to, []byte(page), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pageOf is the page of one Go file. Of a file in api/v1alpha1 it has the comments, too.
func pageOf(name string, source []byte) (string, error) {
	files := token.NewFileSet()
	file, err := parser.ParseFile(files, name, source, parser.ParseComments|parser.SkipObjectResolution)
	if err != nil {
		return "", fmt.Errorf("read the Go file: %w", err)
	}
	p := page{files: files, lines: make([]string, files.File(file.Pos()).LineCount()+1)}
	ast.Inspect(file, p.visit)
	if strings.HasPrefix(filepath.ToSlash(name), "api/v1alpha1/") {
		p.comments(file)
	}
	return strings.Join(p.lines, "\n"), nil
}

type page struct {
	files *token.FileSet
	lines []string
}

// visit puts the strings below a node on the page.
func (p *page) visit(n ast.Node) bool {
	switch n := n.(type) {
	case *ast.ImportSpec:
		return false
	case *ast.Field:
		n.Tag = nil
	case *ast.BinaryExpr:
		if n.Op == token.ADD {
			p.put(n.Pos(), p.text(n))
			return false
		}
	case *ast.BasicLit:
		p.put(n.Pos(), p.text(n))
	}
	return true
}

// text is what a sum of strings says. A value in it is code, for the linter as in a page: one word that it does not judge.
func (p *page) text(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.BinaryExpr:
		if e.Op == token.ADD {
			return p.text(e.X) + p.text(e.Y)
		}
	case *ast.BasicLit:
		if e.Kind != token.STRING {
			return ""
		}
		s, _ := strconv.Unquote(e.Value) // the parser has checked it
		return s
	}
	ast.Inspect(e, p.visit)
	return "%s"
}

var (
	// prose is a text of three words or more. Shorter ones are names, keys and arguments of programs.
	prose     = regexp.MustCompile(`(?:[A-Za-z]{2,}[,.:;]? +){2}[A-Za-z]{2,}`)
	paragraph = regexp.MustCompile(`[.:]?\n(?:\n| +)\s*`)
	name      = regexp.MustCompile(`\b[A-Z][a-z]+[A-Z]\w*`) // of a type or a field
	// code is what a page would have in backquotes: values, options, objects, and names in lower case of programs and of what they take.
	code = regexp.MustCompile("`[^`]*`" + `|"[^"]*"|'[^']*'\B|%[-+#0-9.\[\]*]*[a-zA-Z]|<[^>]*>|\S*[_*=/{}|]\S*|--[a-z]\S*` +
		`|\b(?:rbd|ceph|drbd|pvc|nodegroups?|cachevolumes?|writeback|writethrough)\b(?:-[0-9a-z]+)?`)
)

// put adds a text to the page, where it begins in the Go file, if it is prose.
func (p *page) put(at token.Pos, text string) {
	if !prose.MatchString(text) {
		return
	}
	text = paragraph.ReplaceAllString(strings.TrimSpace(text), ". ")
	text = strings.ReplaceAll(code.ReplaceAllString(text, "`x`"), "\n", " ")
	line := &p.lines[p.files.Position(at).Line-1]
	if *line == "" {
		*line = "- " + text
		return
	}
	*line = strings.TrimSuffix(*line, ".") + ". " + text
}

// comments puts the doc comments on the page, which controller-gen copies into the CRDs.
func (p *page) comments(file *ast.File) {
	for _, group := range file.Comments {
		for _, c := range group.List {
			if text := strings.TrimPrefix(strings.TrimPrefix(c.Text, "//"), " "); !strings.HasPrefix(text, "+") {
				p.lines[p.files.Position(c.Pos()).Line-1] = name.ReplaceAllString(text, "`x`")
			}
		}
	}
}
