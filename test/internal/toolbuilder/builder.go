// Package toolbuilder builds the programs that labs and tests run from Go modules: Kubernetes,
// etcd, containerd, CSI sidecars, Helm. The modules under hack/tools pin their versions. The
// programs go to the shared cache, under a key made of everything they depend on.
//
// It exists beside `go tool -modfile=hack/tools/NAME/go.mod NAME`, which runs the other tools
// there, because these programs need linker flags: a version stamped in, and small static files,
// since the lab copies them to hosts.
package toolbuilder

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"

	"github.com/escache/escache-csi/test/internal/buildcache"
	"github.com/escache/escache-csi/test/internal/progress"
)

// Builder builds tools of one checkout.
type Builder struct {
	root  string // of the checkout
	cache *buildcache.Cache
	out   *progress.Printer
}

// New returns a Builder for the checkout that dir is in. It prints each build on out.
func New(dir string, cache *buildcache.Cache, out *progress.Printer) (*Builder, error) {
	root, err := checkout(dir)
	if err != nil {
		return nil, err
	}
	return &Builder{root: root, cache: cache, out: out}, nil
}

// checkout returns the first directory from dir upwards that holds hack/tools.
func checkout(dir string) (string, error) {
	start, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	for dir = start; ; dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "hack", "tools", "kubernetes", "go.mod")); err == nil {
			return dir, nil
		}
		if dir == filepath.Dir(dir) {
			return "", fmt.Errorf("%s is not inside a checkout of this project", start)
		}
	}
}

// Path returns the path of a tool, and builds it first if the cache lacks it. Of several callers,
// in this checkout or another, one builds and the others wait.
func (b *Builder) Path(ctx context.Context, name string) (string, error) {
	s, err := find(name)
	if err != nil {
		return "", err
	}
	dir, err := b.build(ctx, s)
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, name), nil
}

// Paths returns the paths of several tools by name; see Path.
func (b *Builder) Paths(ctx context.Context, names ...string) (map[string]string, error) {
	paths := map[string]string{}
	for _, name := range names {
		path, err := b.Path(ctx, name)
		if err != nil {
			return nil, err
		}
		paths[name] = path
	}
	return paths, nil
}

// Module returns the directory with the source of a Go module, in the version from which a set of
// tools is built.
func (b *Builder) Module(ctx context.Context, set, path string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "mod", "download", "-json", path)
	cmd.Dir = filepath.Join(b.root, "hack", "tools", set)
	cmd.Env = append(os.Environ(), buildEnv()...)
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("download %s: %w: %s", path, err, out)
	}
	var module struct {
		Dir string `json:"Dir"`
	}
	if err := json.Unmarshal(out, &module); err != nil {
		return "", fmt.Errorf("download %s: %w", path, err)
	}
	return module.Dir, nil
}

