// Package page finds the commands that a page of docs/ tells its readers to run, so that tests run them as they stand there.
package page

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// Page is the text of a page, or of a part of one.
type Page string

// Read reads a page.
func Read(t testing.TB, path string) Page {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return Page(text)
}

// Section is what is below a heading, until the next heading of any level.
func (p Page) Section(t testing.TB, heading string) Page {
	t.Helper()
	var section strings.Builder
	found := false
	for line := range strings.Lines(string(p)) {
		if name, isHeading := strings.CutPrefix(strings.TrimLeft(line, "#"), " "); isHeading && strings.HasPrefix(line, "#") {
			if found {
				break
			}
			found = strings.TrimSpace(name) == heading
			continue
		}
		if found {
			section.WriteString(line)
		}
	}
	if section.Len() == 0 {
		t.Fatalf("the page has no section %q", heading)
	}
	return Page(strings.Trim(section.String(), "\n"))
}

// Step is what is indented below a step of a numbered list.
func (p Page) Step(t testing.TB, number int) string {
	t.Helper()
	_, text, found := strings.Cut("\n"+string(p), "\n"+strconv.Itoa(number)+". ")
	text, _, _ = strings.Cut(text, "\n"+strconv.Itoa(number+1)+". ")
	var step strings.Builder
	for line := range strings.Lines(text) {
		if command, ok := strings.CutPrefix(line, "       "); ok {
			step.WriteString(command)
		}
	}
	if !found || step.Len() == 0 {
		t.Fatalf("the page has nothing indented in a step %d", number)
	}
	return step.String()
}

// Block is the indented block that has some words.
func (p Page) Block(t testing.TB, words string) string {
	t.Helper()
	for part := range strings.SplitSeq(string(p), "\n\n") {
		if strings.Contains(part, words) && strings.HasPrefix(part, "    ") {
			return strings.TrimPrefix(strings.ReplaceAll(part, "\n    ", "\n"), "    ")
		}
	}
	t.Fatalf("the page has no block with %q", words)
	return ""
}

// Quoted is the command between backquotes that begins with some words.
func (p Page) Quoted(t testing.TB, begins string) string {
	t.Helper()
	found := regexp.MustCompile("`(" + regexp.QuoteMeta(begins) + "[^`]*)`").FindStringSubmatch(string(p))
	if found == nil {
		t.Fatalf("the page has no command %q", begins)
	}
	return found[1]
}

// Line is the line that begins with some words, without the space around it.
func (p Page) Line(t testing.TB, begins string) string {
	t.Helper()
	for line := range strings.Lines(string(p)) {
		if strings.HasPrefix(line, begins) {
			return strings.TrimSpace(line)
		}
	}
	t.Fatalf("the page has no line %q", begins)
	return ""
}

var (
	heredoc = regexp.MustCompile(`<<-?'?"?(\w+)`)
	loop    = regexp.MustCompile(`(^|[|;] *)(for|while) `)
)

// Commands splits a block into its commands. A command with lines that continue it, with input below it, or with a loop, is one.
func Commands(block string) []string {
	var all []string
	var command strings.Builder
	var end string // the line that ends the command, if it is not its own
	for line := range strings.Lines(block) {
		line = strings.TrimSuffix(line, "\n")
		command.WriteString(line)
		bare := strings.TrimSpace(line)
		switch here := heredoc.FindStringSubmatch(line); {
		case end != "" && bare != end, bare == "" && command.Len() == 0:
		case end == "" && here != nil:
			end = here[1]
		case end == "" && loop.MatchString(bare) && !strings.HasSuffix(bare, "done"):
			end = "done"
		case end == "" && (strings.HasSuffix(bare, `\`) || strings.HasSuffix(bare, "|")):
		default:
			all = append(all, command.String())
			command.Reset()
			end = ""
			continue
		}
		if command.Len() > 0 {
			command.WriteByte('\n')
		}
	}
	return all
}
