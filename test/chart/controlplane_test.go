package chart

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/escache/escache-csi/test/kubetest"
)

// controlPlane is a real API server with the chart's CRDs, and kubectl for it.
type controlPlane struct {
	*kubetest.ControlPlane

	t *testing.T
}

func startControlPlane(t *testing.T) *controlPlane {
	t.Helper()
	c := &controlPlane{kubetest.Start(t), t}
	c.Snapshots(t)
	for _, crds := range []string{chartDir + "/crds", "testdata/crds"} {
		c.must("", "apply", "--server-side", "-f", crds)
		c.must("", "wait", "--for=condition=Established", "--timeout=120s", "-f", crds)
	}
	c.must("", "create", "namespace", namespace)
	return c
}

func (c *controlPlane) kubectl(in string, args ...string) (string, error) {
	return run(c.t, strings.NewReader(in), c.Kubectl(), append([]string{"--kubeconfig", c.Kubeconfig()}, args...)...)
}

func (c *controlPlane) must(in string, args ...string) string {
	c.t.Helper()
	out, err := c.kubectl(in, args...)
	if err != nil {
		c.t.Fatalf("kubectl %s: %v", strings.Join(args, " "), err)
	}
	return out
}

func (c *controlPlane) helm(version string, args ...string) (string, error) {
	c.t.Helper()
	return helm(c.t, version, append(args, "--kubeconfig", c.Kubeconfig(), "--namespace", namespace)...)
}

// TestOnAPIServer shares one API server: starting one takes longer than most of it.
func TestOnAPIServer(t *testing.T) {
	c := startControlPlane(t)
	for name, run := range map[string]func(*testing.T, *controlPlane){
		"every manifest is accepted with strict validation": manifests,
		"pods of the controller keep to restricted":         restricted,
		"csi-node changes its own Node only":                ownNode,
	} {
		t.Run(name, func(t *testing.T) { run(t, &controlPlane{c.ControlPlane, t}) })
	}
	t.Run("install, upgrade, uninstall", func(t *testing.T) {
		withEach(t, func(t *testing.T, version string) { life(t, &controlPlane{c.ControlPlane, t}, version) })
	})
	t.Run("csi-controller renews certificates, and upgrades keep them", func(t *testing.T) {
		withEach(t, func(t *testing.T, version string) { renewals(t, &controlPlane{c.ControlPlane, t}, version) })
	})
}

func manifests(t *testing.T, c *controlPlane) {
	accounts := map[string]bool{}
	for name, values := range cases(t) {
		all := render(t, values)
		for _, o := range parse(t, all) {
			account, _ := o.get("spec", "serviceAccountName").(string) // a dry run makes none, and a pod needs its account
			if o.kind() == "Pod" && !accounts[account] {
				c.must("", "create", "serviceaccount", account, "--namespace", namespace)
				accounts[account] = true
			}
		}
		out, err := c.kubectl(all, "apply", "--dry-run=server", "--validate=strict", "-f", "-")
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if got, want := strings.Count(out, "(server dry run)"), len(parse(t, all)); got != want {
			t.Errorf("%s: %d of %d objects were accepted", name, got, want)
		}
	}
	broken := strings.Replace(render(t, cases(t)["default"]), "maxUnavailable: 1", "maxUnavailible: 1", 1)
	if out, err := c.kubectl(broken, "apply", "--dry-run=server", "--validate=strict", "-f", "-"); err == nil {
		t.Errorf("a misspelt field was accepted:\n%s", out)
	}
	for account := range accounts { // an installation makes its own
		c.must("", "delete", "serviceaccount", account, "--namespace", namespace)
	}
}

// restricted makes pods of the chart's templates in a namespace that takes only what Pod Security
// calls restricted.
func restricted(t *testing.T, c *controlPlane) {
	const strict = "strict"
	c.must("", "create", "namespace", strict)
	c.must("", "label", "namespace", strict, "pod-security.kubernetes.io/enforce=restricted")
	for name, values := range cases(t) {
		for _, o := range parse(t, render(t, values)) {
			spec := podSpec(o)
			if spec == nil {
				continue
			}
			delete(spec, "serviceAccountName")
			delete(spec, "priorityClassName") // Kubernetes' own classes are for kube-system and for namespaces that are allowed them
			pod, err := json.Marshal(object{
				"apiVersion": "v1", "kind": "Pod", "metadata": object{"name": o.name(), "namespace": strict}, "spec": spec,
			})
			if err != nil {
				t.Fatal(err)
			}
			_, err = c.kubectl(string(pod), "create", "--dry-run=server", "--validate=strict", "-f", "-")
			switch o.kind() {
			case "DaemonSet": // it mounts for the host: that the same check refuses it shows that the check works
				if err == nil || !strings.Contains(err.Error(), `violates PodSecurity "restricted`) {
					t.Errorf("%s: %s is not refused for what it may do: %v", name, o.name(), err)
				}
			default:
				if err != nil {
					t.Errorf("%s: %s %s: %v", name, o.kind(), o.name(), err)
				}
			}
		}
	}
}

