package kubernetes

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"time"

	"github.com/escache/escache-csi/test/internal/process"
)

// SidecarPrograms are the tools that SidecarConfig.Programs has to hold.
func SidecarPrograms() []string { return SidecarConfig{Snapshots: true}.Names() }

// SidecarConfig says whom CSI's sidecars serve. All but Snapshots and Args is needed.
type SidecarConfig struct {
	Name       string            // of the replica of the driver they stand beside, e.g. "csi-controller-0"
	Dir        string            // of their logs
	Socket     string            // of the driver
	Kubeconfig string            // whose rights they have
	Namespace  string            // where the provisioner keeps storage capacities
	Programs   map[string]string // paths by name
	Snapshots  bool              // csi-snapshotter too: the cluster has the kinds of VolumeSnapshots (see StartSnapshots)
	Args       map[string][]string
}

// Names are the programs that run.
func (cfg SidecarConfig) Names() []string {
	names := []string{"csi-provisioner", "csi-attacher", "csi-resizer"}
	if cfg.Snapshots {
		names = append(names, "csi-snapshotter")
	}
	return names
}

// Sidecars are those of one replica of the driver. They give up after 30 s without its socket. Each
// ends when it needs the driver after that has gone, not earlier; nothing starts them again but
// StartEnded.
type Sidecars struct {
	cfg       SidecarConfig
	processes map[string]*process.Process
}

// StartSidecars starts all. They are of use once the driver serves its socket.
func StartSidecars(ctx context.Context, cfg SidecarConfig) (*Sidecars, error) {
	s := &Sidecars{cfg: cfg, processes: map[string]*process.Process{}}
	if err := s.StartEnded(); err != nil {
		return nil, errors.Join(err, s.Stop(context.WithoutCancel(ctx)))
	}
	return s, nil
}

// args of each sidecar. None elects a leader: the driver does, and has calls wait while it does not
// lead.
func (cfg SidecarConfig) args(name string) []string {
	args := []string{
		"--csi-address=" + cfg.Socket, "--kubeconfig=" + cfg.Kubeconfig, "--leader-election=false",
		// The driver's own deadlines are shorter, and its answers say more than a timeout here.
		"--timeout=60s", "--kube-api-qps=100", "--kube-api-burst=200", "--v=2",
	}
	if name == "csi-provisioner" {
		args = append(args, "--feature-gates=Topology=true", "--strict-topology=true", "--immediate-topology=false",
			"--extra-create-metadata", "--worker-threads=100",
			// There is no pod that could own the capacity objects.
			"--enable-capacity", "--capacity-ownerref-level=-1", "--capacity-poll-interval=10s")
	}
	if name == "csi-snapshotter" {
		args = append(args, groupSnapshots)
	}
	return append(args, cfg.Args[name]...)
}

// StartEnded starts those that do not run, as the kubelet does with a pod's containers. It must not
// be called from two goroutines at once.
func (s *Sidecars) StartEnded() error {
	for _, name := range s.cfg.Names() {
		if p := s.processes[name]; p != nil && p.Err() == nil {
			continue
		}
		path := s.cfg.Programs[name]
		if path == "" {
			return fmt.Errorf("no path of %s given", name)
		}
		p, err := process.Start(process.Spec{
			Name: s.cfg.Name + "/" + name, Path: path, Args: s.cfg.args(name), Log: s.log(name),
			Env: []string{"NAMESPACE=" + s.cfg.Namespace, "POD_NAME=" + s.cfg.Name},
		})
		if err != nil {
			return err
		}
		s.processes[name] = p
	}
	return nil
}

func (s *Sidecars) log(name string) string {
	return filepath.Join(s.cfg.Dir, s.cfg.Name+"."+name+".log")
}

// Logs gives the log file of each sidecar by its name.
func (s *Sidecars) Logs() map[string]string {
	logs := map[string]string{}
	for _, name := range s.cfg.Names() {
		logs[s.cfg.Name+"/"+name] = s.log(name)
	}
	return logs
}

// Failed is nil while all run, and otherwise says which one has ended and why.
func (s *Sidecars) Failed() error {
	var failed []error
	for _, p := range s.processes {
		failed = append(failed, p.Err())
	}
	return errors.Join(failed...)
}

// Stop asks all to end and returns when they are gone.
func (s *Sidecars) Stop(ctx context.Context) error {
	var failed []error
	for _, p := range s.processes {
		failed = append(failed, p.Stop(ctx, 5*time.Second))
	}
	return errors.Join(failed...)
}
