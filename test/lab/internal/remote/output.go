package remote

import (
	"io"
	"os"
	"syscall"
	"time"
)

// pipeBytes is at least what a pipe holds.
const pipeBytes = 1 << 20

// output carries what a command prints. The command gets the file itself, so that its end is not
// waited for where a child that it left in the background keeps the pipe open.
type output struct {
	from, file *os.File
	to         io.Writer
	done       chan struct{}
}

func newOutput(to io.Writer) (*output, error) {
	from, file, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	o := &output{from: from, file: file, to: to, done: make(chan struct{})}
	go o.carry()
	return o, nil
}

func (o *output) carry() {
	defer close(o.done)
	defer o.from.Close()
	buffer := make([]byte, maxFrame)
	for {
		n, err := o.from.Read(buffer)
		if _, failed := o.to.Write(buffer[:n]); failed != nil {
			return
		}
		if os.IsTimeout(err) {
			break
		}
		if err != nil {
			return
		}
	}
	// The command has ended: what it printed is in the pipe, however slowly it is taken from here.
	for left := pipeBytes; left > 0; {
		n := o.readNow(buffer)
		if n <= 0 {
			return
		}
		if _, failed := o.to.Write(buffer[:n]); failed != nil {
			return
		}
		left -= n
	}
}

// readNow reads what is there, and does not wait.
func (o *output) readNow(buffer []byte) int {
	if o.from.SetReadDeadline(time.Time{}) != nil {
		return 0
	}
	raw, err := o.from.SyscallConn()
	if err != nil {
		return 0
	}
	n := 0
	_ = raw.Read(func(fd uintptr) bool { // an error is no data
		n, err = syscall.Read(int(fd), buffer)
		return true
	})
	return n
}

// end returns when all that was printed by the time of the call is carried over.
func (o *output) end() {
	o.file.Close()
	_ = o.from.SetReadDeadline(time.Now()) // of a pipe that ended already
	<-o.done
}
