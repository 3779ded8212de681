package main

import (
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const pictures = "../../docs/pictures"

func TestPicturesAreOfTheirText(t *testing.T) {
	sources, err := filepath.Glob(filepath.Join(pictures, "*.txt"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("no pictures: %v", err)
	}
	for _, source := range sources {
		want, err := draw(source)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := os.ReadFile(target(source)); err != nil || string(got) != string(want) {
			t.Errorf("%s is not of %s (%v); `make generate` draws it anew", target(source), source, err)
		}
		isXML(t, string(want))
	}
}

func isXML(t *testing.T, text string) {
	t.Helper()
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		if _, err := d.Token(); errors.Is(err, io.EOF) {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

const head = "size 40 40\ntitle A <b>\ndescription one\ndescription two\nbox a 1 1 10 3 A & B\nbox b 20 1 10 3 B\nbox c 1 20 10 3 C\n"

func TestAPictureHasWhatItsTextSays(t *testing.T) {
	source := filepath.Join(t.TempDir(), "p.txt")
	text := "# words\n\n" + head + "arrow a > b to b\nwrite a > c at=3 down\nlater b > a2\n"
	text = strings.Replace(text, "later b > a2\n", "box a2 20 30 10 3\nlater b > a2\nnote 1 39 the end\n", 1)
	if err := os.WriteFile(source, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	svg, err := draw(source)
	if err != nil {
		t.Fatal(err)
	}
	isXML(t, string(svg))
	for _, part := range []string{
		`viewBox="0 0 400 400"`, "A &lt;b&gt;</title>", "one two</desc>", ">A &amp; B<", ">to b<", ">down<", ">the end<", "prefers-color-scheme: dark",
		`<line class="arrow" x1="110" y1="25" x2="200" y2="25"`, `<line class="write" x1="30" y1="40" x2="30" y2="200"`,
		`<line class="later" x1="250" y1="40" x2="250" y2="300"`,
	} {
		if !strings.Contains(string(svg), part) {
			t.Errorf("no %s in\n%s", part, svg)
		}
	}
}

func TestWhatCannotBeDrawnIsRefusedWithItsLine(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   "needs size",
		"size 40 x":                          `line 1: "x" is no number`,
		head + "circle a 1 1":                `line 8: unknown word "circle"`,
		head + "box a 1 10 3 3":              "two shapes a",
		head + "box d 35 1 10 3 D":           "not within the picture",
		head + "box d 1 10 6 3 a long text":  "too narrow",
		head + "arrow a > d":                 "or no shape d",
		head + "arrow a b":                   "FROM > TO",
		head + "arrow c > a":                 "neither above a nor to its left",
		head + "arrow a > c at=15":           "at=15 is not above and below both",
		head + "arrow a > b a text too long": "longer than the arrow",
	} {
		if _, err := parse(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}
