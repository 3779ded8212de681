// Package console is what every command of the plugin has: the streams and the terminal, the way to
// the API server, and the wait for something there.
package console

import (
	"encoding/json"
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/cli-runtime/pkg/genericiooptions"

	"github.com/escache/escache-csi/internal/plugin/failure"
	"github.com/escache/escache-csi/internal/wordwrap"
)

// Console is the user's end of a command.
type Console struct {
	genericiooptions.IOStreams

	// Config has kubectl's flags that say which API server, user and namespace.
	Config *genericclioptions.ConfigFlags
	Now    func() time.Time
}

// New returns a console with these streams.
func New(streams genericiooptions.IOStreams) *Console {
	return &Console{IOStreams: streams, Config: genericclioptions.NewConfigFlags(true), Now: time.Now}
}

// Printf prints to the output.
func (c *Console) Printf(format string, args ...any) { _, _ = fmt.Fprintf(c.Out, format, args...) }

// PrintJSON prints a value as JSON, indented.
func (c *Console) PrintJSON(value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	c.Printf("%s\n", text)
	return nil
}

// Factf prints a fact after its name, and breaks it between words.
func (c *Console) Factf(what, format string, args ...any) {
	const width = 12 // of the name
	screen, _ := c.Screen()
	indent := strings.Repeat(" ", width)
	text := wordwrap.Line(indent+fmt.Sprintf(format, args...), indent, screen.Width)
	c.Printf("%-*s%s", width, what+":", text[width:])
}

// Confirm asks the user to type the name, and fails with failure.ErrDeclined if they do not.
func (c *Console) Confirm(what, name string) error {
	c.Printf("%s\nType %s to continue: ", what, name)
	var typed string
	_, _ = fmt.Fscanln(c.In, &typed)
	if strings.TrimSpace(typed) != name {
		c.Printf("\n")
		return fmt.Errorf("%w: %q is not %q", failure.ErrDeclined, typed, name)
	}
	return nil
}

// Ago says how long ago something was.
func Ago(t *metav1.Time, now time.Time) string {
	if t == nil {
		return "never"
	}
	return now.Sub(t.Time).Truncate(time.Second).String() + " ago"
}
