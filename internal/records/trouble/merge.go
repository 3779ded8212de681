package trouble

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Line is one or more troubles, as they are told.
type Line struct {
	Where, What, Todo string
	// Troubles is how many of them are in the line.
	Troubles int
}

// single is how many objects with the same trouble are told one by one.
const single = 3

// Lines orders troubles by their gravity, and puts those that more than three objects have into one
// line: the loss of one host is one thing, although a thousand volumes have one copy then.
func Lines(all []Trouble) []Line {
	all = slices.Clone(all)
	slices.SortStableFunc(all, func(a, b Trouble) int {
		return cmp.Or(cmp.Compare(a.Gravity, b.Gravity), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Reason, b.Reason),
			cmp.Compare(a.Name, b.Name))
	})
	var lines []Line
	for len(all) > 0 {
		same := slices.IndexFunc(all, func(t Trouble) bool {
			return t.Gravity != all[0].Gravity || t.Kind != all[0].Kind || t.Reason != all[0].Reason
		})
		if same < 0 {
			same = len(all)
		}
		lines = append(lines, merged(all[:same])...)
		all = all[same:]
	}
	return lines
}

func merged(same []Trouble) []Line {
	if len(same) <= single {
		lines := make([]Line, 0, len(same))
		for _, t := range same {
			lines = append(lines, Line{t.Kind + " " + t.Name, t.What, t.Todo, 1})
		}
		return lines
	}
	var names []string
	for _, t := range same {
		if !slices.Contains(names[max(0, len(names)-1):], t.Name) { // they are in order
			names = append(names, t.Name)
		}
	}
	what := same[0].What
	if slices.ContainsFunc(same, func(t Trouble) bool { return t.What != what }) {
		what = "for example, " + what
	}
	return []Line{{
		Where: fmt.Sprintf("%s, %s (%s)", Count(len(names), same[0].Kind), same[0].Reason, Few(names)), What: what, Todo: same[0].Several,
		Troubles: len(same),
	}}
}

// Count returns a number and what there is of it: "1 host", "3 flushes".
func Count(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "sh"):
		what += "e"
	}
	return fmt.Sprintf("%d %ss", n, what)
}
