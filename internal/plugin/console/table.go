package console

import (
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
)

// Table aligns the cells of rows in columns. Nothing is printed before flush.
func Table(out io.Writer) (row func(cells ...string), flush func() error) {
	w := tabwriter.NewWriter(out, 0, 0, 3, ' ', 0)
	return func(cells ...string) { _, _ = fmt.Fprintln(w, strings.Join(cells, "\t")) }, w.Flush
}
