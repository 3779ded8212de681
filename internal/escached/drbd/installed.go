package drbd

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"

	"github.com/escache/escache-csi/internal/command"
)

var toolsVersion = regexp.MustCompile(`(?m)^DRBDADM_VERSION=(\d[0-9A-Za-z.~-]*)`)

// Version returns the version of drbd-utils, such as "9.22.0".
func (c *Control) Version(ctx context.Context) (string, error) {
	res, err := c.run.Run(ctx, command.Command{Name: "drbdadm", Args: []string{"--version"}, Query: true})
	if err != nil {
		return "", err
	}
	m := toolsVersion.FindSubmatch(res.Stdout)
	if m == nil {
		return "", errors.New("the output of drbdadm --version has no version of drbd-utils")
	}
	return string(m[1]), nil
}

// include is a statement of drbd.conf that names further files. Nothing else in a configuration begins a
// line with that word.
var include = regexp.MustCompile(`(?m)^\s*include\s+(?:"([^"\n]+)"|([^\s";]+))\s*;`)

// depth bounds how deep files may include files.
const depth = 8

// Included reports whether a drbd.conf includes the resources' files, also by way of other files. The kernel
// runs drbdadm, for its handlers, without a configuration of ours.
func (f Files) Included(conf string) (bool, error) {
	return f.included(conf, depth)
}

func (f Files) included(conf string, depth int) (bool, error) {
	text, err := os.ReadFile(conf) //nolint:gosec // the paths are those of the host's own configuration
	if err != nil {
		return false, err
	}
	for _, m := range include.FindAllSubmatch(text, -1) {
		pattern := string(m[1]) + string(m[2])
		if !filepath.IsAbs(pattern) {
			pattern = filepath.Join(filepath.Dir(conf), pattern)
		}
		if ok, err := filepath.Match(pattern, f.path("escache-0123456789abcdef")); ok && err == nil {
			return true, nil
		}
		more, err := filepath.Glob(pattern)
		if err != nil || depth == 0 {
			continue
		}
		for _, path := range more {
			if ok, err := f.included(path, depth-1); ok && err == nil {
				return true, nil
			}
		}
	}
	return false, nil
}
