package supervisor

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/escache/escache-csi/test/internal/buildcache"
	"github.com/escache/escache-csi/test/internal/hostimage"
	"github.com/escache/escache-csi/test/internal/progress"
	"github.com/escache/escache-csi/test/lab/labclient"
)

// program is one of this checkout that goes into the nodes, to /usr/local/bin.
type program struct {
	name, source string
	tags         string
	// needed programs must build; others are left out while their source is not there.
	needed bool
}

func (p *Plan) programs() []program {
	list := []program{
		{name: "lab-agent", source: "test/lab/agent", needed: true},
		{name: "blockcheck", source: "test/blockcheck"},
	}
	if !p.Bare {
		list = append(list, program{name: "escached", source: "cmd/escached", tags: "crashpoint"})
		list = append(list, program{name: "escache-cache", source: "cmd/escache-cache", tags: "crashpoint"})
	}
	if p.Driver {
		list = append(list, program{name: "csi-node", source: "cmd/csi-node", tags: "crashpoint", needed: true})
	}
	return list
}

// Prepare gets everything that needs a network or a compiler, since the lab itself has neither.
func Prepare(ctx context.Context, location labclient.Location, options Options, steps *progress.Printer) (Plan, error) {
	plan := Plan{Options: options, Location: location, Begun: time.Now()}
	groups := []string{"lab"}
	if options.Driver {
		groups = append(groups, "build")
	}
	if err := steps.Do("packages", func() error { return setup(ctx, location.Checkout, groups...) }); err != nil {
		return plan, err
	}
	cache, err := buildcache.Open("")
	if err != nil {
		return plan, err
	}
	flavour := hostimage.Base()
	if options.Kubernetes {
		plan.MemoryMiB = max(plan.MemoryMiB, kubernetesMemoryMiB)
		if flavour, err = plan.kubernetesFlavour(ctx, cache, steps); err != nil {
			return plan, err
		}
	}
	err = steps.Do("host image", func() error {
		plan.Image, err = hostimage.Build(ctx, cache, flavour, func(step string) { steps.Sayf("host image: %s", step) })
		return err
	})
	if err != nil {
		return plan, err
	}
	err = steps.Do("programs", func() error { return plan.build(ctx) })
	if err == nil && options.Driver {
		err = steps.Do("csi-controller", func() error { return plan.buildController(ctx) })
	}
	return plan, err
}

func setup(ctx context.Context, checkout string, groups ...string) error {
	cmd := exec.CommandContext(ctx, filepath.Join(checkout, "hack", "setup.sh"), groups...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("install packages (hack/setup.sh %s): %w", strings.Join(groups, " "), err)
	}
	return nil
}

// build compiles the programs for the nodes and packs them.
func (p *Plan) build(ctx context.Context) error {
	p.Programs = filepath.Join(p.Location.StateDir, "programs.tar")
	pack, err := os.Create(p.Programs)
	if err != nil {
		return fmt.Errorf("pack programs: %w", err)
	}
	defer pack.Close()
	out := tar.NewWriter(pack)
	for _, program := range p.programs() {
		sources, err := filepath.Glob(filepath.Join(p.Location.Checkout, program.source, "*.go"))
		if err != nil || len(sources) == 0 {
			if program.needed {
				return fmt.Errorf("%s is missing in this checkout", program.source)
			}
			continue
		}
		binary := filepath.Join(p.Location.StateDir, "bin", program.name)
		if err := compile(ctx, p.Location.Checkout, program, binary); err != nil {
			return err
		}
		if err := addFile(out, binary, "usr/local/bin/"+program.name); err != nil {
			return err
		}
		p.HasEscached = p.HasEscached || program.name == "escached"
	}
	if err := errors.Join(out.Close(), pack.Close()); err != nil {
		return fmt.Errorf("pack programs: %w", err)
	}
	return os.RemoveAll(filepath.Join(p.Location.StateDir, "bin"))
}

func compile(ctx context.Context, checkout string, program program, binary string) error {
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-ldflags", "-s -w", "-tags", program.tags,
		"-o", binary, "./"+program.source)
	cmd.Dir = checkout
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s: %w\n%s", program.source, err, complaints.Bytes())
	}
	return nil
}

func addFile(out *tar.Writer, path, name string) error {
	file, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	defer file.Close()
	info, err := file.Stat()
	if err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	if err := out.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: info.Size(), ModTime: info.ModTime()}); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	if _, err := io.Copy(out, file); err != nil {
		return fmt.Errorf("pack %s: %w", name, err)
	}
	return nil
}
