package labclient

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/test/lab/internal/remote"
)

// Command says what to run on a node.
type Command = remote.Command

// Streams are a command's input and output.
type Streams = remote.Streams

// ErrNotRunning says that there is no lab of that name.
var ErrNotRunning = errors.New("the lab is not up (start it with: go run ./test/lab up)")

// Client is a connection to one lab.
type Client struct {
	socket string
	http   *http.Client
}

// New returns a client of the lab at a place. It does not connect yet.
func New(location Location) *Client { return newClient(location.Socket()) }

// Inside returns a client of the lab that this process runs in, or else of the checkout's lab.
func Inside() (*Client, error) {
	if socket := os.Getenv(EnvSocket); socket != "" {
		return newClient(socket), nil
	}
	location, err := Locate("")
	if err != nil {
		return nil, err
	}
	return New(location), nil
}

func newClient(socket string) *Client {
	c := &Client{socket: socket}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return c.dial(ctx) },
	}}
	return c
}

func (c *Client) dial(ctx context.Context) (net.Conn, error) {
	conn, err := (&net.Dialer{Timeout: 5 * time.Second}).DialContext(ctx, "unix", c.socket)
	if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ECONNREFUSED) {
		return nil, ErrNotRunning
	}
	return conn, err
}

// Status says what the lab is doing.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var status Status
	err := c.call(ctx, http.MethodGet, PathStatus, nil, &status)
	return status, err
}

// PowerOff takes a node's power away at once, as pulling the plug does.
func (c *Client) PowerOff(ctx context.Context, node string) error {
	return c.node(ctx, node, VerbPowerOff, nil)
}

// PowerOn boots a node from its disks and returns when it is usable.
func (c *Client) PowerOn(ctx context.Context, node string) error {
	return c.node(ctx, node, VerbPowerOn, nil)
}

// Freeze stops a node's processor, as a hypervisor does that pauses a machine.
func (c *Client) Freeze(ctx context.Context, node string) error {
	return c.node(ctx, node, VerbFreeze, nil)
}

// Thaw lets a frozen node go on.
func (c *Client) Thaw(ctx context.Context, node string) error {
	return c.node(ctx, node, VerbThaw, nil)
}

// NewDisk puts an empty disk in the place of a node's NVMe. The node has to be off.
func (c *Client) NewDisk(ctx context.Context, node string) error {
	return c.node(ctx, node, VerbNewDisk, nil)
}

// Reinstall makes a node's root disk what it was before the first boot. The node has to be off. Its NVMe
// stays as it is.
func (c *Client) Reinstall(ctx context.Context, node string) error {
	return c.node(ctx, node, VerbReinstall, nil)
}

// Cut disconnects a node from others; cuts add up until Heal.
func (c *Client) Cut(ctx context.Context, node string, cut Cut) error {
	return c.node(ctx, node, VerbCut, cut)
}

// Heal undoes all cuts.
func (c *Client) Heal(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, PathHeal, nil, nil)
}

// StallCeph stops the OSD as a hanging disk would: nothing fails, nothing goes on.
func (c *Client) StallCeph(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, PathStallCeph, nil, nil)
}

// ResumeCeph lets the OSD go on.
func (c *Client) ResumeCeph(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, PathResumeCeph, nil, nil)
}

// StopAPIServer ends the Kubernetes API server as a crash would.
func (c *Client) StopAPIServer(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, PathStopAPIServer, nil, nil)
}

// StartAPIServer starts it again and returns when it is ready. What was stored is there.
func (c *Client) StartAPIServer(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, PathStartAPIServer, nil, nil)
}

// SaveEtcd keeps a copy of everything that Kubernetes has on record. An earlier copy is replaced.
// The API server is away meanwhile.
func (c *Client) SaveEtcd(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, PathSaveEtcd, nil, nil)
}

// RestoreEtcd sets Kubernetes' record back to what SaveEtcd has kept, and starts all of the control
// plane again. It returns when that is ready.
func (c *Client) RestoreEtcd(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, PathRestoreEtcd, nil, nil)
}

// SetControllerFlags starts all replicas of csi-controller again with these flags after the lab's
// own, none for those alone, and returns when one leads.
func (c *Client) SetControllerFlags(ctx context.Context, flags ...string) error {
	return c.call(ctx, http.MethodPost, PathControllerFlags, ControllerFlags{flags}, nil)
}

// Fill takes all free room of a node's volume group; undo gives it back.
func (c *Client) Fill(ctx context.Context, node string, undo bool) error {
	return c.node(ctx, node, VerbFill, Fill{Undo: undo})
}

// FailDisk makes a node's NVMe stand-in return I/O errors; restore makes it work again.
func (c *Client) FailDisk(ctx context.Context, node string, restore bool) error {
	return c.node(ctx, node, VerbFailDisk, FailDisk{Restore: restore})
}

