//go:build lab

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/lab/labclient"
)

// program is the lab command under test, used as a person uses it.
type program struct {
	path     string
	name     string
	location labclient.Location
}

func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "lab")
	out, err := exec.Command("go", "build", "-o", path, ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return path
}

func newProgram(t *testing.T, path, suffix string) *program {
	t.Helper()
	p := &program{path: path, name: fmt.Sprintf("t%d-%s", os.Getpid(), suffix)}
	var err error
	if p.location, err = labclient.Locate(p.name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(p.path, "--name", p.name, "down").CombinedOutput(); err != nil {
			t.Errorf("down: %v\n%s", err, out)
		}
	})
	return p
}

func (p *program) command(args ...string) *exec.Cmd {
	return exec.Command(p.path, append([]string{"--name", p.name}, args...)...)
}

// run returns standard output and the exit status; what was complained about is logged.
func (p *program) run(t *testing.T, args ...string) (string, int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 12*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, p.path, append([]string{"--name", p.name}, args...)...)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("lab %q: %v", args, err)
	}
	if complaints.Len() > 0 {
		t.Logf("lab %q: %s", args, strings.TrimSpace(complaints.String()))
	}
	return out.String(), cmd.ProcessState.ExitCode()
}

// ok runs a command that must succeed.
func (p *program) ok(t *testing.T, args ...string) string {
	t.Helper()
	out, code := p.run(t, args...)
	if code != 0 {
		t.Fatalf("lab %q: status %d\n%s", args, code, out)
	}
	return out
}

func (p *program) shell(t *testing.T, node, script string) string {
	t.Helper()
	return strings.TrimSpace(p.ok(t, "exec", node, "--", "sh", "-ec", script))
}

// reaches asks whether one node gets an answer from an address.
func (p *program) reaches(t *testing.T, node, address string) bool {
	t.Helper()
	_, code := p.run(t, "exec", node, "--", "ping", "-c1", "-W2", address)
	return code == 0
}

// netns is the lab's network namespace, which outlives no process of the lab.
func (p *program) netns(t *testing.T) string {
	t.Helper()
	pid, err := labclient.New(p.location).Supervisor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	link, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	return link
}

// traces lists everything that is left of a lab: processes in its namespace or with its directory
// in their arguments, mounts, loop devices, files.
func (p *program) traces(netns string) []string {
	var found []string
	processes, _ := filepath.Glob("/proc/[0-9]*")
	for _, process := range processes {
		arguments, _ := os.ReadFile(process + "/cmdline")
		link, _ := os.Readlink(process + "/ns/net")
		if netns != "" && link == netns || bytes.Contains(arguments, []byte(p.location.StateDir)) {
			found = append(found, process+" "+string(bytes.ReplaceAll(arguments, []byte{0}, []byte{' '})))
		}
	}
	mounts, _ := os.ReadFile("/proc/self/mounts")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, p.location.StateDir) || strings.Contains(line, p.location.RunDir) {
			found = append(found, "mount "+line)
		}
	}
	loops, _ := filepath.Glob("/sys/block/loop*/loop/backing_file")
	for _, loop := range loops {
		if file, _ := os.ReadFile(loop); strings.HasPrefix(string(file), p.location.StateDir) {
			found = append(found, loop+" "+string(file))
		}
	}
	for _, path := range []string{p.location.StateDir, p.location.RunDir} {
		if _, err := os.Lstat(path); err == nil {
			found = append(found, path)
		}
	}
	return found
}

