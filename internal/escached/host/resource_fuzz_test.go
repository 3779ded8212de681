package host

import (
	"errors"
	"fmt"
	"net"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/lvm"
	"github.com/escache/escache-csi/internal/escached/volume"
)

// FuzzResource writes the resource of a volume with any names and addresses that a request or the
// configuration may have, and reads it back by the rules of drbdadm's own scanner: every word must
// come back as it was given, and nothing else may be there.
func FuzzResource(f *testing.F) {
	f.Add("rbd", "escache-pvc-2d1c7c9e", "n1", "10.0.0.1", "n2", "10.0.0.2", "100M", "escache", 7800, 100)
	f.Add("a.b_c-d", "0", "worker-1.example.org", "fd00::1", "n2", "FD00:0:0::2", "4M", "vg_0.x+y", 65535, 1048575)
	f.Add("disk", "on", "on", "2001:db8:1:2:3:4:5:6", "disk", "::1", "1", "address", 1, 0)
	f.Fuzz(func(t *testing.T, pool, image, local, localAddress, peer, peerAddress, rate, group string, port, minor int) {
		cfg := escached.DefaultConfig()
		cfg.Node, cfg.Address, cfg.VolumeGroup, cfg.DRBD.ResyncRate = local, localAddress, group, rate
		request := escache.ReplicaRequest{
			VolumeRef: escache.VolumeRef{Pool: pool, Image: image}, SizeBytes: 1 << 30, CacheBytes: 1 << 30, Port: port, Minor: minor,
			Nodes: []escache.ReplicaNode{{Name: local, Address: localAddress}, {Name: peer, Address: peerAddress}},
		}
		if cfg.Validate() != nil || !isValid(request) {
			return // the edge refuses it
		}
		handlers := Handlers{
			FencePeer:  "/usr/sbin/escached fence-peer --config /etc/escache/escached.yaml",
			DiskFailed: "/usr/sbin/escached disk-failed --config /etc/escache/escached.yaml",
		}
		r := New(cfg, local, handlers, Layers{Store: lvm.New(group, nil)}).Resource(volume.Volume{
			VolumeRef: request.VolumeRef, Port: port, Minor: minor, Self: request.Nodes[0], Peer: request.Nodes[1],
		}, "")
		if r.Check() != nil {
			return // PutReplica refuses it
		}
		got, err := words(string(r.Text()))
		if err != nil {
			t.Fatalf("%v\n%s", err, r.Text())
		}
		secret := slices.Index(got, "shared-secret") + 1
		want := slices.Concat(
			[]string{"resource", r.Name, "{", "net", "{"},
			strings.Fields("protocol C ; ping-int 1 ; ping-timeout 10 ; timeout 20 ; connect-int 1 ; max-buffers 16000 ; cram-hmac-alg sha256 ; shared-secret"),
			[]string{got[secret], ";", "}"},
			strings.Fields("disk { on-io-error call-local-io-error ; fencing resource-and-stonith ; c-plan-ahead 0 ; resync-rate"),
			[]string{rate, ";", "}", "handlers", "{", "fence-peer", r.FencePeer, ";", "local-io-error", r.DiskFailed, ";", "}"},
			[]string{"device", fmt.Sprintf("/dev/drbd%d", minor), "minor", fmt.Sprint(minor), ";", "disk", r.Disk, ";", "meta-disk", "internal", ";"},
			section(local, localAddress, port), section(peer, peerAddress, port), []string{"}"},
		)
		if !reflect.DeepEqual(normal(got), want) {
			t.Errorf("drbdadm reads\n%q\nwant\n%q", normal(got), want)
		}
	})
}

var volumeName = regexp.MustCompile(`^[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}$`)

// isValid is what internal/escached/server accepts.
func isValid(r escache.ReplicaRequest) bool {
	for _, n := range r.Nodes {
		if !escached.IsNodeName(n.Name) || net.ParseIP(n.Address) == nil {
			return false
		}
	}
	return volumeName.MatchString(r.Pool) && volumeName.MatchString(r.Image) && r.Port >= 1 && r.Port <= 65535 &&
		r.Minor >= 0 && r.Minor < 1<<20
}

// section is what drbdadm must read for one end of the link. Addresses are compared as addresses:
// they may be written in another way.
func section(host, address string, port int) []string {
	out := []string{"on", host, "{", "address"}
	ip := net.ParseIP(address)
	if ip.To4() == nil {
		out = append(out, "ipv6", "[", ip.String(), "]")
	} else {
		out = append(out, ip.String())
	}
	return append(out, ":", fmt.Sprint(port), ";", "}")
}

// normal writes addresses in their usual form.
func normal(words []string) []string {
	for i, w := range words {
		if ip := net.ParseIP(w); ip != nil && i > 0 && (words[i-1] == "[" || words[i-1] == "address") {
			words[i] = ip.String()
		}
	}
	return words
}

// The words of drbd.conf (drbd-utils 9.22, user/v84/drbdadm_scanner.fl).
const (
	hex4 = `[0-9a-fA-F]{1,4}`
	ipv4 = `(?:[0-9]{1,3}\.){3}[0-9]{1,3}`
	ipv6 = `(?:(?:(?:` + hex4 + `:){0,5}` + hex4 + `)?:(?:` + hex4 + `)?:(?:` + hex4 + `(?::` + hex4 + `){0,5})?|::[fF]{4}:` + ipv4 + `)`
)

var (
	quoted = regexp.MustCompile(`^"((?:[^"\\\n]|\\[^\n]){0,255})"`)
	bare   = regexp.MustCompile(`^(?:[{};:\[\]]|[a-zA-Z0-9/._-]{1,128})`)
	sixth  = regexp.MustCompile(`^` + ipv6)
	escape = regexp.MustCompile(`\\(.)`)
	blank  = regexp.MustCompile(`^(?:[ \t\r\n]+|#[^\n]*)`)
)

// words splits a drbd.conf as drbdadm does. An IPv6 address is one only in brackets.
func words(text string) (out []string, err error) {
	for text != "" {
		if gap := blank.FindString(text); gap != "" {
			text = text[len(gap):]
			continue
		}
		word, plain := "", ""
		switch inBrackets := len(out) > 0 && out[len(out)-1] == "["; {
		case inBrackets:
			word = sixth.FindString(text)
			plain = word
		case text[0] == '"':
			if m := quoted.FindStringSubmatch(text); m != nil {
				word, plain = m[0], escape.ReplaceAllString(m[1], "$1")
			}
		default:
			word = bare.FindString(text)
			plain = word
		}
		if word == "" {
			return out, errors.New("drbdadm cannot read " + strconv.Quote(text[:min(len(text), 40)]))
		}
		out, text = append(out, plain), text[len(word):]
	}
	return out, nil
}
