package microceph

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/google/uuid"

	"github.com/escache/escache-csi/test/internal/process"
)

// pollInterval is how often a daemon's own state is asked for over its admin socket, which costs
// well under a millisecond.
const pollInterval = 30 * time.Millisecond

func (c *Cluster) start(ctx context.Context) error {
	for _, tool := range []string{"ceph-mon", "ceph-mgr", "ceph-osd", "ceph", "rbd", "monmaptool"} {
		if _, err := exec.LookPath(tool); err != nil {
			return fmt.Errorf("%w: install Ceph with hack/setup.sh lab", err)
		}
	}
	if _, err := os.Stat(c.path("mon")); err == nil {
		return errors.New("the directory holds a cluster already: remove it, or choose another")
	}
	osdKey, err := c.writeFiles(time.Now())
	if err != nil {
		return err
	}
	c.cfg.Log("monitor")
	if err := c.startMonitor(ctx); err != nil {
		return err
	}
	// The manager takes seconds to load its modules and needs nothing but the monitor, so it starts
	// beside the OSD.
	if err := c.daemon(manager, "ceph-mgr", "-i", "x"); err != nil {
		return err
	}
	c.cfg.Log("OSD")
	if err := c.startOSD(ctx, osdKey); err != nil {
		return err
	}
	c.cfg.Log("pools")
	if err := c.createPools(ctx); err != nil {
		return err
	}
	c.cfg.Log("manager")
	if err := process.Wait(ctx, c.daemons[manager], "become available", 200*time.Millisecond, c.managerAvailable); err != nil {
		return err
	}
	return c.setProposeInterval(ctx, c.cfg.ProposeInterval)
}

// daemon starts one of Ceph's daemons in the foreground.
func (c *Cluster) daemon(name, program string, args ...string) error {
	p, err := process.Start(process.Spec{
		Name: name, Path: program, Log: c.path("log", name+".out"),
		Args: append([]string{"-f", "-c", c.Conf()}, args...),
	})
	if err != nil {
		return err
	}
	c.daemons[name] = p
	return nil
}

// prepare runs a tool that writes a daemon's first files.
func (c *Cluster) prepare(ctx context.Context, program string, args ...string) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	if out, err := exec.CommandContext(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, out)
	}
	return nil
}

func (c *Cluster) startMonitor(ctx context.Context) error {
	monmap := c.path("monmap")
	err := c.prepare(ctx, "monmaptool", "-c", c.Conf(), "--create", "--clobber", "--fsid", c.fsid,
		"--addv", "a", c.mon.vector(c.cfg.Address), monmap)
	if err != nil {
		return err
	}
	err = c.prepare(ctx, "ceph-mon", "-c", c.Conf(), "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", c.keyring(monitor))
	if err != nil {
		return err
	}
	// Start-up is a dozen changes of maps one after the other, each of which would wait a second
	// for company.
	if err := c.daemon(monitor, "ceph-mon", "-i", "a", "--paxos_propose_interval=0.05"); err != nil {
		return err
	}
	return process.Wait(ctx, c.daemons[monitor], "lead its quorum", pollInterval, func(ctx context.Context) error {
		return c.daemonState(ctx, monitor, "mon_status", "leader")
	})
}

// daemonState is nil if the daemon says it is in the wanted state.
func (c *Cluster) daemonState(ctx context.Context, daemon, command, want string) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var status struct{ State string }
	if err := c.askDaemon(ctx, daemon, request{"prefix": command}, &status); err != nil {
		return err
	}
	if status.State != want {
		return fmt.Errorf("%s is in state %q, not %q", daemon, status.State, want)
	}
	return nil
}

func (c *Cluster) startOSD(ctx context.Context, key string) error {
	id := uuid.NewString()
	secret, err := json.Marshal(map[string]string{"cephx_secret": key})
	if err != nil {
		return err
	}
	if _, err := c.cephWithInput(ctx, string(secret), "osd", "new", id, "-i", "-"); err != nil {
		return err
	}
	if err := c.prepare(ctx, "ceph-osd", "-c", c.Conf(), "-i", "0", "--mkfs", "--osd-uuid", id); err != nil {
		return err
	}
	// Pacific's OSD can lose a race with the monitor at its first start: it is then told a wrong
	// fsid and gives up, or waits for ever. Its store is still empty, so starting it again is safe.
	const attempts = 5
	for attempt := 1; ; attempt++ {
		err := c.bootOSD(ctx)
		if err == nil || attempt == attempts || ctx.Err() != nil {
			return err
		}
		c.cfg.Log(fmt.Sprintf("OSD again after: %v", err))
		if err := c.daemons[osd].Kill(); err != nil {
			return err
		}
	}
}

func (c *Cluster) bootOSD(ctx context.Context) error {
	if err := c.daemon(osd, "ceph-osd", "-i", "0"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	return process.Wait(ctx, c.daemons[osd], "become active", pollInterval, func(ctx context.Context) error {
		return c.daemonState(ctx, osd, "status", "active")
	})
}

// setProposeInterval puts the configured value in the place of the one used for starting.
func (c *Cluster) setProposeInterval(ctx context.Context, interval time.Duration) error {
	var answer struct{ Success string }
	err := c.askDaemon(ctx, monitor, request{
		"prefix": "config set", "var": "paxos_propose_interval", "val": []string{fmt.Sprint(interval.Seconds())},
	}, &answer)
	if err == nil && answer.Success == "" {
		err = errors.New("refused")
	}
	if err != nil {
		return fmt.Errorf("set paxos_propose_interval: %w", err)
	}
	return nil
}

func (c *Cluster) createPools(ctx context.Context) error {
	done := make(chan error, len(c.cfg.Pools))
	for _, pool := range c.cfg.Pools {
		go func() { done <- c.CreatePool(ctx, pool) }()
	}
	var failed []error
	for range c.cfg.Pools {
		failed = append(failed, <-done)
	}
	return errors.Join(failed...)
}

// managerAvailable is nil once the manager has reported to the monitor: from then on `ceph df` and
// with it every pool's room are right.
func (c *Cluster) managerAvailable(ctx context.Context) error {
	out, err := c.Ceph(ctx, "mgr", "stat", "--format", "json")
	if err != nil {
		return err
	}
	var status struct {
		Available bool `json:"available"`
	}
	if err := json.Unmarshal(out, &status); err != nil {
		return err
	}
	if !status.Available {
		return errors.New("the monitor has not heard of it yet")
	}
	return nil
}
