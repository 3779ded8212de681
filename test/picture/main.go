// Command picture draws the pictures of docs/pictures from text: NAME.txt as NAME.svg.
//
//	go run ./test/picture [DIR]
//
// The pictures follow the reader's light or dark colour scheme.
package main

import (
	"bytes"
	_ "embed"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/template"
)

func main() {
	flag.Usage = func() { fmt.Fprintln(os.Stderr, "picture [DIR]: draw each DIR/NAME.txt (docs/pictures) as NAME.svg") }
	flag.Parse()
	dir := "docs/pictures"
	if flag.NArg() > 0 {
		dir = flag.Arg(0)
	}
	if err := drawAll(dir); err != nil {
		fmt.Fprintln(os.Stderr, "picture:", err)
		os.Exit(1)
	}
}

func drawAll(dir string) error {
	sources, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err != nil {
		return err
	}
	if len(sources) == 0 {
		return errors.New("no picture in " + dir)
	}
	for _, source := range sources {
		svg, err := draw(source)
		if err == nil {
			err = os.WriteFile(target(source), svg, 0o644)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func target(source string) string { return strings.TrimSuffix(source, ".txt") + ".svg" }

//go:embed picture.svg.tmpl
var layout string

// draw returns the SVG of a picture.
func draw(source string) ([]byte, error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return nil, err
	}
	p, err := parse(string(text))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", source, err)
	}
	var svg bytes.Buffer
	t := template.New("svg").Funcs(template.FuncMap{
		"px":    func(grid float64) string { return fmt.Sprintf("%g", grid*10) },
		"add":   func(a, b float64) float64 { return a + b },
		"kinds": func() []string { return []string{"arrow", "write", "later"} },
		"mid":   func(from, size float64) float64 { return from + size/2 },
	})
	if t, err = t.Parse(layout); err != nil {
		return nil, err
	}
	if err := t.Execute(&svg, p); err != nil {
		return nil, err
	}
	return svg.Bytes(), nil
}
