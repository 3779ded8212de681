package overview

import (
	"reflect"
	"strings"
	"testing"
)

func TestPagesInARemedyBecomeLinks(t *testing.T) {
	for _, docs := range []string{"https://docs.example/v1", "https://docs.example/v1/"} {
		got := linked(docs, "see docs/upgrade.md, then docs/hosts/host-died.md#two")
		want := []piece{
			{Text: "see "}, {"docs/upgrade.md", "https://docs.example/v1/upgrade.md"}, {Text: ", then "},
			{"docs/hosts/host-died.md#two", "https://docs.example/v1/hosts/host-died.md#two"}, {},
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%q", got)
		}
	}
	for _, text := range []string{"flush again", "see docs/upgrade.md"} {
		if got := linked("", text); !reflect.DeepEqual(got, []piece{{Text: text}}) {
			t.Errorf("%q", got)
		}
	}
}

func TestThePageLinksToTheDocumentationWhereItIsKnown(t *testing.T) {
	for docs, want := range map[string]string{
		"":                      "if no pod has it (docs/redundancy.md)",
		"https://docs.example/": `if no pod has it (<a href="https://docs.example/redundancy.md">docs/redundancy.md</a>)`,
	} {
		s, _ := serve(t, func(c *Config) { c.Docs = docs })
		if _, body, _ := get(t, s.URL+"/", "viewer"); strings.Count(body, want) != 2 {
			t.Errorf("docs %q: the problem and its volume do not have %s\n%s", docs, want, body)
		}
	}
}
