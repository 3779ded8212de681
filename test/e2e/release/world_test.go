//go:build e2e

package release

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/internal/page"
	"github.com/escache/escache-csi/test/lab/labclient"
	"github.com/escache/escache-csi/test/labtest"
)

const (
	// docs/install.md calls it so.
	namespace = "escache-system"

	// podTime bounds getting pods to run on emulated hosts that also pull their images.
	podTime     = 15 * time.Minute
	commandTime = 5 * time.Minute
)

// world is the lab, and the reader of the docs in it.
type world struct {
	lab   *labclient.Client
	hosts []*labtest.Host
	life  context.Context
	// made is the directory that `make release` has made. registry is where the images are, and keeps
	// them in blobs.
	made, version, registry, blobs string
	// dir is the reader's working directory: the release. bin has the programs that are no part of
	// the system: kubectl, helm, and what the reader puts there. docs are the unpacked pages.
	dir, bin, docs string
	page           page.Page // docs/install.md
	fill           *strings.Replacer
	ran            []command
	began, ready   time.Time
}

// command is one that the docs tell their reader to run.
type command struct {
	text string
	took time.Duration
	// check: the reader can leave it out, and learns less.
	check bool
}

// variable is one of the environment that the script sets.
func variable(t *testing.T, name string) string {
	t.Helper()
	value := os.Getenv(name)
	if value == "" {
		t.Fatalf("%s is not set: hack/e2e-release.sh runs this", name)
	}
	return value
}

func open(t *testing.T) *world {
	t.Helper()
	client, err := labclient.Inside()
	check(t, err)
	w := &world{life: t.Context(), lab: client, hosts: labtest.Open(t).Hosts, made: variable(t, "RELEASE_DIR")}
	w.dir, w.bin, w.docs, w.blobs = t.TempDir(), t.TempDir(), t.TempDir(), t.TempDir()
	must(t, exec.CommandContext(t.Context(), "cp", "-r", w.made+"/.", w.dir))
	must(t, exec.CommandContext(t.Context(), "cp", variable(t, "RELEASE_PUB"), filepath.Join(w.dir, "release.pub")))
	archives, err := filepath.Glob(filepath.Join(w.dir, "docs_*.tar.gz"))
	if err != nil || len(archives) != 1 {
		t.Fatalf("the release has the docs %q: %v", archives, err)
	}
	must(t, exec.CommandContext(t.Context(), "tar", "-xzf", archives[0], "-C", w.docs))
	w.page = page.Read(t, filepath.Join(w.docs, "docs/install.md"))
	for _, name := range []string{"kubectl", "helm"} {
		path, err := filepath.EvalSymlinks(filepath.Join(variable(t, labclient.EnvBin), name))
		check(t, err)
		check(t, os.Symlink(path, filepath.Join(w.bin, name)))
	}
	w.remoteShell(t)
	w.version = strings.TrimSuffix(strings.TrimPrefix(filepath.Base(archives[0]), "docs_"), ".tar.gz")
	w.registry = setting(t, "public_addr") + ":5000" // where Ceph is, too
	w.fill = strings.NewReplacer(
		"0.1.0", strings.TrimPrefix(w.version, "v"),
		"registry.example.com", w.registry,
		"/usr/local/bin", w.bin,
		"10.0.0.11", w.hosts[0].Address, "10.0.0.12", w.hosts[1].Address, "10.0.0.13", w.hosts[2].Address,
		"[10.0.0.1, 10.0.0.2, 10.0.0.3]", "["+strconv.Quote(setting(t, "mon_host"))+"]",
		"6f1c…", variable(t, "LAB_CEPH_FSID"),
		// The lab reaches no Docker Hub. The page says to name escached's image then.
		"image: debian:12", "image: "+w.registry+"/escache/escached:"+w.version,
	)
	return w
}

