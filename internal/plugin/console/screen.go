package console

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/term"
)

// DefaultWidth is how many columns a list takes where there is no terminal.
const DefaultWidth = 80

// Screen is the size of the terminal, in characters. It is read again each time, because windows
// are resized.
type Screen struct{ Width, Height int }

// Screen returns the output's terminal; false if the output is not one.
func (c *Console) Screen() (Screen, bool) {
	file, isFile := c.Out.(*os.File)
	if !isFile || !term.IsTerminal(int(file.Fd())) {
		return Screen{}, false
	}
	width, height, err := term.GetSize(int(file.Fd()))
	return Screen{width, height}, err == nil && width > 0 && height > 0
}

const (
	toTop       = "\x1b[H"
	endOfScreen = "\x1b[J"
	// EndOfLine clears the rest of a line.
	EndOfLine = "\x1b[K"
)

// Redraw returns the text with the control sequences that replace the whole screen by it. It
// overwrites line by line, so nothing flickers, and leaves out and counts the lines that do not
// fit, so nothing scrolls.
func (s Screen) Redraw(text string) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	if room := s.Height - 1; len(lines) > room { // the cursor's own line is below
		left := len(lines) - room + 1
		lines = append(lines[:max(room-1, 0)], fmt.Sprintf("… and %d more lines", left))
	}
	var out strings.Builder
	out.WriteString(toTop)
	for _, line := range lines {
		out.WriteString(Truncate(line, s.Width) + EndOfLine + "\n")
	}
	out.WriteString(endOfScreen)
	return out.String()
}

// Truncate cuts a line that is wider than the screen.
func Truncate(line string, width int) string {
	if runes := []rune(line); len(runes) > width {
		return string(runes[:width-1]) + "…"
	}
	return line
}