// life installs, upgrades and uninstalls with Helm itself. There are no hosts, so no pod runs.
func life(t *testing.T, c *controlPlane, version string) {
	values := cases(t)["default"]
	upgrade := func(args ...string) {
		t.Helper()
		if _, err := c.helm(version, append([]string{"upgrade", "--install", release, chartDir, "--values", values}, args...)...); err != nil {
			t.Fatal(err)
		}
	}
	secret := func(name, key string) string {
		path := fmt.Sprintf("jsonpath={.data.%s}", strings.ReplaceAll(key, ".", `\.`))
		return c.must("", "-n", namespace, "get", "secret", release+"-"+name, "-o", path)
	}
	upgrade("--set", "tls.shared=true,tls.serverName=escached.escache.io") // as releases were before each host had its own
	authority, server, client := secret("tls-authority", "servers.crt"), secret("escached-tls", "tls.crt"), secret("controller-tls", "tls.crt")
	if trusted := secret("controller-tls", "ca.crt"); trusted != authority {
		t.Error("the controller does not trust the authority that signed the escacheds' certificate")
	}
	if trusted := secret("escached-tls", "ca.crt"); trusted == authority || trusted != secret("tls-authority", "clients.crt") {
		t.Error("an escached's own certificate would open the others")
	}

	links := secret("replication", "secret")
	if text, err := base64.StdEncoding.DecodeString(links); err != nil || len(text) < 32 {
		t.Errorf("csi-controller refuses a secret of %d bytes: %v", len(text), err)
	}

	upgrade("--set", "tls.shared=true,tls.serverName=escached.escache.io,controller.logLevel=debug")
	if secret("escached-tls", "tls.crt") != server || secret("controller-tls", "tls.crt") != client {
		t.Error("an upgrade in the first days changed the certificates")
	}
	ownCertificates(t, c, upgrade, secret)
	if secret("controller-tls", "tls.crt") != client {
		t.Error("the way to certificates of the hosts' own changed the controller's")
	}
	upgrade()
	if secret("replication", "secret") != links {
		t.Error("an upgrade changed what the secrets of the links are derived from")
	}

	const fewer = `nodeGroups=[]`
	upgrade("--set-json", fewer)
	if c.must("", "get", "nodegroup", "rack-1", "-o", "name") == "" {
		t.Error("an upgrade with a shorter list of groups deleted one")
	}
	upgrade() // and with it again, Helm takes it for its own

	// The Job that looks for volumes never ends here, where no pod runs: Helm must not go on
	// without its word.
	if out, err := c.helm(version, "uninstall", release, "--timeout", "5s"); err == nil {
		t.Fatalf("uninstalled without the guard's word: %s", out)
	}
	c.must("", "-n", namespace, "get", "deployment", release+"-controller")
	c.must("", "get", "nodegroup", "rack-1")
	if _, err := c.helm(version, "uninstall", release, "--no-hooks"); err != nil {
		t.Fatal(err)
	}
	kinds := "deployments,daemonsets,configmaps,secrets,serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings," +
		"nodegroups,storageclasses,csidrivers,networkpolicies,poddisruptionbudgets," +
		"validatingadmissionpolicies,validatingadmissionpolicybindings"
	left := c.must("", "get", kinds, "-A", "-l", "app.kubernetes.io/part-of=escache-csi", "-o", "name")
	if strings.TrimSpace(left) != "nodegroup.escache.io/rack-1" { // volumes might be in it
		t.Errorf("left behind:\n%s", left)
	}
	c.must("", "delete", "nodegroup", "rack-1")
	c.must("", "get", "crd", "cachevolumes.escache.io") // taking it away would take all volumes' records away
}

// ownCertificates goes over to certificates of the hosts' own: for a day hosts may still show the one
// that served all of them.
func ownCertificates(t *testing.T, c *controlPlane, upgrade func(...string), secret func(name, key string) string) {
	t.Helper()
	args := func() string {
		return c.must("", "-n", namespace, "get", "deployment", release+"-controller", "-o", "jsonpath={.spec.template.spec.containers[0].args}")
	}
	server := secret("escached-tls", "tls.crt")
	upgrade()
	if secret("escached-tls", "tls.crt") != server || secret("hosts-authority", "tls.crt") != secret("tls-authority", "servers.crt") {
		t.Error("the upgrade took the certificate away that hosts still show, or changed its authority")
	}
	const flag = "--escached-former-until="
	_, rest, found := strings.Cut(args(), flag)
	until, err := time.Parse(time.RFC3339, strings.SplitN(rest, `"`, 2)[0])
	if left := time.Until(until); !found || err != nil || left < 23*time.Hour || left > 25*time.Hour {
		t.Errorf("the former name is accepted until %s (%v): %s", until, err, args())
	}
	upgrade()
	if !strings.Contains(args(), flag+until.Format(time.RFC3339)) {
		t.Error("another upgrade prolonged it")
	}
	upgrade("--set", "tls.former.until=2020-01-01T00:00:00Z")
	if strings.Contains(args(), "--escached-former") || c.must("", "-n", namespace, "get", "secret", release+"-escached-tls", "--ignore-not-found") != "" {
		t.Error("the former certificate outlives its time")
	}
	upgrade() // the ConfigMap has the time now
	if strings.Contains(args(), "--escached-former") {
		t.Error("the next upgrade accepts it again")
	}
}
