package kubetest

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// Account is somebody with rights of its own.
type Account struct {
	Kubeconfig string // a file
	User       string
	Namespace  string
}

const chartRelease = "escache"

// ChartAccount gives an account exactly the rights that the chart gives the service account of a
// component ("controller", "node"), with values such as "page.enabled=true" over the chart's
// defaults.
func (c *ControlPlane) ChartAccount(t testing.TB, checkout, component string, values ...string) Account {
	t.Helper()
	a := Account{Namespace: "escache-system", Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	a.User = "system:serviceaccount:" + a.Namespace + ":" + chartRelease + "-" + component
	rendered := c.command(t, nil, Tools(t, "helm")["helm"], "template", chartRelease, filepath.Join(checkout, "charts/escache-csi"),
		"--namespace", a.Namespace, "--show-only", "templates/"+component+"/rbac.yaml",
		"--set", strings.Join(append([]string{"ceph.clusterID=lab", "ceph.monitors={127.0.0.1}"}, values...), ","))
	space := fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", a.Namespace)
	for _, objects := range [][]byte{space, rendered} {
		c.command(t, objects, c.kubectl, "--kubeconfig", c.Kubeconfig(), "apply", "-f", "-")
	}
	groups := []string{"system:serviceaccounts", "system:serviceaccounts:" + a.Namespace, "system:authenticated"}
	if err := os.WriteFile(a.Kubeconfig, c.UserKubeconfig(t, a.User, groups...), 0o600); err != nil {
		t.Fatal(err)
	}
	return a
}

func (c *ControlPlane) command(t testing.TB, in []byte, program string, args ...string) []byte {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdin = bytes.NewReader(in)
	var out, complaints bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaints
	if err := cmd.Run(); err != nil {
		t.Fatalf("%s %s: %v: %s", filepath.Base(program), strings.Join(args, " "), err, complaints.Bytes())
	}
	return out.Bytes()
}

// auditPolicy keeps who asked for what, and not what was said.
const auditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules: [{level: Metadata, userGroups: [system:serviceaccounts]}, {level: None}]
`

// auditArgs are the API server's for an audit log in dir.
func auditArgs(dir string) (log string, args []string, err error) {
	policy := filepath.Join(dir, "audit-policy.yaml")
	log = filepath.Join(dir, "audit.log")
	return log, []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log}, os.WriteFile(policy, []byte(auditPolicy), 0o600)
}

// CheckRights fails the test if the account was refused anything since the API server started, or
// has a right that it never used. Rights in unused, e.g. "get apps/replicasets", are let through.
func (c *ControlPlane) CheckRights(t testing.TB, a Account, unused ...string) {
	t.Helper()
	used, refused := c.asked(t, a.User)
	for _, what := range refused {
		t.Errorf("%s was refused: %s", a.User, what)
	}
	granted := c.granted(t, a)
	if len(granted) == 0 {
		t.Errorf("%s has no rights at all", a.User)
	}
	for _, right := range granted {
		// Listing is how an API server before 1.34 is watched: a newer one begins the watch with
		// the list.
		if what, list := strings.CutPrefix(right, "list "); list && used["watch "+what] {
			continue
		}
		if !used[right] && !slices.Contains(unused, right) {
			t.Errorf("%s may %s, and nothing here needs it", a.User, right)
		}
	}
}

// asked is what a user did and what was refused, as "verb group/resource/subresource".
func (c *ControlPlane) asked(t testing.TB, user string) (used map[string]bool, refused []string) {
	t.Helper()
	file, err := os.Open(c.audit)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	used = map[string]bool{}
	lines := bufio.NewScanner(file)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e struct {
			Verb string `json:"verb"`
			URI  string `json:"requestURI"`
			User struct {
				Username string `json:"username"`
			} `json:"user"`
			Object struct {
				Group       string `json:"apiGroup"`
				Resource    string `json:"resource"`
				Subresource string `json:"subresource"`
			} `json:"objectRef"`
			Annotations map[string]string `json:"annotations"`
		}
		if err := json.Unmarshal(lines.Bytes(), &e); err != nil {
			t.Fatal(err)
		}
		if e.User.Username != user || e.Object.Resource == "" {
			continue
		}
		used[right(e.Verb, e.Object.Group, strings.TrimSuffix(e.Object.Resource+"/"+e.Object.Subresource, "/"))] = true
		if e.Annotations["authorization.k8s.io/decision"] == "forbid" && !slices.Contains(refused, e.Verb+" "+e.URI) {
			refused = append(refused, e.Verb+" "+e.URI)
		}
	}
	if lines.Err() != nil {
		t.Fatal(lines.Err())
	}
	return used, refused
}

func right(verb, group, resource string) string {
	if group != "" {
		resource = group + "/" + resource
	}
	return verb + " " + resource
}

// granted are the rights in the account's roles, which carry its name.
func (c *ControlPlane) granted(t testing.TB, a Account) []string {
	t.Helper()
	name := a.User[strings.LastIndex(a.User, ":")+1:]
	text := c.command(t, nil, c.kubectl, "--kubeconfig", c.Kubeconfig(), "get", "clusterroles,roles", "-n", a.Namespace, "-o", "json")
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Rules []struct {
				APIGroups []string `json:"apiGroups"`
				Resources []string `json:"resources"`
				Verbs     []string `json:"verbs"`
			} `json:"rules"`
		} `json:"items"`
	}
	if err := json.Unmarshal(text, &list); err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, role := range list.Items {
		if role.Metadata.Name != name {
			continue
		}
		for _, rule := range role.Rules {
			for _, group := range rule.APIGroups {
				for _, resource := range rule.Resources {
					for _, verb := range rule.Verbs {
						out = append(out, right(verb, group, resource))
					}
				}
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}
