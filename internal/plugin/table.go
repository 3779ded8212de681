package plugin

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// table aligns the cells of rows in columns. Nothing is printed before flush.
func table(out io.Writer) (row func(cells ...string), flush func() error) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	return func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }, w.Flush
}
