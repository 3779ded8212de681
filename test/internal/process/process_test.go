package process

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// parentEnv makes this test program the parent of a child that it tells the process id of.
const parentEnv = "PROCESS_TEST_PARENT"

func TestMain(m *testing.M) {
	if log := os.Getenv(parentEnv); log != "" {
		p, err := Start(Spec{Name: "child", Path: "sleep", Args: []string{"1000"}, Log: log})
		if err != nil {
			panic(err)
		}
		fmt.Println(p.PID())
		<-p.Done()
	}
	os.Exit(m.Run())
}

func shell(t *testing.T, script string) *Process {
	t.Helper()
	p, err := Start(Spec{Name: "script", Path: "sh", Args: []string{"-c", script}, Log: filepath.Join(t.TempDir(), "log", "script.log")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Kill(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func TestEndIsReportedWithTheEndOfTheLog(t *testing.T) {
	p := shell(t, "echo one; echo the reason >&2; exit 3")
	select {
	case <-p.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("it does not end")
	}
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "the reason") || !strings.Contains(err.Error(), "status 3") {
		t.Errorf("Err: %v", err)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Errorf("signal to one that has ended: %v", err)
	}
}

func TestOrderlyEndOfADaemonIsAnEndToo(t *testing.T) {
	p := shell(t, "exit 0")
	<-p.Done()
	if p.Err() == nil {
		t.Error("it counts as running")
	}
}

func TestWaitEndsWithTheChildAndWithTheContext(t *testing.T) {
	never := func(context.Context) error { return errors.New("the port is shut") }
	err := Wait(t.Context(), shell(t, "echo broken configuration; exit 1"), "listen", time.Millisecond, never)
	if err == nil || !strings.Contains(err.Error(), "broken configuration") {
		t.Errorf("child ended: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	err = Wait(ctx, shell(t, "sleep 1000"), "listen", time.Millisecond, never)
	if err == nil || !strings.Contains(err.Error(), "the port is shut") || !strings.Contains(err.Error(), "script.log") {
		t.Errorf("out of time: %v", err)
	}
}

func TestPausedChildStandsStillAndCanBeKilled(t *testing.T) {
	file := filepath.Join(t.TempDir(), "count")
	p := shell(t, "while :; do echo >>"+file+"; done")
	size := func() int64 {
		info, err := os.Stat(file)
		if err != nil {
			return 0
		}
		return info.Size()
	}
	for size() == 0 {
		time.Sleep(time.Millisecond)
	}
	if err := p.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	before := size()
	time.Sleep(100 * time.Millisecond)
	if after := size(); after != before {
		t.Errorf("it wrote %d bytes while it was paused", after-before)
	}
	if err := p.Continue(); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(10 * time.Second); size() == before; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not go on")
		}
	}
	if err := errors.Join(p.Pause(t.Context()), p.Kill()); err != nil || p.Err() == nil {
		t.Errorf("kill of a paused one: %v, %v", err, p.Err())
	}
}

func TestStopKillsOneThatDoesNotListen(t *testing.T) {
	p := shell(t, "trap '' TERM; echo ready; while :; do sleep 0.01; done")
	for !strings.Contains(Tail(p.Log(), 1), "ready") {
		time.Sleep(time.Millisecond)
	}
	if err := p.Stop(t.Context(), 50*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if err := p.Err(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("Err: %v", err)
	}
}

func TestChildDiesWithItsParentHoweverThatEnds(t *testing.T) {
	parent := exec.CommandContext(t.Context(), "/proc/self/exe")
	parent.Env = append(os.Environ(), parentEnv+"="+filepath.Join(t.TempDir(), "log"))
	out, err := parent.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := parent.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	child, err := strconv.Atoi(strings.TrimSpace(line))
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(child, 0); err != nil {
		t.Fatalf("the child does not run: %v", err)
	}
	if err := parent.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = parent.Wait() // it was killed
	for deadline := time.Now().Add(10 * time.Second); syscall.Kill(child, 0) == nil; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("the child lives")
		}
	}
}

func TestMissingProgramIsAnError(t *testing.T) {
	if _, err := Start(Spec{Name: "x", Path: "no-such-program", Log: filepath.Join(t.TempDir(), "log")}); err == nil {
		t.Error("started")
	}
}
