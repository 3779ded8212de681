package vm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/escache/escache-csi/test/internal/process"
)

// serveTime bounds the start of a disk's server.
const serveTime = 20 * time.Second

func socket(disk Disk) string { return disk.Path + ".sock" }

// serve starts a server for each forgetful disk: it keeps writes in a file that nobody else can
// open until the guest flushes, and takes them with it when it is killed.
func (m *Machine) serve() (servers []*process.Process, err error) {
	// A guest that ended by itself has left its servers.
	if err := forget(m.servers); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), serveTime)
	defer cancel()
	for i, disk := range m.config.Disks {
		if !disk.Forgetful {
			continue
		}
		if err := os.Remove(socket(disk)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, errors.Join(err, forget(servers))
		}
		p, err := process.Start(process.Spec{
			Name: fmt.Sprintf("%s disk%d", m.config.Name, i), Path: "nbdkit", Log: m.config.Log,
			Args: []string{"--foreground", "--unix", socket(disk), "--filter=cache", "file", disk.Path, "cache=writeback"},
		})
		if err != nil {
			return nil, errors.Join(err, forget(servers))
		}
		servers = append(servers, p)
		if err := process.Wait(ctx, p, "serve", 5*time.Millisecond, func(context.Context) error {
			_, err := os.Stat(socket(disk))
			return err
		}); err != nil {
			return nil, errors.Join(err, forget(servers))
		}
	}
	return servers, nil
}

// forget ends the servers, and with each what its disk had not flushed.
func forget(servers []*process.Process) error {
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Kill())
	}
	return errors.Join(errs...)
}
