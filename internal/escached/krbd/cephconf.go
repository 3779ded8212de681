package krbd

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strconv"
	"strings"
)

// ErrConfig means that ceph.conf or the keyring lacks something that a map needs.
var ErrConfig = errors.New("Ceph's client configuration is incomplete") //nolint:staticcheck // a name

// ini reads the sections of ceph.conf or a keyring. Keys may be written with spaces, underscores or
// dashes.
func ini(path string) (map[string]map[string]string, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	out := map[string]map[string]string{}
	section := "global"
	text := strings.ReplaceAll(string(data), "\\\n", " ")
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if i := strings.IndexAny(line, "#;"); i >= 0 && !strings.Contains(line[:i], "=") {
			line = strings.TrimSpace(line[:i]) // comments; a ';' may also separate monitors
		}
		if name, ok := strings.CutPrefix(line, "["); ok && strings.HasSuffix(name, "]") && !strings.Contains(name, "=") {
			section = strings.TrimSuffix(name, "]")
			continue
		}
		key, value, ok := strings.Cut(line, "=")
		if !ok {
			continue
		}
		key = strings.ToLower(strings.NewReplacer(" ", "_", "-", "_").Replace(strings.TrimSpace(key)))
		value, _, _ = strings.Cut(value, "#")
		if out[section] == nil {
			out[section] = map[string]string{}
		}
		out[section][key] = strings.Trim(strings.TrimSpace(value), `"`)
	}
	return out, nil
}

// monitors returns the v1 addresses "IP:PORT" of mon_host.
func monitors(ctx context.Context, confPath, user string) ([]string, error) {
	conf, err := ini(confPath)
	if err != nil {
		return nil, err
	}
	hosts := ""
	for _, section := range []string{"client." + user, "client", "global"} {
		if hosts = conf[section]["mon_host"]; hosts != "" {
			break
		}
	}
	mons, err := parseMonHost(hosts, func(host string) ([]string, error) {
		return net.DefaultResolver.LookupHost(ctx, host)
	})
	if err != nil {
		return nil, fmt.Errorf("mon_host in %s: %w", confPath, err)
	}
	return mons, nil
}

// One address of mon_host: an optional protocol, a host (IPv6 in brackets), an optional port and
// nonce. Groups such as [v2:A:3300,v1:A:6789] need no grammar of their own: their brackets match
// nothing.
var monAddress = regexp.MustCompile(`(?:\b(v1|v2|any):)?(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][A-Za-z0-9._-]*)(?::(\d+))?(?:/\d+)?`)

func parseMonHost(value string, lookup func(string) ([]string, error)) ([]string, error) {
	if value == "" {
		return nil, fmt.Errorf("%w: it is not set", ErrConfig)
	}
	var out []string
	for _, m := range monAddress.FindAllStringSubmatch(value, -1) {
		protocol, host, port := m[1], strings.Trim(m[2], "[]"), m[3]
		if protocol == "v2" || protocol == "" && port == "3300" {
			continue // krbd uses the v1 protocol, which every monitor of these releases serves
		}
		if port == "" {
			port = "6789"
		}
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("%w: %q is not a port", ErrConfig, port)
		}
		ips := []string{host}
		if net.ParseIP(host) == nil {
			var err error
			if ips, err = lookup(host); err != nil {
				return nil, fmt.Errorf("%w: the kernel needs IP addresses, and %q does not resolve to one: %w", ErrConfig, host, err)
			}
		}
		for _, ip := range ips {
			out = append(out, net.JoinHostPort(ip, port))
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("%w: no v1 address in %q; add v1:IP:6789", ErrConfig, value)
	}
	return out, nil
}

// secret returns the user's key.
func secret(keyringPath, user string) (string, error) {
	keys, err := ini(keyringPath)
	if err != nil {
		return "", err
	}
	key := keys["client."+user]["key"]
	if key == "" {
		return "", fmt.Errorf("%w: no key of client.%s in %s", ErrConfig, user, keyringPath)
	}
	return key, nil
}
