package labtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Client is a program on a host that commits numbered changes, one after the other. It reads from its
// standard input and prints a change's number once it is committed.
type Client struct {
	Command []string
	// Begin is written to it first.
	Begin string
	// Change returns what has it commit change n.
	Change func(n int) string
}

// Commits keeps, outside the host, what a Client has committed.
type Commits struct {
	host  *Host
	done  chan struct{}
	ended chan struct{} // closed by Stop

	mu        sync.Mutex
	committed int
	err       error // how it ended; set before done is closed
}

// StartClient starts a client whose first change is number from. There is never more than one change
// under way.
func (h *Host) StartClient(t T, client Client, from int) *Commits {
	t.Helper()
	stdin, changes := io.Pipe()
	output, stdout := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	c := &Commits{host: h, done: make(chan struct{}), ended: make(chan struct{}), committed: from - 1}
	go func() {
		err := h.stream(ctx, stdin, stdout, client.Command...)
		stdin.CloseWithError(io.ErrClosedPipe)
		stdout.CloseWithError(io.EOF)
		c.mu.Lock()
		c.err = err
		c.mu.Unlock()
		close(c.done)
	}()
	go c.feed(client, changes, output)
	return c
}

// feed asks for the next change when the one before is committed. An error means that the client has
// ended.
func (c *Commits) feed(client Client, changes *io.PipeWriter, output io.Reader) {
	defer changes.Close()
	if _, err := io.WriteString(changes, client.Begin); err != nil {
		return
	}
	lines := bufio.NewReader(output)
	for n := c.Last() + 1; ; n++ {
		select {
		case <-c.ended:
			return
		default:
		}
		if _, err := io.WriteString(changes, client.Change(n)); err != nil {
			return
		}
		for {
			line, err := lines.ReadString('\n') // a whole one: half of one was never said
			if err != nil {
				return
			}
			if said, err := strconv.Atoi(strings.TrimSpace(line)); err == nil && said == n {
				break
			}
		}
		c.mu.Lock()
		c.committed = n
		c.mu.Unlock()
	}
}

// Last is the number of the last change that is committed. The next one may be, too.
func (c *Commits) Last() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.committed
}

// WaitForMore waits until n more changes are committed.
func (c *Commits) WaitForMore(t T, n int, limit time.Duration) {
	t.Helper()
	want := c.Last() + n
	WaitFor(t, fmt.Sprintf("%d more commits on %s", n, c.host.Name), limit, func(context.Context) error {
		select {
		case <-c.done:
			t.Fatalf("the client on %s ended: %v", c.host.Name, c.err)
		default:
		}
		if have := c.Last(); have < want {
			return fmt.Errorf("%d are missing", want-have)
		}
		return nil
	})
}

// Stop ends the client in good order. Anything that it could not commit fails the test.
func (c *Commits) Stop(t T) {
	t.Helper()
	close(c.ended)
	c.Lost(t)
	if c.err != nil {
		t.Fatalf("the client on %s failed after change %d: %v", c.host.Name, c.Last(), c.err)
	}
}

// Lost waits for the end of a client whose host has lost its power.
func (c *Commits) Lost(t T) {
	t.Helper()
	select {
	case <-c.done:
	case <-time.After(2 * time.Minute):
		t.Fatalf("the client on %s does not end after change %d", c.host.Name, c.Last())
	}
}
