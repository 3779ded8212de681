package hostimage

import (
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// libraryDirs are where the loader of a Debian host looks, in its order.
var libraryDirs = []string{"/usr/lib/x86_64-linux-gnu", "/usr/lib", "/usr/lib64", "/usr/lib/x86_64-linux-gnu/systemd"}

// tree copies chosen files of one root tree into another, each with what it links to and the
// libraries it needs.
type tree struct {
	from, to string
	done     map[string]bool
}

// add copies everything that a path or glob names. A pattern that names nothing is an error: it
// would be missed only in a running host.
func (t *tree) add(pattern string) error {
	for _, one := range braces(pattern) {
		found, err := filepath.Glob(t.from + one)
		if err != nil {
			return fmt.Errorf("pattern %q: %w", one, err)
		}
		if len(found) == 0 {
			return fmt.Errorf("no package brings %s", one)
		}
		for _, path := range found {
			if err := t.copy(strings.TrimPrefix(path, t.from)); err != nil {
				return err
			}
		}
	}
	return nil
}

func (t *tree) copy(path string) error {
	path = merged(path)
	if t.done[path] {
		return nil
	}
	t.done[path] = true
	info, err := os.Lstat(t.from + path)
	if err != nil {
		return fmt.Errorf("copy into the image: %w", err)
	}
	target := t.to + path
	if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
		return fmt.Errorf("copy into the image: %w", err)
	}
	switch {
	case info.Mode()&fs.ModeSymlink != 0:
		return t.copyLink(path, target)
	case info.IsDir():
		return nil
	default:
		if err := copyFile(t.from+path, target, info.Mode()); err != nil {
			return err
		}
		return t.copyLibraries(path)
	}
}

func (t *tree) copyLink(path, target string) error {
	to, err := os.Readlink(t.from + path)
	if err != nil {
		return fmt.Errorf("copy into the image: %w", err)
	}
	if err := os.Symlink(to, target); err != nil {
		return fmt.Errorf("copy into the image: %w", err)
	}
	if strings.HasPrefix(to, "/etc/alternatives/") {
		return t.copyAlternative(to)
	}
	if !filepath.IsAbs(to) {
		to = filepath.Join(filepath.Dir(path), to)
	}
	return t.copy(to)
}

// copyAlternative stands in for update-alternatives, which no package's files contain: the nft back
// end is the default.
func (t *tree) copyAlternative(link string) error {
	to := "/usr/sbin/" + filepath.Base(link) + "-nft"
	if err := os.MkdirAll(t.to+"/etc/alternatives", 0o755); err != nil {
		return fmt.Errorf("copy into the image: %w", err)
	}
	if err := os.Symlink(to, t.to+link); err != nil {
		return fmt.Errorf("copy into the image: %w", err)
	}
	return t.copy(to)
}

func (t *tree) copyLibraries(path string) error {
	file, err := elf.Open(t.from + path)
	if err != nil {
		var notELF *elf.FormatError
		if errors.As(err, &notELF) || errors.Is(err, io.EOF) {
			return nil
		}
		return fmt.Errorf("read %s: %w", path, err)
	}
	defer file.Close()
	needed, err := file.ImportedLibraries()
	if err != nil {
		return fmt.Errorf("libraries of %s: %w", path, err)
	}
	for _, section := range file.Progs {
		if section.Type == elf.PT_INTERP {
			if err := t.copy("/lib64/ld-linux-x86-64.so.2"); err != nil {
				return err
			}
		}
	}
	for _, name := range needed {
		library, err := t.library(name)
		if err != nil {
			return fmt.Errorf("%s: %w", path, err)
		}
		if err := t.copy(library); err != nil {
			return err
		}
	}
	return nil
}

func (t *tree) library(name string) (string, error) {
	for _, dir := range libraryDirs {
		if _, err := os.Lstat(filepath.Join(t.from, dir, name)); err == nil {
			return filepath.Join(dir, name), nil
		}
	}
	return "", fmt.Errorf("no package brings the library %s", name)
}

// merged maps /bin, /sbin and /lib to where they link to.
func merged(path string) string {
	path = filepath.Clean(path)
	for _, dir := range []string{"/bin/", "/sbin/", "/lib/", "/lib64/"} {
		if strings.HasPrefix(path, dir) {
			return "/usr" + path
		}
	}
	return path
}

// braces expands one {a,b,c} of a pattern; Glob does not know it.
func braces(pattern string) []string {
	before, rest, ok := strings.Cut(pattern, "{")
	if !ok {
		return []string{pattern}
	}
	list, after, ok := strings.Cut(rest, "}")
	if !ok {
		return []string{pattern}
	}
	var all []string
	for choice := range strings.SplitSeq(list, ",") {
		all = append(all, before+choice+after)
	}
	return all
}

func copyFile(from, to string, mode fs.FileMode) error {
	source, err := os.Open(from)
	if err != nil {
		return fmt.Errorf("copy into the image: %w", err)
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o600)
	if err != nil {
		return fmt.Errorf("copy into the image: %w", err)
	}
	_, err = io.Copy(target, source)
	if err := errors.Join(err, target.Chmod(mode.Perm()), target.Close()); err != nil {
		return fmt.Errorf("copy %s into the image: %w", from, err)
	}
	return nil
}

// copyTree copies a file or a whole tree from this machine to a path in the image.
func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(path string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(from, path)
		if err != nil {
			return err
		}
		target := filepath.Join(to, rel)
		info, err := entry.Info()
		if err != nil {
			return err
		}
		switch {
		case entry.IsDir():
			return os.MkdirAll(target, 0o755)
		case info.Mode()&fs.ModeSymlink != 0:
			link, err := os.Readlink(path)
			if err != nil {
				return err
			}
			return os.Symlink(link, target)
		}
		if err := os.MkdirAll(filepath.Dir(target), 0o755); err != nil {
			return err
		}
		return copyFile(path, target, info.Mode())
	})
}
