package overview

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/internal/records/choice"
)

// query is what the address of the page asks for.
type query struct {
	choice.Filter

	// Text is in the name or the claim of a volume; "" for all.
	Text string
	// Sort is one of choice.Orders; "" for the gravest problems first.
	Sort string
	// Page counts from 1.
	Page int
}

// Keys of an address.
const (
	keyGroup, keyNode, keyNamespace, keyText = "group", "node", "namespace", "text"
	keyProblems, keySort, keyPage            = "problems", "sort", "page"
	// keyAfter is the id of the board that a browser shows.
	keyAfter = "after"
)

const (
	longestText = 253 // of a name in Kubernetes
	mostPages   = 1_000_000
)

// parse reads an address. Its error says what is wrong with which key.
func parse(values url.Values) (query, error) {
	q := query{Page: 1}
	for key, all := range values {
		value := strings.TrimSpace(all[0])
		if len(all) > 1 || len(value) > longestText {
			return q, fmt.Errorf("%s is given more than once, or is longer than %d characters", key, longestText)
		}
		if value == "" {
			continue // a field of the form that was left empty
		}
		var err error
		switch key {
		case keyGroup:
			q.Groups = names(value)
		case keyNode:
			q.Nodes = names(value)
		case keyNamespace:
			q.Namespace = value
		case keyText:
			q.Text = value
		case keyProblems:
			q.Problems, err = strconv.ParseBool(value)
		case keySort:
			q.Sort = value
			if !slices.Contains(choice.Orders(), value) {
				err = fmt.Errorf("it is none of %s", strings.Join(choice.Orders(), ", "))
			}
		case keyPage:
			q.Page, err = strconv.Atoi(value)
			if err == nil && (q.Page < 1 || q.Page > mostPages) {
				err = fmt.Errorf("it is not between 1 and %d", mostPages)
			}
		case keyAfter:
		default:
			return q, fmt.Errorf("there is no filter %q", key)
		}
		if err != nil {
			return q, fmt.Errorf("%s %q: %w", key, value, err)
		}
	}
	return q, nil
}

// names reads names with commas between them.
func names(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return r == ',' || r == ' ' })
}

// Address returns the query as part of an address, with another page.
func (q query) Address(page int) string {
	values := url.Values{}
	set := func(key, value string) {
		if value != "" {
			values.Set(key, value)
		}
	}
	set(keyGroup, strings.Join(q.Groups, ","))
	set(keyNode, strings.Join(q.Nodes, ","))
	set(keyNamespace, q.Namespace)
	set(keyText, q.Text)
	set(keySort, q.Sort)
	if q.Problems {
		set(keyProblems, "1")
	}
	if page > 1 {
		set(keyPage, strconv.Itoa(page))
	}
	return "?" + values.Encode()
}

// everything reports whether the query leaves no volume out.
func (q query) everything() bool { return q.Everything() && q.Text == "" }

// has reports whether the text is in the name or the claim of a volume.
func (q query) has(v *v1alpha1.CacheVolume) bool {
	return strings.Contains(v.Name, q.Text) || strings.Contains(claimOf(v), q.Text)
}
