//go:build e2e

package operators

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// pages in the order in which one world can go through them; the last one ends it.
var pages = []string{
	"see-the-state", "troubleshooting", "trim", "plan-a-migration", "hosts/rolling-reboot", "ceph-maintenance", "cache-disk-full", "upgrade",
	"hosts/host-died", "redundancy", "hosts/disk-replaced", "hosts/host-reinstalled", "hosts/group-added", "hosts/move-a-volume",
	"hosts/replace-a-host", "hosts/group-removed", "uninstall",
}

const hostShell = "it is for a shell on a host, and the hosts here have no disks"

// outOfReach are the commands of these pages that this test cannot run, by how they begin, and why.
var outOfReach = map[string]string{
	"helm ":            "there is no release here; test/chart's tests install, upgrade and uninstall the chart",
	"vgs ":             hostShell,
	"vgcreate":         hostShell,
	"vgremove":         hostShell,
	"rm -r /":          hostShell,
	"grep -l ":         hostShell,
	"cat node.keyring": "it needs keyrings of Ceph",
	"kubectl -n escache-system create secret generic escache-ceph-node": "it needs keyrings of Ceph",
	"rm node.keyring":                        "it removes those keyrings",
	"kubectl escache explain snapshot/NAME":  "NAME is for the reader to put in",
	"kubectl -n escache-system port-forward": "there are no pods here; test/e2e/chart asks the page in one",
}

// elsewhere are the pages whose commands are not run here, and why.
var elsewhere = map[string]string{
	"../README":         "its commands are those of install and plan-a-migration, and make demo",
	"adopt-and-release": "test/e2e/controller adopts and releases images of a real Ceph",
	"alerts":            "test/e2e/controller runs csi-controller orphans",
	"backup":            "it needs Velero and volume snapshots",
	"disaster-recovery": "test/e2e/controller makes lost records anew, with a real Ceph; its other commands are for a host's shell",
	"filesystem-errors": "it needs a device with a filesystem",
	"install":           "test/e2e/chart, test/e2e/release and test/release run its commands",
	"parameters":        "test/e2e/controller changes volumes with a VolumeAttributesClass",
	"performance":       "its commands measure real disks and networks",
	"release":           "test/release makes a release",
	"restore-etcd":      "test/e2e/controller makes records anew that were set back",
	"rook":              "it needs Rook",
	"security":          "its commands are for an administrator of Ceph; test/e2e/controller uses these caps",
	"sizing":            "its commands start emulated hosts, or are for a shell on a host; internal/escached/lvm tests what they say of LVM",
	"snapshots":         "its commands change the release; test/e2e/controller takes snapshots",
	"velero":            "it needs Velero",
}

// fails are the commands that fail in the state in which their pages have them run, as the pages say.
var fails = map[string]string{
	"kubectl escache replace-host n3 n4": "it fails while pods on n3 are not drained, and says what to do",
}

// runDocs runs every command of every page, as it stands there.
func (w *world) runDocs(t *testing.T) {
	w.replicate(t)
	own := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "escache-system"}} // the tests before may have made it
	must(t, client.IgnoreAlreadyExists(w.api.Create(t.Context(), own)))
	scenes, played := w.scenes(), map[string]bool{}
	play := func(t *testing.T, key string) {
		t.Helper()
		if happens, known := scenes[key]; known {
			happens(t)
			played[key] = true
		}
	}
	for _, name := range pages {
		went := t.Run(name, func(t *testing.T) {
			play(t, "begin "+name)
			for _, command := range commandsOf(t, filepath.Join(checkout, "docs", name+".md")) {
				play(t, "before "+name+": "+command)
				w.runDoc(t, command)
				play(t, "after "+name+": "+command)
			}
			play(t, "end "+name)
		})
		if !went {
			t.Fatal("the pages after it begin with what it leaves")
		}
	}
	for key := range scenes {
		if !played[key] {
			t.Errorf("no page has come to %q", key)
		}
	}
}

func (w *world) runDoc(t *testing.T, command string) {
	t.Helper()
	if why := notRun(command); why != "" {
		t.Logf("not run: %s (%s)", command, why)
		return
	}
	words := wordsOf(t, command)
	if words[0] != "kubectl" {
		t.Fatalf("nobody knows how to run %q", command)
	}
	t.Log(command)
	if words[1] == "escache" {
		for i, word := range words { // what a page writes goes into the test's own directory
			if strings.HasPrefix(word, "/tmp/") {
				words[i] = filepath.Join(t.TempDir(), filepath.Base(word))
			}
		}
		w.beat(t, "n4")                                                                                         // no kubelet says that it lives
		late := time.AfterFunc(4*time.Minute, func() { panic("a command of a page does not end: " + command) }) // it has no end of its own
		defer late.Stop()
		exit := 0
		if fails[command] != "" {
			exit = 1
		}
		w.escache(t, exit, words[2:]...)
		return
	}
	for i, word := range words {
		if strings.HasPrefix(word, "charts/") {
			words[i] = filepath.Join(checkout, word)
		}
	}
	w.kubectl(t, words[1:]...)
}

// wordsOf splits a command as a shell does.
func wordsOf(t *testing.T, command string) []string {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "sh", "-c", `for word in `+command+`; do printf '%s\n' "$word"; done`).Output()
	must(t, err)
	return strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
}
