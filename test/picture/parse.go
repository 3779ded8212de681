package main

import (
	"fmt"
	"strconv"
	"strings"
)

// A picture is text. Each line has a word that says what it is. Numbers are columns and rows of a grid, from the left and from the
// top: X and Y of a corner, then width and height.
//
//	size WIDTH HEIGHT
//	title TEXT                           description TEXT      for those who do not see it; several lines are one text
//	area NAME X Y WIDTH HEIGHT TEXT      box NAME …            disk NAME …            a frame with a heading, a box, a disk
//	arrow FROM > TO [at=X] [TEXT]        write FROM > TO …     later FROM > TO …      thin, bold, dashed; straight up, down, or to a side
//	note X Y TEXT                        text without a box
//	# TEXT                               a comment
type picture struct {
	Width, Height      float64
	Title, Description string
	Shapes             []shape
	Lines              []line
	Notes              []label

	byName map[string]shape
}

// shape is an area, a box or a disk.
type shape struct {
	Kind, Name       string
	X, Y, Wide, High float64
	Text             string
}

// line is an arrow. Its label is beside it if it goes up or down, and else above it.
type line struct {
	Kind           string
	X1, Y1, X2, Y2 float64
	Label          label
}

// label is text at a place. Anchor is what SVG calls text-anchor.
type label struct {
	X, Y         float64
	Anchor, Text string
}

// parse reads a picture. Errors name the line.
func parse(text string) (*picture, error) {
	p := &picture{byName: map[string]shape{}}
	number := 0
	for raw := range strings.Lines(text) {
		number++
		if err := p.add(strings.TrimSpace(raw)); err != nil {
			return nil, fmt.Errorf("line %d: %w", number, err)
		}
	}
	if p.Width <= 0 || p.Height <= 0 || p.Title == "" || p.Description == "" {
		return nil, fmt.Errorf("it needs size, title and description")
	}
	return p, nil
}

func (p *picture) add(text string) error {
	kind, rest, _ := strings.Cut(text, " ")
	switch kind {
	case "", "#":
		return nil
	case "title":
		p.Title = rest
		return nil
	case "description":
		p.Description = strings.TrimSpace(p.Description + " " + rest)
		return nil
	case "size":
		at, _, err := numbers(rest, 2)
		if err == nil {
			p.Width, p.Height = at[0], at[1]
		}
		return err
	case "area", "box", "disk":
		return p.addShape(kind, rest)
	case "arrow", "write", "later":
		return p.addLine(kind, rest)
	case "note":
		at, words, err := numbers(rest, 2)
		if err == nil {
			p.Notes = append(p.Notes, label{at[0], at[1], "start", words})
		}
		return err
	}
	return fmt.Errorf("unknown word %q", kind)
}

// numbers takes numbers off the beginning of a text.
func numbers(text string, n int) (found []float64, rest string, err error) {
	for range n {
		var word string
		word, text, _ = strings.Cut(text, " ")
		v, err := strconv.ParseFloat(word, 64)
		if err != nil {
			return nil, "", fmt.Errorf("%q is no number", word)
		}
		found = append(found, v)
	}
	return found, text, nil
}

func (p *picture) addShape(kind, rest string) error {
	name, rest, _ := strings.Cut(rest, " ")
	at, text, err := numbers(rest, 4)
	if err != nil {
		return err
	}
	s := shape{kind, name, at[0], at[1], at[2], at[3], text}
	switch _, known := p.byName[name]; {
	case known:
		return fmt.Errorf("there are two shapes %s", name)
	case s.X < 0 || s.Y < 0 || s.X+s.Wide > p.Width || s.Y+s.High > p.Height:
		return fmt.Errorf("%s is not within the picture", name)
	case width(text)+1 > s.Wide:
		return fmt.Errorf("%s is too narrow for its text: it needs %.1f columns", name, width(text)+1)
	}
	p.byName[name] = s
	p.Shapes = append(p.Shapes, s)
	return nil
}

// width is how many columns a text takes at most in the usual fonts without serifs: a column has 10 pixels.
func width(text string) float64 { return 0.75 * float64(len([]rune(text))) }

func (p *picture) addLine(kind, rest string) error {
	words := strings.Fields(rest)
	if len(words) < 3 || words[1] != ">" {
		return fmt.Errorf("it needs FROM > TO")
	}
	from, to := p.byName[words[0]], p.byName[words[2]]
	if from.Name == "" || to.Name == "" {
		return fmt.Errorf("no shape %s, or no shape %s, above this line", words[0], words[2])
	}
	words = words[3:]
	l := line{Kind: kind}
	low, high := max(from.X, to.X), min(from.X+from.Wide, to.X+to.Wide)
	middle := (low + high) / 2
	if len(words) > 0 && strings.HasPrefix(words[0], "at=") {
		at, err := strconv.ParseFloat(words[0][len("at="):], 64)
		if err != nil || at < low || at > high {
			return fmt.Errorf("%s is not above and below both shapes", words[0])
		}
		middle, words = at, words[1:]
	}
	text := strings.Join(words, " ")
	top, bottom := max(from.Y, to.Y), min(from.Y+from.High, to.Y+to.High)
	switch {
	case low < high && from.Y+from.High < to.Y:
		l.X1, l.Y1, l.X2, l.Y2 = middle, from.Y+from.High, middle, to.Y
		l.Label = label{middle + 0.6, (l.Y1+l.Y2)/2 + 0.4, "start", text}
	case top < bottom && from.X+from.Wide < to.X:
		level := (top + bottom) / 2
		l.X1, l.Y1, l.X2, l.Y2 = from.X+from.Wide, level, to.X, level
		l.Label = label{(l.X1 + l.X2) / 2, level - 0.6, "middle", text}
		if width(text) > l.X2-l.X1 {
			return fmt.Errorf("%q is longer than the arrow", text)
		}
	default:
		return fmt.Errorf("%s is neither above %s nor to its left", from.Name, to.Name)
	}
	p.Lines = append(p.Lines, l)
	return nil
}
