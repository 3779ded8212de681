package labclient

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
)

// Environment variables that say which lab is meant.
const (
	EnvName   = "LAB_NAME"   // a lab of this checkout
	EnvSocket = "LAB_SOCKET" // set inside a lab: its socket
	EnvState  = "LAB_STATE"  // set inside a lab: its directory
	EnvBin    = "LAB_BIN"    // set inside a lab with Kubernetes: a directory of tools, first in PATH
)

var labName = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,31}$`)

// Location is where a lab keeps its things, whether it runs or not.
type Location struct {
	Name     string
	Checkout string
	StateDir string // files and logs
	RunDir   string // sockets: their paths are limited to 107 characters, so not below the checkout
}

// Socket is where the lab's API is served.
func (l Location) Socket() string { return filepath.Join(l.RunDir, "api.sock") }

// FailedDir is where tests keep what hosts said when they failed. It outlives the lab, and goes
// when the next one of its name starts.
func (l Location) FailedDir() string { return l.StateDir + FailedSuffix }

// FailedSuffix follows a lab's directory to name FailedDir.
const FailedSuffix = "-failed"

// Locate finds a lab of the checkout that the working directory belongs to. An empty name means
// $LAB_NAME, or else one made from the checkout's path.
func Locate(name string) (Location, error) {
	checkout, err := findCheckout()
	if err != nil {
		return Location{}, err
	}
	if name == "" {
		name = os.Getenv(EnvName)
	}
	if name == "" {
		name = "lab"
	}
	if !labName.MatchString(name) {
		return Location{}, fmt.Errorf("%q cannot be a lab's name: use up to 32 lower-case letters, digits and hyphens", name)
	}
	state := filepath.Join(checkout, ".lab", name)
	sum := sha256.Sum256([]byte(state))
	return Location{
		Name: name, Checkout: checkout, StateDir: state,
		RunDir: filepath.Join("/run/escache-lab", name+"-"+hex.EncodeToString(sum[:4])),
	}, nil
}

func findCheckout() (string, error) {
	dir, err := os.Getwd()
	if err != nil {
		return "", fmt.Errorf("working directory: %w", err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "test", "lab")); err == nil {
			if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
				return dir, nil
			}
		}
		if dir == filepath.Dir(dir) {
			return "", errors.New("this is not a checkout of escache-csi: change into one")
		}
		dir = filepath.Dir(dir)
	}
}
