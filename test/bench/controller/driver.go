package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
)

const (
	firstPort  = 10000
	firstMinor = 100
)

// driver is the running csi-controller.
type driver struct {
	csi.ControllerClient

	stage   *stage
	command *exec.Cmd
	conn    *grpc.ClientConn
	log     string
}

// drive starts the driver and waits until it serves.
func (s *stage) drive(ctx context.Context) (*driver, error) {
	dir, err := os.MkdirTemp(s.dir, "d")
	if err != nil {
		return nil, err
	}
	socket := filepath.Join(dir, "s")
	d := &driver{stage: s, log: filepath.Join(dir, "log")}
	linkKey := filepath.Join(dir, "link-key")
	if err := os.WriteFile(linkKey, []byte(strings.Repeat("bench", 8)), 0o600); err != nil {
		return nil, err
	}
	log, err := os.Create(d.log)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	d.command = exec.Command(s.binary, "--kubeconfig", s.kube.Kubeconfig(), "--ceph-dir", filepath.Join(s.dir, "clusters"),
		"--csi-socket", socket, "--identity", filepath.Base(dir), "--lease-namespace", "default", "--image-prefix", prefix,
		"--escached-plaintext", "--escached-port", fmt.Sprint(s.fleet.Port), "--metrics-address", "0", "--health-address", "0",
		"--replication-secret-file", linkKey,
		"--drbd-ports", fmt.Sprintf("%d-65535", firstPort), "--drbd-minors", fmt.Sprintf("%d-65535", firstMinor))
	d.command.Stdout, d.command.Stderr = log, log
	d.command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := d.command.Start(); err != nil {
		return nil, err
	}
	if d.conn, err = grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		d.stop()
		return nil, err
	}
	d.ControllerClient = csi.NewControllerClient(d.conn)
	if err := d.ready(ctx); err != nil {
		text, _ := os.ReadFile(d.log)
		d.stop()
		return nil, fmt.Errorf("%w\n%s", err, text)
	}
	return d, nil
}

// ready waits until volumes can be placed: the driver leads and has asked the hosts.
func (d *driver) ready(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	for {
		r, err := d.GetCapacity(ctx, &csi.GetCapacityRequest{})
		if err == nil && r.GetAvailableCapacity() > 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("csi-controller does not serve: %w", err)
		case <-time.After(100 * time.Millisecond):
		}
	}
}

func (d *driver) stop() {
	if d.conn != nil {
		d.conn.Close()
	}
	_ = d.command.Process.Signal(syscall.SIGTERM) // gives the lease back
	_ = d.command.Wait()
}

func (d *driver) create(ctx context.Context, name string) error {
	_, err := d.CreateVolume(ctx, &csi.CreateVolumeRequest{
		Name: name, CapacityRange: &csi.CapacityRange{RequiredBytes: size},
		Parameters: map[string]string{"clusterID": "bench", "pool": pool, "cacheSize": "64Mi"},
		VolumeCapabilities: []*csi.VolumeCapability{{
			AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{}},
			AccessMode: &csi.VolumeCapability_AccessMode{Mode: csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER},
		}},
	})
	return err
}

func (d *driver) delete(ctx context.Context, id string) error {
	_, err := d.DeleteVolume(ctx, &csi.DeleteVolumeRequest{VolumeId: id})
	return err
}

// waitForEmptyTrash waits until the driver has emptied the trash, which would slow down what is measured
// next.
func (d *driver) waitForEmptyTrash(ctx context.Context) error {
	for end := time.Now().Add(5 * time.Minute); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
		out, err := exec.CommandContext(ctx, "rbd", "-c", d.stage.ceph.Conf(), "trash", "ls", pool).Output()
		if err != nil {
			return err
		}
		if len(bytes.TrimSpace(out)) == 0 {
			return nil
		}
	}
	return fmt.Errorf("the trash is not empty after five minutes")
}

// memory is what is resident now, and what was at most, in bytes.
func (d *driver) memory() (now, peak int64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.command.Process.Pid))
	if err != nil {
		return 0, 0, err
	}
	for line := range bytes.Lines(text) {
		var kib int64
		switch {
		case bytes.HasPrefix(line, []byte("VmRSS:")):
			_, err = fmt.Sscanf(string(line), "VmRSS: %d kB", &kib)
			now = kib << 10
		case bytes.HasPrefix(line, []byte("VmHWM:")):
			_, err = fmt.Sscanf(string(line), "VmHWM: %d kB", &kib)
			peak = kib << 10
		}
		if err != nil {
			return 0, 0, err
		}
	}
	return now, peak, nil
}