// remoteShell makes ssh and scp lead to the lab's hosts, where the reader is root and needs no sudo.
func (w *world) remoteShell(t *testing.T) {
	t.Helper()
	lab, err := filepath.Abs("bin/lab")
	check(t, err)
	for name, script := range map[string]string{
		"ssh": `host=$1; shift; exec ` + lab + ` exec "$host" -- sh -c 'sudo() { "$@"; }; '"$*"`,
		"scp": `exec ` + lab + ` exec "${2%%:*}" -- sh -c "cat >${2#*:}$1 && chmod 755 ${2#*:}$1" <"$1"`,
	} {
		check(t, os.WriteFile(filepath.Join(w.bin, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755))
	}
}

func check(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func must(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := labtest.Output(cmd)
	check(t, err)
	return out
}

// shell is a command of the reader's shell: nothing of this process's environment is in it but the
// way to the lab, and nothing of a checkout is on its PATH.
func (w *world) shell(ctx context.Context, script string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, podTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-ec", script)
	cmd.Dir = w.dir
	cmd.Env = []string{"PATH=" + w.bin + ":/usr/sbin:/usr/bin:/sbin:/bin", "HOME=" + w.docs}
	for _, name := range []string{"KUBECONFIG", "CEPH_CONF", labclient.EnvSocket} {
		cmd.Env = append(cmd.Env, name+"="+os.Getenv(name))
	}
	return labtest.Output(cmd)
}

// do runs a command of the page, with what its reader puts in, and takes its time.
func (w *world) do(t *testing.T, c command) string {
	t.Helper()
	c.text = w.fill.Replace(c.text)
	t.Log(c.text)
	begin := time.Now()
	out, err := w.shell(t.Context(), c.text)
	check(t, err)
	c.took = time.Since(begin)
	t.Logf("%s: %s", c.took.Round(100*time.Millisecond), out)
	w.ran = append(w.ran, c)
	return out
}

// all runs every command of a block.
func (w *world) all(t *testing.T, block string) {
	t.Helper()
	for _, text := range page.Commands(block) {
		w.do(t, command{text: text})
	}
}

func (w *world) kubectl(t *testing.T, args string) string {
	t.Helper()
	out, err := w.shell(t.Context(), "kubectl "+args)
	check(t, err)
	return out
}

// onHost runs a script on a host of the lab.
func (w *world) onHost(t *testing.T, host, script string) string {
	t.Helper()
	return labtest.Shell(t, w.lab, host, script, commandTime)
}

// print shows what the reader ran, how long each command took, and how many there were.
func (w *world) print(t *testing.T) {
	t.Helper()
	checks := 0
	for i, c := range w.ran {
		kind := "     "
		if c.check {
			kind = "check"
			checks++
		}
		first, _, _ := strings.Cut(c.text, "\n")
		t.Logf("%2d  %s  %8.1fs  %s", i+1, kind, c.took.Seconds(), first)
	}
	t.Logf("%d commands that install, and %d that check; from the release to a pod with a volume: %s",
		len(w.ran)-checks, checks, w.ready.Sub(w.began).Round(time.Second))
	if installs := len(w.ran) - checks; installs > mostCommands {
		t.Errorf("it takes %d commands, not at most %d: shorten docs/install.md", installs, mostCommands)
	}
}

// mostCommands is what an installation may take.
const mostCommands = 10

// setting is a line of the lab's ceph.conf.
func setting(t *testing.T, name string) string {
	t.Helper()
	out := must(t, exec.CommandContext(t.Context(), "sed", "-n", `s/^\s*`+name+`\s*=\s*//p`, variable(t, "CEPH_CONF")))
	if out == "" {
		t.Fatalf("no %s in %s", name, os.Getenv("CEPH_CONF"))
	}
	return out
}

// say shows, after a failure, what there is to see.
func (w *world) say(t *testing.T) {
	if !t.Failed() {
		return
	}
	ctx := context.WithoutCancel(t.Context())
	for _, args := range []string{
		"get pods -A -o wide", "get nodegroups,cachevolumes,pvc,volumeattachments,csinodes -A -o wide", "get events -A --sort-by=.lastTimestamp",
		fmt.Sprintf("-n %s logs -l app.kubernetes.io/name=escache-csi --all-containers --prefix --tail=25 --max-log-requests=30", namespace),
	} {
		out, err := w.shell(ctx, "kubectl "+args)
		t.Logf("kubectl %s: %v\n%s", args, err, out)
	}
	for _, h := range w.hosts {
		out, err := w.lab.Shell(ctx, h.Name, "ctr -n k8s.io images ls -q; free -m; df -h /; "+
			"tail -n 15 /var/log/containerd.log; grep '^E' /var/log/kubelet.log | tail -n 15; true")
		t.Logf("%s: %v\n%s", h.Name, err, out)
	}
}
