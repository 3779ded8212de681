// Package wordwrap breaks text between words, for terminals.
package wordwrap

import "strings"

// Line breaks a line between words to the width (0: not at all), and ends it. Spaces at its start stay.
// The further lines begin with indent. A word that is longer than the width is not broken.
func Line(line, indent string, width int) string {
	var out strings.Builder
	start := len(line) - len(strings.TrimLeft(line, " "))
	out.WriteString(line[:start])
	column, first := start, true
	for word := range strings.FieldsSeq(line) {
		n := len([]rune(word))
		switch {
		case first:
		case width > 0 && column+1+n > width:
			out.WriteString("\n" + indent)
			column = len(indent)
		default:
			out.WriteString(" ")
			column++
		}
		out.WriteString(word)
		column, first = column+n, false
	}
	return out.String() + "\n"
}
