package main

import (
	"strings"
	"testing"
)

func TestPage(t *testing.T) {
	cases := map[string]struct{ file, source, want string }{
		"a message": {"a.go", `package a

var _ = "the host does not answer"`, "\n\n- the host does not answer"},
		"a value in it is one word of code": {"a.go", "package a\nvar _ = \"host \" + name(\"of a host\") + \" does not answer to %s\"",
			"\n- host `x` does not answer to `x`"},
		"a sum stands where it begins": {"a.go", "package a\nvar _ = \"the host \" +\n\t\"does not answer\"", "\n- the host does not answer\n"},
		"two on a line are two sentences": {"a.go", "package a\nvar _ = f(\"the host is silent\", \"ask the host again\")",
			"\n- the host is silent. ask the host again"},
		"paragraphs are sentences, and a broken line is none": {"a.go", "package a\nvar _ = \"one line\\nand the next.\\n\\nA paragraph\"",
			"\n- one line and the next. A paragraph"},
		"a command's names are code": {"a.go", "package a\nvar _ = \"map it with rbd map --pool=fast <image>\"", "\n- map it with `x` map `x` `x`"},
		"arguments and imports are no prose": {"a.go", "package a\nimport \"a b c\"\nvar _ = f(\"lvs\", \"--noheadings\")\ntype T struct { A int `this is a tag` }",
			"\n\n\n"},
		"comments of the API": {"api/v1alpha1/a.go", "package a\n\n// Lost is the WriteThrough host.\n// +optional\nvar Lost int",
			"\n\nLost is the `x` host.\n\n"},
		"and of nothing else": {"internal/a.go", "package a\n\n// Lost is the host.\nvar Lost int", "\n\n\n"},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			got, err := pageOf(c.file, []byte(c.source))
			if err != nil || got != c.want && got != c.want+"\n" {
				t.Errorf("got %q, %v; want %q", got, err, c.want)
			}
		})
	}
	if page, err := pageOf("a.go", []byte("package")); err == nil || !strings.Contains(err.Error(), "a.go") {
		t.Errorf("a file that is no Go: %q, %v", page, err)
	}
}
