package checklist

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/escache/escache-csi/internal/wordwrap"
)

// Outputs are the formats of Print.
var Outputs = []string{"table", "json"}

const (
	stateWidth = 9
	// longestName is how many characters of a name fit into its column. What is found beside a longer one
	// begins on a line of its own.
	longestName = 28
)

// Print writes the results as a table of at most width columns (0: without a limit), or as one JSON
// object.
func Print(w io.Writer, output string, width int, results []Result) error {
	if output == "json" {
		return printJSON(w, results)
	}
	name := len("CHECK")
	for _, r := range results {
		if len(r.Check) <= longestName {
			name = max(name, len(r.Check))
		}
	}
	name += 2
	var out strings.Builder
	fmt.Fprintf(&out, "%-*s%-*s%s\n", stateWidth, "STATE", name, "CHECK", "FOUND")
	for _, r := range results {
		out.WriteString(r.row(name, width))
	}
	out.WriteString("\n" + Summary(results) + "\n")
	_, err := io.WriteString(w, out.String())
	return err
}

// row is the lines of one result in the table.
func (r Result) row(name, width int) string {
	indent := strings.Repeat(" ", stateWidth+name)
	text := wordwrap.Line(indent+oneLine(r.Found), indent, width)
	head := fmt.Sprintf("%-*s%-*s", stateWidth, r.State, name, r.Check)
	if len(r.Check) > longestName {
		text = head + "\n" + text
	} else {
		text = head + text[len(indent):]
	}
	if r.Remedy != "" {
		text += wordwrap.Line(strings.Repeat(" ", stateWidth)+"-> "+oneLine(r.Remedy), strings.Repeat(" ", stateWidth+3), width)
	}
	return text
}

// oneLine takes control characters out of a text: what is found may come from anywhere.
func oneLine(text string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return ' '
		}
		return r
	}, text)
}

// Summary says in one sentence how the checks have ended.
func Summary(results []Result) string {
	var text strings.Builder
	fmt.Fprintf(&text, "%d checks: %d ok", len(results), Count(results, OK))
	for _, s := range []State{Warning, Failed, Unknown} {
		n := Count(results, s)
		switch {
		case n == 0:
		case s == Warning && n != 1:
			fmt.Fprintf(&text, ", %d warnings", n)
		default:
			fmt.Fprintf(&text, ", %d %s", n, s)
		}
	}
	text.WriteString(".")
	return text.String()
}

func printJSON(w io.Writer, results []Result) error {
	if results == nil {
		results = []Result{}
	}
	encoder := json.NewEncoder(w)
	encoder.SetIndent("", "  ")
	encoder.SetEscapeHTML(false)
	return encoder.Encode(struct {
		Checks   []Result `json:"checks"`
		Failed   int      `json:"failed"`
		Warnings int      `json:"warnings"`
		Unknown  int      `json:"unknown"`
	}{results, Count(results, Failed), Count(results, Warning), Count(results, Unknown)})
}

// IsOutput reports whether Print knows the format.
func IsOutput(output string) bool { return slices.Contains(Outputs, output) }
