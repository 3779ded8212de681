//go:build e2e

package operators

import (
	"bufio"
	"bytes"
	"encoding/base64"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"
)

// chromium is a browser with one window, which the test drives by the DevTools protocol over a pipe.
type chromium struct {
	t       *testing.T
	in      *os.File
	file    *os.File
	out     *bufio.Reader
	calls   int
	session string
	// complaints are scripts that failed, and what the page's policy did not let through.
	complaints []string
}

func startChromium(t *testing.T) *chromium {
	t.Helper()
	theirIn, in, err := os.Pipe()
	must(t, err)
	out, theirOut, err := os.Pipe()
	must(t, err)
	command := exec.Command("chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
		"--disable-background-networking", "--disable-component-update", "--disable-sync", "--ignore-certificate-errors",
		"--user-data-dir="+t.TempDir(), "--remote-debugging-pipe")
	command.ExtraFiles = []*os.File{theirIn, theirOut}
	var complaints bytes.Buffer
	command.Stderr = &complaints
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := command.Start(); err != nil {
		t.Fatalf("chromium (hack/setup.sh screens installs it): %v", err)
	}
	theirIn.Close()
	theirOut.Close()
	t.Cleanup(func() {
		_ = syscall.Kill(-command.Process.Pid, syscall.SIGKILL) // its helpers hold files in the directory of its profile
		_ = command.Wait()
		in.Close()
		out.Close()
		if t.Failed() {
			t.Logf("chromium: %s", complaints.String())
		}
	})
	c := &chromium{t: t, in: in, file: out, out: bufio.NewReader(out)}
	var target struct{ TargetID string }
	c.call("Target.createTarget", map[string]any{"url": "about:blank"}, &target)
	var session struct{ SessionID string }
	c.call("Target.attachToTarget", map[string]any{"targetId": target.TargetID, "flatten": true}, &session)
	c.session = session.SessionID
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		c.call(domain+".enable", nil, nil)
	}
	return c
}

// call calls a method of the protocol, and reads its result into result unless that is nil.
func (c *chromium) call(method string, params map[string]any, result any) {
	c.t.Helper()
	c.calls++
	request := map[string]any{"id": c.calls, "method": method}
	if params != nil {
		request["params"] = params
	}
	if c.session != "" {
		request["sessionId"] = c.session
	}
	text, err := json.Marshal(request)
	must(c.t, err)
	must(c.t, c.in.SetWriteDeadline(time.Now().Add(time.Minute)))
	_, err = c.in.Write(append(text, 0))
	must(c.t, err)
	must(c.t, c.file.SetReadDeadline(time.Now().Add(time.Minute)))
	for {
		text, err := c.out.ReadBytes(0)
		must(c.t, err)
		var answer struct {
			ID     int    `json:"id"`
			Method string `json:"method"`
			Error  *struct {
				Message string `json:"message"`
			} `json:"error"`
			Result json.RawMessage `json:"result"`
			Params struct {
				Entry struct {
					Source string `json:"source"`
					Text   string `json:"text"`
				} `json:"entry"`
			} `json:"params"`
		}
		must(c.t, json.Unmarshal(text[:len(text)-1], &answer))
		switch {
		case answer.Method == "Runtime.exceptionThrown", answer.Method == "Log.entryAdded" && answer.Params.Entry.Source == "security":
			c.complaints = append(c.complaints, string(text[:len(text)-1]))
		case answer.ID != c.calls:
		case answer.Error != nil:
			c.t.Fatalf("chromium, %s: %s", method, answer.Error.Message)
		default:
			if result != nil {
				must(c.t, json.Unmarshal(answer.Result, result))
			}
			return
		}
	}
}

// open shows an address.
func (c *chromium) open(address string) {
	c.t.Helper()
	c.call("Page.navigate", map[string]any{"url": address}, nil)
	c.until(address+" is shown", `document.readyState === "complete" && location.href !== "about:blank"`)
}

// run runs an expression in the page and returns its value, that of a promise when it comes.
func (c *chromium) run(expression string) any {
	c.t.Helper()
	var answer struct {
		Result           struct{ Value any }
		ExceptionDetails *json.RawMessage
	}
	c.call("Runtime.evaluate", map[string]any{"expression": expression, "awaitPromise": true, "returnByValue": true}, &answer)
	if answer.ExceptionDetails != nil {
		c.t.Fatalf("%.300s: %s", expression, *answer.ExceptionDetails)
	}
	return answer.Result.Value
}

// until waits until an expression is true.
func (c *chromium) until(what, expression string) {
	c.t.Helper()
	for deadline := time.Now().Add(time.Minute); c.run(expression) != true; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			c.t.Fatalf("not within a minute: %s\n%v", what, c.run("document.documentElement.outerHTML"))
		}
	}
}

// press presses a key, as a person does who has no mouse.
func (c *chromium) press(key string, code int) {
	c.t.Helper()
	text := map[string]string{"Enter": "\r"}[key]
	for _, kind := range []string{"keyDown", "keyUp"} {
		c.call("Input.dispatchKeyEvent", map[string]any{"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code, "text": text}, nil)
	}
}

func (c *chromium) tab()   { c.t.Helper(); c.press("Tab", 9) }
func (c *chromium) enter() { c.t.Helper(); c.press("Enter", 13) }

// typed types text.
func (c *chromium) typed(text string) {
	c.t.Helper()
	c.call("Input.insertText", map[string]any{"text": text}, nil)
}

// look sets the size of the window and whether it is dark.
func (c *chromium) look(width, height int, scheme string) {
	c.t.Helper()
	c.call("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false}, nil)
	c.call("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": scheme}}}, nil)
}

// screenshot keeps a picture in ESCACHE_SCREENS=DIR.
func (c *chromium) screenshot(name string) {
	c.t.Helper()
	dir := os.Getenv("ESCACHE_SCREENS")
	if dir == "" {
		return
	}
	var picture struct{ Data string }
	c.call("Page.captureScreenshot", map[string]any{"format": "png"}, &picture)
	data, err := base64.StdEncoding.DecodeString(picture.Data)
	must(c.t, err)
	must(c.t, os.WriteFile(filepath.Join(dir, name+".png"), data, 0o644))
}
