package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"
)

// etcdGrace is how long etcd may take to write down what it has when it is told to end.
const etcdGrace = 20 * time.Second

// SaveEtcd keeps a copy of etcd's data as it is now, in the place of an earlier copy. API server and
// etcd are away meanwhile.
func (c *ControlPlane) SaveEtcd(ctx context.Context) error {
	if err := c.endEtcd(ctx); err != nil {
		return err
	}
	saved := c.path("etcd-saved")
	err := os.RemoveAll(saved)
	if err == nil {
		err = os.CopyFS(saved, os.DirFS(c.path("etcd")))
	}
	if err != nil {
		err = fmt.Errorf("keep a copy of etcd's data: %w", err)
	}
	if started := c.startEtcd(ctx); started != nil {
		return errors.Join(err, started)
	}
	return errors.Join(err, c.startAPIServer(ctx))
}

// RestoreEtcd puts the copy in the place of etcd's data. Controllers and scheduler are started again,
// too, as the rules for a restore say: what they remember is newer than the record.
func (c *ControlPlane) RestoreEtcd(ctx context.Context) error {
	data, saved := c.path("etcd"), c.path("etcd-saved")
	if _, err := os.Stat(saved); err != nil {
		return fmt.Errorf("restore etcd: no copy was saved: %w", err)
	}
	for _, name := range []string{scheduler, controllerManager} {
		if err := c.started()[name].Kill(); err != nil {
			return err
		}
	}
	if err := c.endEtcd(ctx); err != nil {
		return err
	}
	err := os.RemoveAll(data)
	if err == nil {
		err = os.CopyFS(data, os.DirFS(saved))
	}
	if err == nil {
		err = os.Chmod(data, 0o700) // etcd refuses a directory that others can read
	}
	if err != nil {
		return fmt.Errorf("restore etcd: %w", err)
	}
	for _, start := range []func(context.Context) error{c.startEtcd, c.startAPIServer, c.startControllers} {
		if err := start(ctx); err != nil {
			return err
		}
	}
	return nil
}

// endEtcd ends the API server and then etcd.
func (c *ControlPlane) endEtcd(ctx context.Context) error {
	if err := c.StopAPIServer(ctx); err != nil {
		return err
	}
	return c.started()[etcd].Stop(ctx, etcdGrace)
}
