package conformance

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
)

// Environment variables that name a target.
const (
	EnvEndpoint     = "ESCACHE_ENDPOINT"      // https://HOST:PORT or unix:///PATH of the first host's API
	EnvPeerEndpoint = "ESCACHE_PEER_ENDPOINT" // the same of the second host
	EnvHost         = "ESCACHE_HOST"          // NAME=ADDRESS of the first host, as replica requests have them
	EnvPeerHost     = "ESCACHE_PEER_HOST"     // the same of the second host
	EnvTLSCA        = "ESCACHE_TLS_CA"
	EnvTLSCert      = "ESCACHE_TLS_CERT"
	EnvTLSKey       = "ESCACHE_TLS_KEY"
	EnvOtherCert    = "ESCACHE_TLS_OTHER_CERT" // see Target.Other
	EnvOtherKey     = "ESCACHE_TLS_OTHER_KEY"
	EnvPool         = "ESCACHE_POOL"
	EnvHook         = "ESCACHE_HOOK"        // see Hook
	EnvFirstPort    = "ESCACHE_FIRST_PORT"  // 64 ports from here on are free on both hosts
	EnvFirstMinor   = "ESCACHE_FIRST_MINOR" // the same for minors
)

// ErrNoTarget says that the environment names no endpoint at all.
var ErrNoTarget = errors.New("no target: set " + EnvEndpoint + " and the variables beside it to check an implementation")

// FromEnvironment reads a target from environment variables. Without an endpoint it returns
// ErrNoTarget.
func FromEnvironment() (Target, error) {
	if os.Getenv(EnvEndpoint) == "" && os.Getenv(EnvPeerEndpoint) == "" {
		return Target{}, ErrNoTarget
	}
	var errs []error
	need := func(name string) string {
		value := os.Getenv(name)
		if value == "" {
			errs = append(errs, fmt.Errorf("%s is not set", name))
		}
		return value
	}
	number := func(name string) int {
		n, err := strconv.Atoi(need(name))
		if err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", name, err))
		}
		return n
	}
	hook := Hook(need(EnvHook))
	host := func(endpoint, nameAndAddress string) Host {
		h := Host{TLS: TLSFiles{CA: os.Getenv(EnvTLSCA), Cert: os.Getenv(EnvTLSCert), Key: os.Getenv(EnvTLSKey)}}
		if path, ok := strings.CutPrefix(need(endpoint), "unix://"); ok {
			h.Socket = path
		} else {
			h.URL = path
		}
		var ok bool
		if h.Name, h.Address, ok = strings.Cut(need(nameAndAddress), "="); !ok {
			errs = append(errs, fmt.Errorf("%s is not NAME=ADDRESS", nameAndAddress))
		}
		h.Devices = hook.On(h.Name)
		return h
	}
	target := Target{
		Hosts: [2]Host{host(EnvEndpoint, EnvHost), host(EnvPeerEndpoint, EnvPeerHost)}, Pool: need(EnvPool), Storage: hook,
		FailDisk: hook.FailDisk, Restart: hook.Restart,
		Other:     TLSFiles{Cert: os.Getenv(EnvOtherCert), Key: os.Getenv(EnvOtherKey)},
		FirstPort: number(EnvFirstPort), FirstMinor: number(EnvFirstMinor),
	}
	if len(errs) == 0 {
		errs = append(errs, target.Validate())
	}
	return target, errors.Join(errs...)
}
