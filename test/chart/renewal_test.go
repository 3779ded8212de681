package chart

import (
	"bytes"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/escache/escache-csi/internal/controller/renewal"
)

const (
	day  = 24 * time.Hour
	year = 365 * day
)

const ownCertificate = "secret/escache-controller-tls tls.crt"

// copies are where certificates of the two authorities are, as the chart makes them.
var copies = map[string][]string{
	"hosts": {
		"secret/escache-tls-authority servers.crt", "secret/escache-hosts-authority tls.crt", "configmap/escache-authorities hosts.crt",
		"secret/escache-controller-tls ca.crt",
	},
	"clients": {"secret/escache-tls-authority clients.crt", "configmap/escache-authorities clients.crt"},
}

// watched are all certificates that csi-controller renews.
var watched = slices.Concat(copies["hosts"], copies["clients"], []string{ownCertificate})

// renewed is an installation whose certificates csi-controller renews, with the rights that the chart gives it.
type renewed struct {
	*controlPlane

	version string
	client  client.Client
	events  events.EventRecorder
	log     bytes.Buffer
}

// renewals shows that csi-controller renews what Helm has made, and that upgrades keep it.
func renewals(t *testing.T, c *controlPlane, version string) {
	ctrllog.SetLogger(logr.Discard())
	r := &renewed{controlPlane: c, version: version}
	begin, hour := time.Now(), time.Hour
	r.upgrade()
	r.connect()
	now := r.certificates()
	step := func(when string, changed ...string) {
		t.Helper()
		now = r.expect(when, now, changed...)
	}

	r.look(begin.Add(hour), "csi-controller")
	step("in the first days")
	const another = "tls.clientNames={other,csi-controller}"
	r.upgrade("--set", another)
	step("after an upgrade with another name")
	r.look(begin.Add(2*hour), "other")
	step("with another name", ownCertificate)
	if name := now[ownCertificate].Subject.CommonName; name != "other" {
		t.Errorf("the certificate is for %s", name)
	}
	r.look(begin.Add(year*2/3+day), "other")
	step("after eight months", ownCertificate)
	r.upgrade("--set", another)
	step("after an upgrade")
	r.look(begin.Add(7*year), "other")
	step("after seven years", watched...)
	r.upgrade()
	step("after another upgrade")
	r.told()
	r.replaced()
	r.rights()

	if _, err := c.helm(version, "uninstall", release, "--no-hooks"); err != nil {
		t.Fatal(err)
	}
	c.must("", "delete", "nodegroup", "rack-1")
}

func (r *renewed) upgrade(args ...string) {
	r.t.Helper()
	all := append([]string{"upgrade", "--install", release, chartDir, "--values", cases(r.t)["default"]}, args...)
	if _, err := r.helm(r.version, all...); err != nil {
		r.t.Fatal(err)
	}
}

// connect gets the rights of csi-controller's account.
func (r *renewed) connect() {
	r.t.Helper()
	text := r.UserKubeconfig(r.t, account, "system:serviceaccounts", "system:serviceaccounts:"+namespace, "system:authenticated")
	config, err := clientcmd.RESTConfigFromKubeConfig(text)
	must(r.t, err)
	r.client, err = client.New(config, client.Options{Scheme: clientgoscheme.Scheme})
	must(r.t, err)
	set, err := kubernetes.NewForConfig(config)
	must(r.t, err)
	broadcaster := events.NewBroadcaster(&events.EventSinkImpl{Interface: set.EventsV1()})
	r.t.Cleanup(broadcaster.Shutdown)
	must(r.t, broadcaster.StartRecordingToSinkWithContext(r.t.Context()))
	r.events = broadcaster.NewRecorder(clientgoscheme.Scheme, "escache-csi-controller")
}

const account = "system:serviceaccount:" + namespace + ":" + release + "-controller"

// look is csi-controller's look at a time.
func (r *renewed) look(now time.Time, name string) {
	r.t.Helper()
	must(r.t, renewal.New(renewal.Config{
		Reader: r.client, Writer: r.client, Namespace: namespace, Prefix: release, ClientName: name,
		Life: year, AuthorityLife: 10 * year, Events: r.events, Log: slog.New(slog.NewTextHandler(&r.log, nil)),
		Now: func() time.Time { return now }, Longest: time.Minute,
	}).Look(r.t.Context()))
}

// certificates are all that csi-controller renews: "KIND/NAME KEY".
func (r *renewed) certificates() map[string]*x509.Certificate {
	r.t.Helper()
	var list struct {
		Items []struct {
			Kind     string `json:"kind"`
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Data map[string]string `json:"data"`
		} `json:"items"`
	}
	must(r.t, json.Unmarshal([]byte(r.must("", "-n", namespace, "get", "secrets,configmaps", "-o", "json")), &list))
	all := map[string]*x509.Certificate{}
	for _, o := range list.Items {
		for key, text := range o.Data {
			what := strings.ToLower(o.Kind) + "/" + o.Metadata.Name + " " + key
			if !slices.Contains(watched, what) {
				continue
			}
			if o.Kind == "Secret" {
				plain, err := base64.StdEncoding.DecodeString(text)
				must(r.t, err)
				text = string(plain)
			}
			block, _ := pem.Decode([]byte(text))
			if block == nil {
				r.t.Fatalf("%s is not PEM", what)
			}
			c, err := x509.ParseCertificate(block.Bytes)
			must(r.t, err)
			all[what] = c
		}
	}
	if len(all) != len(watched) {
		r.t.Fatalf("there are %v of %v", slices.Collect(maps.Keys(all)), watched)
	}
	return all
}

