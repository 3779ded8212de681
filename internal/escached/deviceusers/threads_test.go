package deviceusers

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// asUser makes this binary a process that has the file of that name open, and only in a thread.
const asUser = "DEVICEUSERS_TEST_USER"

// An initialisation runs on the process's first thread.
var _ = beUser(os.Getenv(asUser))

func beUser(what string) error {
	how, path, _ := strings.Cut(what, ":")
	switch how {
	case "its first thread has ended":
		ready := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			file, err := os.Create(path)
			close(ready)
			for err == nil && !strings.Contains(readAll("/proc/self/stat"), ") Z ") {
				time.Sleep(settle)
			}
			fmt.Println("ready", err)
			time.Sleep(time.Minute)
			_ = file.Close()
		}()
		<-ready
		_, _, _ = unix.Syscall(unix.SYS_EXIT, 0, 0, 0) // of this thread only
	case "a thread has files of its own":
		time.Sleep(time.Nanosecond) // so that Go's poller opens its files before the threads have different ones
		go func() {
			runtime.LockOSThread()
			err := unix.Unshare(unix.CLONE_FILES)
			file, failed := os.Create(path)
			fmt.Println("ready", err, failed)
			time.Sleep(time.Minute)
			_ = file.Close()
		}()
		time.Sleep(time.Minute)
	}
	return nil
}

func readAll(path string) string {
	text, _ := os.ReadFile(path)
	return string(text)
}

func TestWhoHasAFileOpenInAThreadOnlyIsKilled(t *testing.T) {
	dir, devices := filesystem(t)
	for _, how := range []string{"its first thread has ended", "a thread has files of its own"} {
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe")
		cmd.Env = append(os.Environ(), asUser+"="+how+":"+filepath.Join(dir, "a"))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		said := make([]byte, 100)
		n, err := out.Read(said)
		if err != nil || strings.Contains(string(said[:n]), "denied") {
			t.Fatalf("%s: %q, %v", how, said[:n], err)
		}
		killed, err := devices.kill(t.Context())
		if err != nil || len(killed) != 1 || killed[0].PID != cmd.Process.Pid {
			t.Errorf("who uses it so that %s: killed %v, %v", how, killed, err)
			_ = cmd.Process.Kill()
		}
		if got := killedBy(cmd); got != unix.SIGKILL {
			t.Errorf("%s: ended by %q", how, got)
		}
	}
}
