// Package trim has the filesystem of a device discard its free space.
//
// It mounts the device for that, also if it is mounted already: the kernel then uses the same filesystem
// twice. The mount has no place in any directory tree and belongs to a child process, so nobody else sees it, and
// it ends with the child, however that ends. The child is killed if it takes too long.
package trim

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/escache/escache-csi/internal/command"
	"github.com/escache/escache-csi/internal/fstype"
)

// Verb is the hidden subcommand of the binary that runs Main.
const Verb = "trim"

// slack is the time that a child has beyond what it is asked for: to mount, which may replay a journal, and to
// finish the part that it has begun.
const slack = 45 * time.Second

// ErrRefused means that the filesystem cannot be trimmed. The text says why. Repeating does not help.
var ErrRefused = errors.New("the filesystem cannot be trimmed")

// Request is what to trim.
type Request struct {
	Device string `json:"device"`
	// Type is that of the filesystem, and Options are those with which its users mount it.
	Type    string   `json:"type"`
	Options []string `json:"options,omitempty"`
	// Start is where to begin, in bytes.
	Start int64 `json:"start,omitempty"`
	// Longest is the time after which no other part is begun.
	Longest time.Duration `json:"longest"`
}

// Result is how far a request got.
type Result struct {
	// Next is where the next request begins, unless it is Done.
	Next int64 `json:"next"`
	Done bool  `json:"done"`
	// Trimmed is how many bytes the filesystem has discarded.
	Trimmed int64 `json:"trimmed"`
	// Refused is the text of ErrRefused, for the parent.
	Refused string `json:"refused,omitempty"`
}

// Client runs Main in child processes.
type Client struct{ run command.Runner }

// NewClient returns a Client that runs this binary with run.
func NewClient(run command.Runner) *Client { return &Client{run: run} }

// Trim trims the filesystem of a volume's device. It takes slack longer than asked for at most.
func (c *Client) Trim(ctx context.Context, volume string, r Request) (Result, error) {
	in, err := json.Marshal(r)
	if err != nil {
		return Result{}, err
	}
	ran, err := c.run.Run(ctx, command.Command{
		// This is the running binary even if an upgrade has replaced the file.
		Volume: volume, Name: "/proc/self/exe", Args: []string{Verb}, Stdin: in, Timeout: r.Longest + slack, Mark: true,
	})
	if err != nil {
		return Result{}, err
	}
	var out Result
	if err := json.Unmarshal(ran.Stdout, &out); err != nil {
		return Result{}, fmt.Errorf("trim %s: %w", r.Device, err)
	}
	if out.Refused != "" {
		return Result{}, fmt.Errorf("%w: %s", ErrRefused, out.Refused)
	}
	return out, nil
}

// Main does what the request on in asks for, and writes the Result to out. It is for a process of its own.
func Main(in io.Reader, out io.Writer) error {
	var r Request
	if err := json.NewDecoder(in).Decode(&r); err != nil {
		return fmt.Errorf("trim: %w; only escached itself runs this command", err)
	}
	result, err := perform(r)
	if why, refused := errors.AsType[*refusal](err); refused {
		result, err = Result{Refused: why.Error()}, nil
	}
	if err != nil {
		return err
	}
	var text bytes.Buffer
	if err := json.NewEncoder(&text).Encode(result); err != nil {
		return err
	}
	_, err = out.Write(text.Bytes())
	return err
}

// refusal is an error that is the filesystem's, or the device's.
type refusal struct{ text string }

func (r *refusal) Error() string { return r.text }

func refuse(format string, args ...any) error { return &refusal{fmt.Sprintf(format, args...)} }

func perform(r Request) (result Result, err error) {
	if err := fstype.Known(r.Type); err != nil {
		return result, refuse("%v", err)
	}
	end := time.Now().Add(r.Longest)
	m, err := open(r)
	if err != nil {
		return result, err
	}
	defer func() { err = errors.Join(err, m.close()) }()
	return parts{size: m.size, trim: m.trim, now: time.Now}.run(r.Start, end)
}
