package overview

import (
	"bytes"
	"fmt"
	"hash/fnv"
	"html/template"
	"slices"

	"github.com/escache/escache-csi/internal/records/trouble"
)

// parts are the page in pieces, each an element with an id. What changes is sent piece by piece.
type parts struct {
	ID string // of the board
	// html is by the id of the element.
	html map[string]template.HTML
	// lists are the ids of the children of an element, in order.
	lists map[string][]string
}

// news are what has changed in a page, for the browser.
type news struct {
	ID    string                   `json:"id"`
	Lists map[string][]string      `json:"lists,omitempty"`
	Parts map[string]template.HTML `json:"parts,omitempty"`
}

// since returns what differs from what the browser has. The zero value has nothing.
func (p parts) since(before parts) news {
	n := news{ID: p.ID, Lists: map[string][]string{}, Parts: map[string]template.HTML{}}
	for id, html := range p.html {
		if before.html[id] != html {
			n.Parts[id] = html
		}
	}
	for id, children := range p.lists {
		if !slices.Equal(before.lists[id], children) || before.lists == nil {
			n.Lists[id] = children
		}
	}
	return n
}

// Part returns an element, for the whole page.
func (p parts) Part(id string) (template.HTML, error) {
	html, ok := p.html[id]
	if !ok {
		return "", fmt.Errorf("there is no part %q", id)
	}
	return html, nil
}

// List returns the children of an element, for the whole page.
func (p parts) List(id string) (template.HTML, error) {
	children, ok := p.lists[id]
	if !ok {
		return "", fmt.Errorf("there is no list %q", id)
	}
	var all bytes.Buffer
	for _, child := range children {
		all.WriteString(string(p.html[child]))
	}
	return template.HTML(all.String()), nil //nolint:gosec // each was made by html/template
}

// maker makes parts. Its error is the first one.
type maker struct {
	pages *template.Template
	parts parts
	err   error
}

// add makes an element. The template gets data, and gives the element that id.
func (m *maker) add(id, name string, data any) {
	var text bytes.Buffer
	if err := m.pages.ExecuteTemplate(&text, name, map[string]any{"ID": id, "V": data}); err != nil && m.err == nil {
		m.err = err
	}
	m.parts.html[id] = template.HTML(text.String()) //nolint:gosec // it was made by html/template
}

// list makes the children of an element. empty is said if there are none.
func list[T any](m *maker, id, name string, rows []T, key func(T) string, empty string) {
	children := make([]string, 0, len(rows))
	used := map[string]bool{}
	for _, row := range rows {
		child := id + "-" + key(row)
		for used[child] {
			child += "'"
		}
		used[child] = true
		children = append(children, child)
		m.add(child, name, row)
	}
	if len(rows) == 0 {
		child := id + "-none"
		children = append(children, child)
		m.add(child, name+"-none", empty)
	}
	m.parts.lists[id] = children
}

// parts makes the pieces of a view.
func (s *Server) parts(b *board, q query) (view, parts, error) {
	v := b.view(s.config, q)
	m := &maker{pages: s.pages, parts: parts{ID: b.id, html: map[string]template.HTML{}, lists: map[string][]string{}}}
	for id, data := range map[string]any{
		"about": v, "summary": v, "totals": v, "unknown": v, "moreproblems": v, "morehosts": v, "moregroups": v, "repairs": v, "resyncs": v,
		"flushes": v, "snapshots": v, "pages": v,
	} {
		m.add(id, id, data)
	}
	list(m, "problems", "problem", v.Problems, func(l trouble.Line) string { return hashed(l.Where, l.Todo) }, "Nothing is wrong.")
	list(m, "groups", "group", v.Groups, func(g group) string { return g.Name }, "There are no groups of hosts to show.")
	list(m, "hosts", "host", v.Hosts, func(h host) string { return h.Name }, "There are no hosts to show.")
	list(m, "volumes", "volume", v.Volumes, func(one volume) string { return one.Name }, "There are no volumes to show.")
	return v, m.parts, m.err
}

// hashed returns a short key that is the same for the same words.
func hashed(words ...string) string {
	sum := fnv.New64a()
	for _, word := range words {
		_, _ = fmt.Fprintf(sum, "%d:%s", len(word), word)
	}
	return fmt.Sprintf("%x", sum.Sum64())
}

// empty reports whether there are no news.
func (n news) empty() bool { return len(n.Lists) == 0 && len(n.Parts) == 0 }
