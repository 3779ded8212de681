//go:build e2e

package chart

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
)

// secrets looks for the keys of Ceph and of TLS, which the driver has used by now while it logged
// all it can, in whatever others may read.
func secrets(t *testing.T, w *world) {
	planted := w.planted(t)
	look := func(where, text string, marks ...string) {
		t.Helper()
		for _, mark := range marks {
			if !strings.Contains(text, mark) {
				t.Errorf("%s does not have %q, so nothing was looked at:\n%.2000s", where, mark, text)
			}
		}
		for name, secret := range planted {
			for _, form := range []string{
				secret, base64.StdEncoding.EncodeToString([]byte(secret)), url.QueryEscape(secret), hex.EncodeToString([]byte(secret)),
			} {
				if at := strings.Index(text, form); at >= 0 {
					t.Errorf("%s: %s is in it, after %q", where, name, text[max(0, at-80):at])
				}
			}
		}
	}
	volume := w.volume(t, "first")
	// Those of csi-controller are from after the last fault: it has to have done something since.
	_, err := w.escache(t, "flush", "first", "--wait")
	check(t, err)
	w.endFlushes(t)
	for component, marks := range map[string][]string{
		"controller": {`"kind":"CacheFlush"`, `"level":"DEBUG"`}, "node": {volume, `"level":`}, "escached": {"level=DEBUG"},
	} {
		look("the logs of "+component, w.kubectl(t, "-n", namespace, "logs", "-l", "app.kubernetes.io/component="+component, "--all-containers",
			"--prefix", "--tail=-1", "--max-log-requests=30"), marks...)
	}
	look("Events and records", w.kubectl(t, "get", "events,cachevolumes,nodegroups,persistentvolumes,volumeattachments,leases,configmaps,pods,"+
		"storageclasses,csinodes,nodes,deployments,daemonsets", "-A", "-o", "json"), volume)
	for _, h := range w.hosts {
		look("argv and environment of all processes on "+h.Name, w.shell(t, h.Name,
			`cd /proc; for p in [0-9]*; do cat $p/cmdline | tr '\0' ' '; echo; done 2>/dev/null
			for p in $(pgrep -f 'escached|csi-|ceph'); do cat $p/environ | tr '\0' ' '; echo; done 2>/dev/null # some have ended`), "--config=/etc/escache", "PATH=")
		look("files of "+h.Name, w.shell(t, h.Name, `for f in $(find /etc/escache /etc/drbd.d /run/escache /var/log /dev/escache /etc/ceph -type f 2>/dev/null); do
			echo "== $f"; cat "$f"; done; dmesg`), "== /etc/escache/escached.yaml", "== /var/log/kubelet.log", "rbd")
	}
	bundle := filepath.Join(t.TempDir(), "bundle.tar.gz")
	_, err = w.escache(t, "support-bundle", "-f", bundle)
	check(t, err)
	text, err := w.try(t.Context(), "", "tar", "-xOzf", bundle)
	check(t, err)
	look("the support bundle", text, volume)
}

// planted are the secrets that there are, by what they are.
func (w *world) planted(t *testing.T) map[string]string {
	t.Helper()
	planted := map[string]string{}
	for name, keys := range map[string][]string{
		"escache-ceph-controller": {"keyring"}, "escache-ceph-node": {"keyring"},
		"escache-controller-tls": {"tls.key"}, "escache-hosts-authority": {"tls.key"}, "escache-tls-authority": {"servers.key", "clients.key"},
	} {
		data := w.secret(t, name)
		for _, key := range keys {
			// The key itself is in the second line: "key = …" of a keyring, and the first line of
			// what PEM encodes.
			lines := strings.Split(string(data[key]), "\n")
			if len(lines) < 2 {
				t.Fatalf("%s of %s: %d lines", key, name, len(lines))
			}
			_, value, found := strings.Cut(lines[1], "key = ")
			if !found {
				value = lines[1]
			}
			if len(value) < 30 {
				t.Fatalf("%s of %s has no key in its second line", key, name)
			}
			planted[key+" of "+name] = value
		}
	}
	value := w.secret(t, "escache-replication")["secret"]
	if len(value) < 32 {
		t.Fatalf("the replication links' secrets are derived from %d bytes", len(value))
	}
	planted["secret of escache-replication"] = string(value)
	return planted
}

// secret is what a Secret of the release has, by key.
func (w *world) secret(t *testing.T, name string) map[string][]byte {
	t.Helper()
	var secret corev1.Secret
	check(t, json.Unmarshal([]byte(w.kubectl(t, "-n", namespace, "get", "secret", name, "-o", "json")), &secret))
	return secret.Data
}
