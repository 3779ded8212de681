// Package remote runs commands on a lab machine over one connection each: the first message says
// what to run, then input, output and at last how it ended pass as frames. When the connection
// ends, so does the command with all its children.
package remote

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Port is where the agent listens on a machine's management address.
const Port = 7070

// Command says what to run. Args[0] is looked up in the machine's PATH.
type Command struct {
	Args []string `json:"args"`
	Env  []string `json:"env,omitempty"` // NAME=VALUE, added to the agent's own
	Dir  string   `json:"dir,omitempty"`
}

// end is the last message: how the command ended.
type end struct {
	Code  int    `json:"code"` // 128 + n for one that signal n ended
	Error string `json:"error,omitempty"`
}

type kind byte

const (
	kindCommand kind = iota + 1
	kindInput
	kindInputEnd
	kindOutput
	kindErrors
	kindEnd
)

// maxFrame bounds a frame's content.
const maxFrame = 64 << 10

var errFrame = errors.New("the other side does not speak this protocol")

// writer sends frames; several goroutines may.
type writer struct {
	mu sync.Mutex
	to io.Writer
}

func (w *writer) frame(k kind, data []byte) error {
	head := make([]byte, 5, 5+len(data))
	head[0] = byte(k)
	binary.BigEndian.PutUint32(head[1:], uint32(len(data)))
	w.mu.Lock()
	defer w.mu.Unlock()
	_, err := w.to.Write(append(head, data...))
	return err
}

func (w *writer) message(k kind, content any) error {
	data, err := json.Marshal(content)
	if err != nil {
		return err
	}
	if len(data) > maxFrame {
		return fmt.Errorf("a command of %d bytes is too long (at most %d)", len(data), maxFrame)
	}
	return w.frame(k, data)
}

func readFrame(from io.Reader) (kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		return 0, nil, err
	}
	size := binary.BigEndian.Uint32(head[1:])
	if size > maxFrame {
		return 0, nil, errFrame
	}
	data := make([]byte, size)
	_, err := io.ReadFull(from, data)
	return kind(head[0]), data, err
}

// stream is an io.Writer whose writes become frames of one kind.
type stream struct {
	w    *writer
	kind kind
}

func (s stream) Write(data []byte) (int, error) {
	for rest := data; len(rest) > 0; {
		n := min(len(rest), maxFrame)
		if err := s.w.frame(s.kind, rest[:n]); err != nil {
			return len(data) - len(rest), err
		}
		rest = rest[n:]
	}
	return len(data), nil
}