// leavesNothing waits a moment, since the last of a killed process goes after its parent knows.
func (p *program) leavesNothing(t *testing.T, netns string, except ...string) {
	t.Helper()
	var left []string
	for range 100 {
		left = slices.DeleteFunc(p.traces(netns), func(s string) bool { return slices.Contains(except, s) })
		if len(left) == 0 {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
}

func TestLab(t *testing.T) {
	binary := build(t)
	p := newProgram(t, binary, "a")
	began := time.Now()
	t.Log(p.ok(t, "up", "--nodes", "3"))
	t.Logf("up took %s", time.Since(began))
	netns := p.netns(t)

	t.Run("commands run on each node and give back their status", func(t *testing.T) {
		for _, node := range []string{"n1", "n2", "n3"} {
			if name := p.shell(t, node, "hostname"); name != node {
				t.Errorf("%s calls itself %q", node, name)
			}
		}
		if _, code := p.run(t, "exec", "n1", "--", "sh", "-c", "exit 9"); code != 9 {
			t.Errorf("status %d", code)
		}
		began := time.Now()
		if _, code := p.run(t, "exec", "--timeout", "1s", "n1", "--", "sleep", "61.5"); code == 0 || time.Since(began) > 20*time.Second {
			t.Errorf("status %d after %s", code, time.Since(began))
		}
		if left := p.shell(t, "n1", "sleep 0.5; ps | grep -c '[s]leep 61.5' || true"); left != "0" {
			t.Errorf("the command outlived its time: %s", left)
		}
	})

	t.Run("a second lab runs beside it", func(t *testing.T) { besides(t, p, newProgram(t, binary, "b")) })
	t.Run("cuts stop what they say and nothing else", func(t *testing.T) { cuts(t, p) })
	t.Run("what was written to disk survives the loss of power", func(t *testing.T) { power(t, p) })
	t.Run("disk faults come and go", func(t *testing.T) { disks(t, p) })
	t.Run("a stalled Ceph hangs, and goes on", func(t *testing.T) {
		p.ok(t, "rbd", "--", "create", "--size", "16", "before")
		p.ok(t, "stall-ceph")
		if _, code := p.run(t, "run", "--", "timeout", "3", "rbd", "create", "--size", "16", "during"); code != 124 {
			t.Errorf("status %d, not the time-out", code)
		}
		p.ok(t, "resume-ceph")
		p.ok(t, "rbd", "--", "create", "--size", "16", "after")
	})
	t.Run("a lab that is up is not started again", func(t *testing.T) {
		if _, code := p.run(t, "up"); code == 0 {
			t.Error("started twice")
		}
		p.shell(t, "n1", "true")
	})
	t.Run("down leaves nothing", func(t *testing.T) {
		p.ok(t, "down")
		p.leavesNothing(t, netns)
		p.ok(t, "down")
	})
}

func besides(t *testing.T, first, second *program) {
	second.ok(t, "up", "--nodes", "1", "--no-ceph", "--forgetful-disks")
	netns := second.netns(t)
	forgets(t, second)
	first.shell(t, "n1", "echo first >/root/mark")
	second.shell(t, "n1", "echo second >/root/mark")
	for p, want := range map[*program]string{first: "first", second: "second"} {
		if got := p.shell(t, "n1", "cat /root/mark"); got != want {
			t.Errorf("%s is %q", want, got)
		}
	}
	// A supervisor that crashes takes everything along but files; down removes those.
	pid, err := labclient.New(second.location).Supervisor(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	second.leavesNothing(t, netns, second.location.StateDir, second.location.RunDir)
	second.ok(t, "down")
	second.leavesNothing(t, netns)
	first.shell(t, "n1", "true")
}

// forgets writes to a host's disk past its page cache: what was flushed is there after a loss of
// power, what was not is lost.
func forgets(t *testing.T, p *program) {
	write := func(offset, conv string) {
		p.shell(t, "n1", "dd if=/dev/zero bs=1M count=1 2>/dev/null | tr '\\0' x | "+
			"dd of=/dev/escache/keep bs=1M iflag=fullblock oflag=direct conv=notrunc"+conv+" seek="+offset+" 2>/dev/null")
	}
	read := func(offset string) string {
		return p.shell(t, "n1", "dd if=/dev/escache/keep bs=1M count=1 skip="+offset+" 2>/dev/null | tr -d '\\0' | wc -c")
	}
	p.shell(t, "n1", "lvcreate -qy -L 16M -n keep escache >/dev/null 2>&1; "+
		"dd if=/dev/zero of=/dev/escache/keep bs=1M count=8 conv=fsync 2>/dev/null")
	write("1", ",fsync")
	write("2", "")
	if flushed, written := read("1"), read("2"); flushed != "1048576" || written != "1048576" {
		t.Errorf("before the loss of power %s and %s bytes are there", flushed, written)
	}
	p.ok(t, "power-off", "n1")
	p.ok(t, "power-on", "n1")
	if flushed, written := read("1"), read("2"); flushed != "1048576" || written != "0" {
		t.Errorf("after the loss of power there are %s bytes of what was flushed, %s of what was not", flushed, written)
	}
}

func cuts(t *testing.T, p *program) {
	const n2, n3 = "10.77.0.12", "10.77.0.13"
	ceph := func(node string) bool {
		return strings.HasPrefix(p.shell(t, node, "nc -w2 10.77.0.1 6789 </dev/null 2>/dev/null | head -c 4 || true"), "ceph")
	}
	arbiter := func(node string) bool {
		return p.shell(t, node, "curl -s -m2 -o /dev/null http://10.77.0.1:7790 && echo yes || true") == "yes"
	}
	type reach struct{ n2, n3, ceph, arbiter bool }
	tests := []struct {
		name string
		args []string
		want reach
	}{
		{"none", nil, reach{true, true, true, true}},
		{"from a node", []string{"--from", "n2"}, reach{false, true, true, true}},
		{"from a node, one way", []string{"--from", "n2", "--one-way"}, reach{false, true, true, true}},
		{"from Ceph", []string{"--from", "ceph"}, reach{true, true, false, true}},
		{"from the control plane", []string{"--from", "control-plane"}, reach{true, true, true, false}},
		{"from everything", []string{}, reach{false, false, false, false}},
		{"healed", nil, reach{true, true, true, true}},
	}
	for _, test := range tests {
		if test.args != nil {
			p.ok(t, append([]string{"cut", "n1"}, test.args...)...)
		}
		got := reach{p.reaches(t, "n1", n2), p.reaches(t, "n1", n3), ceph("n1"), arbiter("n1")}
		if got != test.want {
			t.Errorf("%s: n1 reaches %+v, not %+v", test.name, got, test.want)
		}
		if !p.reaches(t, "n2", n3) || !ceph("n2") {
			t.Errorf("%s: n2 is cut too", test.name)
		}
		p.ok(t, "heal")
	}
	if _, code := p.run(t, "cut", "n1", "--from", "n1"); code == 0 {
		t.Error("a node was cut from itself")
	}
}

func power(t *testing.T, p *program) {
	sum := p.shell(t, "n2", `lvcreate -qy -L 16M -n keep escache >/dev/null 2>&1
		dd if=/dev/urandom of=/dev/escache/keep bs=1M count=8 conv=fsync 2>/dev/null; echo root >/root/keep; sync; md5sum </dev/escache/keep`)
	hanging := p.command("exec", "n2", "--", "sleep", "1000")
	if err := hanging.Start(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second)
	p.ok(t, "power-off", "n2")
	if err := hanging.Wait(); err == nil {
		t.Error("a command on a node without power succeeded")
	}
	if p.reaches(t, "n1", "10.77.0.12") {
		t.Error("n2 answers without power")
	}
	if _, code := p.run(t, "exec", "n2", "--", "true"); code == 0 {
		t.Error("a command ran on a node without power")
	}
	began := time.Now()
	p.ok(t, "power-on", "n2")
	t.Logf("power-on took %s", time.Since(began))
	if got := p.shell(t, "n2", "md5sum </dev/escache/keep"); got != sum {
		t.Errorf("the data changed: %s, was %s", got, sum)
	}
	if got := p.shell(t, "n2", "cat /root/keep"); got != "root" {
		t.Errorf("the root disk lost a file: %q", got)
	}
	if _, code := p.run(t, "reinstall", "n2"); code == 0 {
		t.Error("a node that is on was reinstalled")
	}
	p.ok(t, "power-off", "n2")
	p.ok(t, "reinstall", "n2")
	p.ok(t, "power-on", "n2")
	if got := p.shell(t, "n2", "ls /root/keep 2>/dev/null; md5sum </dev/escache/keep; lvremove -qy escache/keep >/dev/null 2>&1"); got != sum {
		t.Errorf("after it was reinstalled, n2 has %q, and its NVMe had %s", got, sum)
	}
}

func disks(t *testing.T, p *program) {
	free := func() string { return p.shell(t, "n3", "vgs --noheadings -o vg_free_count escache") }
	before := free()
	p.ok(t, "fill", "n3")
	if free() != "0" {
		t.Errorf("free extents after fill: %s", free())
	}
	p.ok(t, "fill", "n3", "--undo")
	if free() != before {
		t.Errorf("free extents: %s, before %s", free(), before)
	}
	p.shell(t, "n3", "lvcreate -qy -L 16M -n broken escache >/dev/null 2>&1")
	const read = "dd if=/dev/escache/broken of=/dev/null bs=1M count=1 iflag=direct 2>/dev/null"
	p.ok(t, "fail-disk", "n3")
	if _, code := p.run(t, "exec", "n3", "--", "sh", "-c", read); code == 0 {
		t.Error("a failed disk was read")
	}
	p.ok(t, "fail-disk", "n3", "--restore")
	p.shell(t, "n3", read+"; lvremove -qy escache/broken >/dev/null 2>&1")
}

// TestAStartThatDoesNotFinish shows that whatever ends `up` leaves nothing behind.
func TestAStartThatDoesNotFinish(t *testing.T) {
	binary := build(t)
	tests := map[string]struct {
		signal syscall.Signal
		group  bool // a terminal's Ctrl-C goes to the whole group
	}{
		"Ctrl-C":  {syscall.SIGINT, true},
		"SIGTERM": {syscall.SIGTERM, false},
		"SIGKILL": {syscall.SIGKILL, false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			p := newProgram(t, binary, strings.ToLower(name))
			up := p.command("up", "--nodes", "1")
			up.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
			if err := up.Start(); err != nil {
				t.Fatal(err)
			}
			waitForFile(t, filepath.Join(p.location.StateDir, "nodes", "n1", "console.log"))
			pid := up.Process.Pid
			if test.group {
				pid = -pid
			}
			if err := syscall.Kill(pid, test.signal); err != nil {
				t.Fatal(err)
			}
			if err := up.Wait(); err == nil {
				t.Error("an interrupted start says that it succeeded")
			}
			p.leavesNothing(t, "")
		})
	}
}

func waitForFile(t *testing.T, path string) {
	t.Helper()
	for range 1200 {
		if _, err := os.Stat(path); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("%s does not come", path)
}

func TestAFailedStartNamesThePartAndKeepsItsLog(t *testing.T) {
	p := newProgram(t, build(t), "poor")
	cmd := p.command("up", "--nodes", "1", "--no-ceph", "--memory", "24")
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err == nil {
		t.Fatal("a host with 24 MiB booted")
	}
	console := filepath.Join(p.location.StateDir, "nodes", "n1", "console.log")
	if !bytes.Contains(out, []byte("n1 does not boot")) || !bytes.Contains(out, []byte(console)) {
		t.Error("neither the part nor its log is named")
	}
	if _, err := os.Stat(console); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(p.location.StateDir, "nodes", "n1", "root.img")); err == nil {
		t.Error("the disk was left behind")
	}
	p.ok(t, "down")
	p.leavesNothing(t, "")
}