// expect fails unless exactly these certificates have changed. It returns what is there now.
func (r *renewed) expect(when string, before map[string]*x509.Certificate, changed ...string) map[string]*x509.Certificate {
	r.t.Helper()
	now := r.certificates()
	for _, what := range watched {
		if now[what].Equal(before[what]) == slices.Contains(changed, what) {
			r.t.Errorf("%s: %s is %s, was %s", when, what, now[what].SerialNumber, before[what].SerialNumber)
		}
	}
	for who, all := range copies {
		for _, what := range all {
			if !now[what].Equal(now[all[0]]) {
				r.t.Errorf("%s: %s: %s is not %s", when, who, what, all[0])
			}
		}
	}
	own, roots := now[ownCertificate], x509.NewCertPool()
	roots.AddCert(now[copies["clients"][0]])
	usage := []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if _, err := own.Verify(x509.VerifyOptions{Roots: roots, KeyUsages: usage, CurrentTime: own.NotBefore.Add(time.Hour)}); err != nil {
		r.t.Errorf("%s: hosts do not believe csi-controller: %v", when, err)
	}
	return now
}

// told fails unless there are Events.
func (r *renewed) told() {
	r.t.Helper()
	out := ""
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(100 * time.Millisecond) {
		out = r.must("", "-n", namespace, "get", "events", "--field-selector", "reason=CertificateRenewed", "-o",
			`jsonpath={range .items[*]}{.involvedObject.name}: {.message}{"\n"}{end}`)
		if strings.Contains(out, "escache-controller-tls: certificate of other, ends ") &&
			strings.Contains(out, "escache-tls-authority: authority of the hosts, ends ") {
			return
		}
	}
	r.t.Errorf("the Events are\n%s", out)
}

// replaced replaces the authorities as docs/security.md says.
func (r *renewed) replaced() {
	r.t.Helper()
	before := r.certificates()
	r.must("", "-n", namespace, "delete", "secret", release+"-tls-authority")
	if r.version == helm4 {
		r.upgrade("--force-conflicts")
	} else {
		r.upgrade()
	}
	now := r.expect("replaced", before, watched...)
	r.look(time.Now(), "csi-controller")
	r.expect("after the replacement", now)
}

// rights fails unless csi-controller's account may read and write these objects, and no other Secret.
func (r *renewed) rights() {
	r.t.Helper()
	for what, want := range map[string]string{
		"update secrets/escache-tls-authority": "yes", "get secrets/escache-controller-tls": "yes", "update configmaps/escache-authorities": "yes",
		"get secrets/escache-replication": "no", "get secrets/other": "no", "list secrets": "no", "watch secrets": "no", "create secrets": "no",
		"patch secrets/escache-tls-authority": "no", "delete secrets/escache-tls-authority": "no", "get configmaps/escache-escached": "no",
		"update configmaps/escache-escached": "no",
	} {
		verb, object, _ := strings.Cut(what, " ")
		out, _ := r.kubectl("", "-n", namespace, "auth", "can-i", verb, object, "--as="+account)
		if got := strings.TrimSpace(out); got != want {
			r.t.Errorf("may csi-controller %s? %q", what, got)
		}
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestRightsToRenewAreForWhatIsRenewed wants rights to exactly the Secrets and ConfigMaps with certificates that Helm has
// made.
func TestRightsToRenewAreForWhatIsRenewed(t *testing.T) {
	const own, all = "escache-controller-tls escache-hosts-authority escache-tls-authority", "escache-controller-tls escache-escached-tls escache-tls-authority"
	for set, want := range map[string][2]string{
		"tls.mode=generated": {own, "escache-authorities"},
		"tls.shared=true,tls.serverName=escached.escache.io":                        {all, ""},
		"tls.mode=certManager":                                                      {"", "escache-hosts-authority"},
		"tls.mode=existing,tls.controllerSecret=c,tls.clientNames={csi-controller}": {"", ""},
	} {
		made, named := map[string][]string{}, map[string][]string{}
		for _, o := range parse(t, render(t, cases(t)["default"], "--set", set)) {
			component, _ := o.get("metadata", "labels", "app.kubernetes.io/component").(string)
			if component == "tls" {
				made[o.kind()] = append(made[o.kind()], o.name())
			}
			if o.kind() != "Role" && o.kind() != "ClusterRole" {
				continue
			}
			rules, _ := o.get("rules").([]any)
			for _, r := range rules {
				rule := object(r.(map[string]any))
				for kind, resource := range map[string]string{"Secret": "secrets", "ConfigMap": "configmaps"} {
					resources, _ := rule.get("resources").([]any)
					if component != "controller" || !slices.Contains(resources, any(resource)) {
						continue
					}
					names, _ := rule.get("resourceNames").([]any)
					for _, name := range names {
						named[kind] = append(named[kind], name.(string))
					}
					if verbs := fmt.Sprint(rule.get("verbs")); verbs != "[get update]" || o.kind() != "Role" || len(names) == 0 {
						t.Errorf("%s: %s %s has %s of %v", set, o.kind(), o.name(), verbs, names)
					}
				}
			}
		}
		for n, kind := range []string{"Secret", "ConfigMap"} {
			slices.Sort(made[kind])
			slices.Sort(named[kind])
			if !slices.Equal(made[kind], named[kind]) || strings.Join(named[kind], " ") != want[n] {
				t.Errorf("%s: rights are for %v, %ss with certificates are %v, want %s", set, named[kind], kind, made[kind], want[n])
			}
		}
	}
}
