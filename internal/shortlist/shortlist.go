// Package shortlist says a few names of a list, and how many more there are: nobody reads a thousand
// names, and Kubernetes cuts long messages.
package shortlist

import (
	"fmt"
	"strings"
)

// most is how many names Of says.
const most = 5

// Of says the first five names: "a, b, c, d, e and 7 more".
func Of(names []string) string { return First(most, names) }

// First says as many of the first names.
func First(most int, names []string) string {
	if more := len(names) - most; more > 0 {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), more)
	}
	return strings.Join(names, ", ")
}
