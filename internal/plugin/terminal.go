package plugin

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// terminal is the size of the terminal, in characters. It is read again each time, because windows
// are resized.
type terminal struct{ width, height int }

// terminal returns the output's terminal; false if the output is not one.
func (c *cli) terminal() (terminal, bool) {
	file, isFile := c.Out.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return terminal{}, false
	}
	width, height, err := term.GetSize(int(file.Fd()))
	return terminal{width, height}, err == nil && width > 0 && height > 0
}

const (
	toTop       = "\x1b[H"
	endOfLine   = "\x1b[K"
	endOfScreen = "\x1b[J"
)

// redraw returns the text with the control sequences that replace the whole screen by it. It
// overwrites line by line, so nothing flickers, and leaves out and counts the lines that do not
// fit, so nothing scrolls.
func (t terminal) redraw(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if room := t.height - 1; len(lines) > room { // the cursor's own line is below
		left := len(lines) - room + 1
		lines = append(lines[:max(room-1, 0)], fmt.Sprintf("… and %d more lines", left))
	}
	var out strings.Builder
	out.WriteString(toTop)
	for _, line := range lines {
		out.WriteString(truncate(line, t.width) + endOfLine + "\n")
	}
	out.WriteString(endOfScreen)
	return out.String()
}

func truncate(line string, width int) string {
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return line
}
