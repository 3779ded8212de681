// Package progress prints the steps of a long command: a line for each, with its start time and
// duration.
package progress

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// slow is after which a step that has not ended is announced, so that nobody wonders.
const slow = 3 * time.Second

// Printer prints steps. Several may run at once.
type Printer struct {
	mu     sync.Mutex
	out    io.Writer
	start  time.Time
	colour bool
}

// New prints to out, in colour where that is a terminal.
func New(out io.Writer) *Printer { return Since(time.Now(), out) }

// Since goes on with what was begun at a time before.
func Since(start time.Time, out io.Writer) *Printer {
	colour := false
	if file, ok := out.(*os.File); ok {
		info, err := file.Stat()
		colour = err == nil && info.Mode()&os.ModeCharDevice != 0 && os.Getenv("NO_COLOR") == ""
	}
	return &Printer{out: out, start: start, colour: colour}
}

// Step starts a step; calling what it returns ends it. A nil error prints ok.
func (p *Printer) Step(name string) func(error) {
	began := time.Now()
	announce := time.AfterFunc(slow, func() { p.line(name + " …") })
	return func(err error) {
		announce.Stop()
		if err != nil {
			p.line(fmt.Sprintf("%s … %s %.1fs", name, p.paint("31", "failed"), time.Since(began).Seconds()))
			return
		}
		p.line(fmt.Sprintf("%s … %s %.1fs", name, p.paint("32", "ok"), time.Since(began).Seconds()))
	}
}

// Do runs one step.
func (p *Printer) Do(name string, run func() error) error {
	end := p.Step(name)
	err := run()
	end(err)
	return err
}

// Sayf prints a line that is no step.
func (p *Printer) Sayf(format string, args ...any) { p.line(fmt.Sprintf(format, args...)) }

func (p *Printer) line(text string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	fmt.Fprintf(p.out, "[%6.1fs] %s\n", time.Since(p.start).Seconds(), text)
}

func (p *Printer) paint(code, text string) string {
	if !p.colour {
		return text
	}
	return "\x1b[" + code + "m" + text + "\x1b[0m"
}
