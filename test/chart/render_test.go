package chart

import (
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func TestLint(t *testing.T) {
	withEach(t, func(t *testing.T, version string) {
		for name, values := range cases(t) {
			if out, err := helm(t, version, "lint", "--strict", chartDir, "--values", values); err != nil {
				t.Errorf("%s: %v\n%s", name, err, out)
			}
		}
	})
}

// unsteady is what differs from one rendering to the next: certificates and the secret that Helm has
// made.
var unsteady = regexp.MustCompile(`(?m)^(  (?:servers\.|clients\.|hosts\.|tls\.|ca\.)(?:crt|key): |  secret: ).+$`)

// TestAuthoritiesKeepTheirKeys: what they have signed is valid for longer, and must stay so when they are renewed.
func TestAuthoritiesKeepTheirKeys(t *testing.T) {
	authorities := 0
	for _, values := range cases(t) {
		for document := range strings.SplitSeq(render(t, values), "\n---\n") {
			if !strings.Contains(document, "isCA: true") {
				continue
			}
			authorities++
			if !strings.Contains(document, "rotationPolicy: Never") {
				t.Errorf("%s: cert-manager may give this authority a new key:\n%s", values, document)
			}
		}
	}
	if authorities < 2 {
		t.Errorf("%d authorities were looked at", authorities)
	}
}

// TestWholeNumbersStayWhole: Helm reads numbers of a values file as floats.
func TestWholeNumbersStayWhole(t *testing.T) {
	got := render(t, cases(t)["full"])
	for _, want := range []string{"objecter_inflight_op_bytes = 104857600\n", "rbd_cache = false\n", "--drbd-minors=1000-1048575\n"} {
		if !strings.Contains(got, want) {
			t.Errorf("%q is not rendered", want)
		}
	}
}

// TestGolden compares with testdata/golden, which is what Helm 4 makes; UPDATE_GOLDEN=1 writes it
// again.
func TestGolden(t *testing.T) {
	for name, values := range cases(t) {
		got := steady(render(t, values))
		if os.Getenv("UPDATE_GOLDEN") != "" {
			if err := os.WriteFile(goldenFile(name), []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
			continue
		}
		if want := golden(t, name); got != want {
			t.Errorf("%s is rendered differently; look at it with UPDATE_GOLDEN=1 and `git diff`\n%s", name, difference(want, got))
		}
	}
}

// TestHelm3MakesTheSameObjects, whatever lines it leaves empty.
func TestHelm3MakesTheSameObjects(t *testing.T) {
	for name, values := range cases(t) {
		want := parse(t, golden(t, name))
		got := parse(t, steady(renderWith(t, helm3, values)))
		if len(got) != len(want) {
			t.Errorf("%s: %d objects, not %d", name, len(got), len(want))
			continue
		}
		for i := range want {
			if !reflect.DeepEqual(got[i], want[i]) {
				t.Errorf("%s: %s %s is\n%v\nnot %s %s\n%v", name, got[i].kind(), got[i].name(), got[i], want[i].kind(), want[i].name(), want[i])
			}
		}
	}
}

func steady(manifests string) string { return unsteady.ReplaceAllString(manifests, "${1}MADE") }

func goldenFile(name string) string { return "testdata/golden/" + name + ".yaml" }

func golden(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(goldenFile(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// difference is the first line in which two texts differ.
func difference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range w {
		if i >= len(g) || w[i] != g[i] {
			return "line " + w[i] + "\n  is " + strings.Join(g[min(i, len(g)):min(i+1, len(g))], "")
		}
	}
	return "there is more than before"
}

func TestWrongValuesAreRefusedWithAReason(t *testing.T) {
	withEach(t, wrongValues)
}

func wrongValues(t *testing.T, version string) {
	base := cases(t)["default"]
	for set, reason := range map[string]string{
		"ceph.clusterID=":                          "/ceph/clusterID",
		"ceph.monitors=null":                       "/ceph",
		"ceph.nodeUser=client.x":                   `leave out the "client."`,
		"controller.replica=3":                     "additional properties 'replica' not allowed",
		"snapshots.groups.enabled=true":            "snapshots.groups.enabled needs snapshots.enabled",
		"snapshots.groups.classes[0].maxSeconds=4": "/snapshots/groups/classes/0/maxSeconds': minimum: got 4, want 5",
		"controller.replicas=0":                    "/controller/replicas': minimum: got 0, want 1",
		"controller.logLevel=loud":                 "value must be one of 'debug', 'info', 'warn', 'error'",
		"controller.pollInterval=5":                "/controller/pollInterval",
		"controller.userID=0":                      "/controller/userID': minimum: got 0, want 1",
		"escached.mode=vendor":                     "value must be one of 'daemonset', 'host'",
		"escached.mode=host":                       "certificates that Helm generates do not reach the hosts",
		"escached.drbd.ports.first=1":              "/escached/drbd/ports/first': minimum",
		"controller.ports.health=9808":             "controller.ports.metrics and controller.ports.health are both 9808",
		"sidecars.attacher.metricsPort=9811":       "sidecars.attacher.metricsPort and sidecars.provisioner.metricsPort are both 9811",
		"page.enabled=true,page.port=9812":         "page.port and sidecars.attacher.metricsPort are both 9812",
		"page.grafana=javascript:alert(1)":         "/page/grafana",
		"page.docs=javascript:alert(1)":            "/page/docs",
		"escached.wipe=all":                        "value must be one of 'none', 'header', 'full'",
		"tls.mode=none":                            "value must be one of 'generated', 'certManager', 'existing'",
		"tls.mode=existing":                        "tls.controllerSecret",
		"tls.serverName=":                          "tls.serverName needs {node} in it",
		"tls.serverName=a_b":                       "/tls/serverName",
		"tls.serverName=escached.escache.io":       "set tls.shared: true to accept that",
		"tls.shared=true":                          "has one name",
		"tls.shared=true,tls.serverName=":          "tls.shared needs tls.serverName",
		"tls.mode=existing,tls.controllerSecret=c": "tls.mode existing needs tls.clientNames",
		"tls.mode=existing,tls.controllerSecret=c,tls.escachedSecret=e":            "tls.escachedSecret is one key for all hosts",
		"tls.mode=existing,tls.controllerSecret=c,tls.shared=true,tls.serverName=": "needs tls.escachedSecret",
		"tls.former.until=tomorrow":                                "/tls/former/until",
		"nodeGroups[0].nodes[0]=n2":                                "items at 0 and 1 are equal",
		"nodeGroups[1].name=rack-2,nodeGroups[1].nodes={n3,n4,n5}": `node "n3" is in rack-1 and in rack-2`,
		"nodeGroups[1].name=rack-1,nodeGroups[1].nodes={n6,n4,n5}": `two groups are named "rack-1"`,
		"nodeGroups[0].nodes={n1,n2}":                              "minItems: got 2, want 3",
		"storageClasses[0].parameters.cachesize=1Gi":               "additional properties 'cachesize' not allowed",
		"storageClasses[0].default=true,storageClasses[1].default=true,storageClasses[1].name=b,storageClasses[1].pool=p": "both the default",
	} {
		_, err := helm(t, version, "template", release, chartDir, "--values", base, "--set", set)
		if err == nil || !strings.Contains(err.Error(), reason) {
			t.Errorf("--set %s: want %q, got %v", set, reason, err)
		}
	}
}

func TestEveryImageIsPinned(t *testing.T) {
	for name, values := range cases(t) {
		seen := 0
		for _, o := range parse(t, render(t, values)) {
			for _, c := range containers(o) {
				seen++
				image, _ := c["image"].(string)
				_, tag, found := strings.Cut(image[strings.LastIndex(image, "/")+1:], ":")
				if !found || tag == "latest" {
					t.Errorf("%s: %s %s runs %q", name, o.kind(), o.name(), image)
				}
			}
		}
		if seen < 5 {
			t.Errorf("%s: only %d containers were looked at", name, seen)
		}
	}
}

// TestEscachedOutlivesCSINode: the kubelet ends both pods at the same time when the host shuts down.
func TestEscachedOutlivesCSINode(t *testing.T) {
	for name, values := range cases(t) {
		grace, locks := map[string]int{}, map[string]string{}
		for _, o := range parse(t, render(t, values)) {
			for _, c := range containers(o) {
				program := fmt.Sprint(c["name"])
				if program != "escached" && program != "csi-node" {
					continue
				}
				grace[program], _ = podSpec(o)["terminationGracePeriodSeconds"].(int)
				for _, arg := range list(c["args"]) {
					if lock, found := strings.CutPrefix(fmt.Sprint(arg), "--shutdown-lock="); found {
						locks[program] = lock
					}
				}
			}
		}
		if _, found := grace["escached"]; !found {
			if len(locks) > 0 {
				t.Errorf("%s: csi-node locks %v, and the chart does not run escached", name, locks)
			}
			continue
		}
		// When csi-node has ended, escached gives its own calls another 20 s.
		if grace["escached"] < grace["csi-node"]+20 {
			t.Errorf("%s: escached gets %d s to end, and csi-node %d s", name, grace["escached"], grace["csi-node"])
		}
		if locks["csi-node"] == "" || locks["csi-node"] != locks["escached"] {
			t.Errorf("%s: csi-node locks %q, and escached waits for %q", name, locks["csi-node"], locks["escached"])
		}
	}
}

// TestPortsOfAPodDiffer: its containers share one network, so the second that listens at a port
// would end.
func TestPortsOfAPodDiffer(t *testing.T) {
	for name, values := range cases(t) {
		for _, o := range parse(t, render(t, values)) {
			users := map[any]any{}
			for _, c := range containers(o) {
				for _, p := range list(c["ports"]) {
					port := p.(map[string]any)["containerPort"]
					if users[port] != nil {
						t.Errorf("%s: %s %s: %v and %v both listen at %v", name, o.kind(), o.name(), users[port], c["name"], port)
					}
					users[port] = c["name"]
				}
			}
		}
	}
}

// TestCsiNodeKnowsTheHostsAuthority: without it, csi-node keeps a certificate of an earlier authority, which
// csi-controller does not believe any more.
func TestCsiNodeKnowsTheHostsAuthority(t *testing.T) {
	const dir = "/etc/escache/authorities"
	for _, name := range []string{"default", "full", "issuer"} {
		all := parse(t, render(t, cases(t)[name]))
		daemonSet, node := containerOf(all, "csi-node")
		_, controller := containerOf(all, "csi-controller")
		if !slices.Contains(list(node["args"]), any("--certificate-authority="+dir+"/hosts.crt")) {
			t.Errorf("%s: csi-node does not learn of the authority", name)
		}
		source := configMapAt(daemonSet, node, dir)
		at := slices.IndexFunc(all, func(o object) bool { return o.kind() == "ConfigMap" && source != "" && o.name() == source })
		if at < 0 {
			t.Errorf("%s: no ConfigMap of the chart, %q, is mounted at %s", name, source, dir)
			continue
		}
		byHelm := all[at].get("data", "hosts.crt") != nil
		if written := slices.Contains(list(controller["args"]), any("--host-authority-configmap="+source)); written == byHelm {
			t.Errorf("%s: Helm writes the authority: %t; csi-controller does: %t", name, byHelm, written)
		}
	}
}

// containerOf returns the container with a name, and the workload that has it.
func containerOf(all []object, name string) (workload, container object) {
	for _, o := range all {
		for _, c := range containers(o) {
			if c["name"] == name {
				return o, c
			}
		}
	}
	return nil, nil
}

// configMapAt is the name of the ConfigMap that a container of a workload mounts at a path.
func configMapAt(workload, container object, path string) string {
	for _, m := range list(container["volumeMounts"]) {
		for _, v := range list(podSpec(workload)["volumes"]) {
			mount, volume := object(m.(map[string]any)), object(v.(map[string]any))
			if mount["mountPath"] == path && mount["name"] == volume["name"] {
				name, _ := volume.get("configMap", "name").(string)
				return name
			}
		}
	}
	return ""
}

// podSpec is that of a workload's pods, or of a pod; nil for all others.
func podSpec(o object) map[string]any {
	path := []string{"spec", "template", "spec"}
	if o.kind() == "Pod" {
		path = path[:1]
	}
	spec, _ := o.get(path...).(map[string]any)
	return spec
}

// containers are those of a workload or a pod, init containers too.
func containers(o object) []object {
	var out []object
	for _, list := range []string{"initContainers", "containers"} {
		all, _ := podSpec(o)[list].([]any)
		for _, c := range all {
			if m, ok := c.(map[string]any); ok {
				out = append(out, m)
			}
		}
	}
	return out
}