// Down ends the lab. It returns when the lab has begun to; its processes are gone soon after.
func (c *Client) Down(ctx context.Context) error {
	return c.call(ctx, http.MethodPost, PathDown, nil, nil)
}

// Exec runs a command on a node and returns its exit status. When ctx ends, the command and its
// children are killed.
func (c *Client) Exec(ctx context.Context, node string, command Command, streams Streams) (int, error) {
	conn, err := c.upgrade(ctx, PathNodes+node+"/"+VerbExec)
	if err != nil {
		return 0, err
	}
	return remote.Run(ctx, conn, command, streams)
}

// Output runs a command on a node and returns what it printed. An exit status other than 0 is an
// error that holds what it complained about.
func (c *Client) Output(ctx context.Context, node string, args ...string) (string, error) {
	var out, complaints bytes.Buffer
	code, err := c.Exec(ctx, node, Command{Args: args}, Streams{Out: &out, Err: &complaints})
	if err != nil {
		return out.String(), fmt.Errorf("%s: %w", node, err)
	}
	if code != 0 {
		return out.String(), fmt.Errorf("%s: %q ended with status %d: %s", node, args, code, strings.TrimSpace(complaints.String()))
	}
	return out.String(), nil
}

// Shell runs a script on a node, as Output does.
func (c *Client) Shell(ctx context.Context, node, script string) (string, error) {
	return c.Output(ctx, node, "sh", "-ec", script)
}

// Supervisor is the process that the lab hangs on, as seen from here.
func (c *Client) Supervisor(ctx context.Context) (int, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	raw, err := conn.(*net.UnixConn).SyscallConn() //nolint:forcetypeassert // a unix socket was dialled
	if err != nil {
		return 0, fmt.Errorf("who serves %s: %w", c.socket, err)
	}
	var peer *syscall.Ucred
	var failed error
	if err := raw.Control(func(fd uintptr) {
		peer, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	}); err != nil || failed != nil {
		return 0, fmt.Errorf("who serves %s: %w", c.socket, errors.Join(err, failed))
	}
	return int(peer.Pid), nil
}

func (c *Client) node(ctx context.Context, node, verb string, body any) error {
	return c.call(ctx, http.MethodPost, PathNodes+node+"/"+verb, body, nil)
}

func (c *Client) call(ctx context.Context, method, path string, body, answer any) error {
	var content io.Reader
	if body != nil {
		data, err := json.Marshal(body)
		if err != nil {
			return err
		}
		content = bytes.NewReader(data)
	}
	request, err := http.NewRequestWithContext(ctx, method, "http://lab"+path, content)
	if err != nil {
		return err
	}
	response, err := c.http.Do(request)
	if err != nil {
		if errors.Is(err, ErrNotRunning) {
			return ErrNotRunning
		}
		return fmt.Errorf("ask the lab: %w", err)
	}
	defer response.Body.Close()
	if response.StatusCode >= http.StatusBadRequest {
		return failure(response)
	}
	if answer == nil {
		return nil
	}
	if err := json.NewDecoder(response.Body).Decode(answer); err != nil {
		return fmt.Errorf("the lab's answer: %w", err)
	}
	return nil
}

func failure(response *http.Response) error {
	if response.Header.Get("Content-Type") == escache.ProblemContentType {
		var problem escache.Problem
		if err := json.NewDecoder(response.Body).Decode(&problem); err == nil {
			return &problem
		}
	}
	var f Failure
	if err := json.NewDecoder(response.Body).Decode(&f); err != nil || f.Error == "" {
		return fmt.Errorf("the lab answered %s", response.Status)
	}
	return errors.New(f.Error)
}

// upgrade asks for a connection of its own, on which the caller then speaks ExecProtocol.
func (c *Client) upgrade(ctx context.Context, path string) (net.Conn, error) {
	conn, err := c.dial(ctx)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { conn.Close() })
	defer stop()
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://lab"+path, nil)
	if err != nil {
		conn.Close()
		return nil, err
	}
	request.Header.Set("Connection", "Upgrade")
	request.Header.Set("Upgrade", ExecProtocol)
	if err := request.Write(conn); err != nil {
		conn.Close()
		return nil, fmt.Errorf("ask the lab: %w", err)
	}
	from := bufio.NewReader(conn)
	response, err := http.ReadResponse(from, request)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("ask the lab: %w", err)
	}
	if response.StatusCode != http.StatusSwitchingProtocols {
		defer conn.Close()
		defer response.Body.Close()
		return nil, failure(response)
	}
	return &buffered{Conn: conn, from: from}, nil
}

// buffered gives back what was read ahead of the answer to the upgrade.
type buffered struct {
	net.Conn

	from *bufio.Reader
}

func (b *buffered) Read(data []byte) (int, error) { return b.from.Read(data) }
