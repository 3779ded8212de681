package overview

import (
	"regexp"
	"strings"
)

// piece is a part of a text. Address is where it leads to; "" for plain text.
type piece struct{ Text, Address string }

// page is how remedies name the pages of the documentation.
var page = regexp.MustCompile(`\bdocs/[a-z/-]+\.md(#[a-z0-9_-]+)?`)

// linked splits a text at the pages that it names, and gives each its address below docs. Without docs the text
// stays plain: a reader with a checkout finds the page by its name.
func linked(docs, text string) []piece {
	if docs == "" {
		return []piece{{Text: text}}
	}
	var pieces []piece
	end := 0
	for _, at := range page.FindAllStringIndex(text, -1) {
		name := text[at[0]:at[1]]
		pieces = append(pieces, piece{Text: text[end:at[0]]},
			piece{Text: name, Address: strings.TrimSuffix(docs, "/") + strings.TrimPrefix(name, "docs")})
		end = at[1]
	}
	return append(pieces, piece{Text: text[end:]})
}
