package hostimage

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// kernel is an unpacked kernel's modules and what they depend on.
type kernel struct {
	root, version string
	files         map[string]string   // name → file below lib/modules/VERSION
	needs         map[string][]string // file → files it needs
	builtin       map[string]bool
}

func readKernel(ctx context.Context, root string) (*kernel, error) {
	found, err := filepath.Glob(root + "/lib/modules/*")
	if err != nil || len(found) != 1 {
		return nil, fmt.Errorf("one kernel expected in %s, found %v", root, found)
	}
	k := &kernel{
		root: root, version: filepath.Base(found[0]),
		files: map[string]string{}, needs: map[string][]string{}, builtin: map[string]bool{},
	}
	if _, err := output(exec.CommandContext(ctx, "depmod", "-b", root, k.version)); err != nil {
		return nil, fmt.Errorf("dependencies of the kernel's modules: %w", err)
	}
	if err := k.readLines("modules.dep", func(line string) {
		file, needs, _ := strings.Cut(line, ":")
		k.files[moduleName(file)] = file
		k.needs[file] = strings.Fields(needs)
	}); err != nil {
		return nil, err
	}
	return k, k.readLines("modules.builtin", func(line string) { k.builtin[moduleName(line)] = true })
}

func (k *kernel) dir() string { return filepath.Join(k.root, "lib/modules", k.version) }

func (k *kernel) readLines(name string, use func(line string)) error {
	file, err := os.Open(filepath.Join(k.dir(), name))
	if err != nil {
		return fmt.Errorf("read the kernel's modules: %w", err)
	}
	defer file.Close()
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		use(lines.Text())
	}
	return lines.Err()
}

// closure returns the files of modules and of all they need, those needed first. A module that the
// kernel does not have is an error.
func (k *kernel) closure(modules []string) ([]string, error) {
	var order []string
	seen := map[string]bool{}
	var visit func(file string)
	visit = func(file string) {
		if seen[file] {
			return
		}
		seen[file] = true
		for _, need := range k.needs[file] {
			visit(need)
		}
		order = append(order, file)
	}
	for _, name := range modules {
		name = moduleName(name)
		file, ok := k.files[name]
		switch {
		case ok:
			visit(file)
		case !k.builtin[name]:
			return nil, fmt.Errorf("kernel %s has no module %s", k.version, name)
		}
	}
	return order, nil
}

// install copies modules with what they need into another root tree and makes them known to
// modprobe there.
func (k *kernel) install(ctx context.Context, modules []string, root string) error {
	files, err := k.closure(modules)
	if err != nil {
		return err
	}
	target := filepath.Join(root, "lib/modules", k.version)
	files = append(files, "modules.builtin", "modules.builtin.modinfo", "modules.order")
	for _, file := range files {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(target, file)), 0o755); err != nil {
			return fmt.Errorf("install kernel modules: %w", err)
		}
		if err := copyFile(filepath.Join(k.dir(), file), filepath.Join(target, file), 0o644); err != nil {
			return err
		}
	}
	if _, err := output(exec.CommandContext(ctx, "depmod", "-b", root, k.version)); err != nil {
		return fmt.Errorf("install kernel modules: %w", err)
	}
	return nil
}

// moduleName is a module's name as the kernel spells it: a file's base name with underscores.
func moduleName(file string) string {
	return strings.ReplaceAll(strings.TrimSuffix(filepath.Base(file), ".ko"), "-", "_")
}