// All builds every tool, one after the other: each build uses all cores.
func (b *Builder) All(ctx context.Context) error {
	for _, s := range all() {
		if _, err := b.build(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

// Fetch downloads the modules that the tools are built from. To list what a
// program is made of, the go command needs all of their source, and nothing more.
func (b *Builder) Fetch(ctx context.Context) error {
	for _, s := range all() {
		cmd := exec.CommandContext(ctx, "go", "list", "-deps", s.pkg)
		cmd.Dir = filepath.Join(b.root, "hack", "tools", s.module)
		cmd.Env = append(os.Environ(), buildEnv()...)
		var problems bytes.Buffer
		cmd.Stderr = &problems
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("download what %s is built from: %w\n%s", s.names[0], err, problems.String())
		}
	}
	return nil
}

// build returns the directory that holds the set's programs.
func (b *Builder) build(ctx context.Context, s set) (string, error) {
	module := filepath.Join(b.root, "hack", "tools", s.module)
	version, err := versionOf(ctx, module, s.requires)
	if err != nil {
		return "", err
	}
	args := []string{"build", "-trimpath", "-ldflags", s.ldflags(version), s.pkg}
	key, err := cacheKey(ctx, module, args)
	if err != nil {
		return "", err
	}
	return b.cache.Get(ctx, "tools", s.names[0]+"-"+version+"-"+key, func(ctx context.Context, dir string) (err error) {
		end := b.out.Step(fmt.Sprintf("build %s %s from Go modules", strings.Join(s.names, ", "), version))
		defer func() { end(err) }()
		return compile(ctx, module, filepath.Join(dir, s.names[0]), args, s.names[1:])
	})
}

// compile runs the go command at low priority, because a cold build uses all cores for minutes, and
// links the other names to the program.
func compile(ctx context.Context, module, program string, args, links []string) error {
	build := []string{"-n", "10", "go", args[0], "-o", program}
	cmd := exec.CommandContext(ctx, "nice", append(build, args[1:]...)...)
	cmd.Dir = module
	cmd.Env = append(os.Environ(), buildEnv()...)
	// The compilers are children of the go command: only a signal to the group ends them too.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGTERM) }
	var output bytes.Buffer
	cmd.Stdout, cmd.Stderr = &output, &output
	runtime.LockOSThread() // the parent-death signal follows the thread that forks
	defer runtime.UnlockOSThread()
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("build %s in %s: %w\n%s", filepath.Base(program), module, err, output.String())
	}
	for _, link := range links {
		if err := os.Symlink(filepath.Base(program), filepath.Join(filepath.Dir(program), link)); err != nil {
			return err
		}
	}
	return nil
}

// buildEnv makes builds depend only on the module: static, without workspace, writes to go.mod, or
// version control.
func buildEnv() []string {
	return []string{"CGO_ENABLED=0", "GOWORK=off", "GOFLAGS=-mod=readonly -buildvcs=false"}
}

// cacheKey covers everything that can change the result: the module's own files, the arguments and
// the Go version.
func cacheKey(ctx context.Context, module string, args []string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", "env", "GOVERSION", "GOOS", "GOARCH", "GOAMD64", "GOEXPERIMENT")
	cmd.Dir = module
	compiler, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("ask for the Go version (is go installed?): %w", err)
	}
	parts := append([]string{string(compiler)}, append(args, buildEnv()...)...)
	var files []string
	for _, pattern := range []string{"go.mod", "go.sum", "*.go"} {
		matches, err := filepath.Glob(filepath.Join(module, pattern))
		if err != nil {
			return "", err
		}
		files = append(files, matches...)
	}
	slices.Sort(files)
	for _, path := range files {
		content, err := os.ReadFile(path)
		if err != nil {
			return "", err
		}
		parts = append(parts, filepath.Base(path), string(content))
	}
	return buildcache.Key(parts...), nil
}

// versionOf returns the version of another module that a module's go.mod requires.
func versionOf(ctx context.Context, module, required string) (string, error) {
	out, err := exec.CommandContext(ctx, "go", "mod", "edit", "-json", filepath.Join(module, "go.mod")).Output()
	if err != nil {
		return "", fmt.Errorf("read %s/go.mod (is go installed?): %w", module, err)
	}
	var mod struct {
		Require []struct {
			Path    string `json:"Path"`
			Version string `json:"Version"`
		} `json:"Require"`
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return "", err
	}
	for _, require := range mod.Require {
		if require.Path == required {
			return require.Version, nil
		}
	}
	return "", fmt.Errorf("%s/go.mod does not require %s", module, required)
}

// ldflags returns the flags that strip the program and stamp its version into it.
func (s set) ldflags(version string) string {
	flags := "-s -w"
	if s.variables == nil {
		return flags
	}
	variables := s.variables(version)
	for _, variable := range slices.Sorted(maps.Keys(variables)) {
		flags += " -X " + variable + "=" + variables[variable]
	}
	return flags
}
