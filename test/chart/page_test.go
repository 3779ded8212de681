package chart

import (
	"os"
	"slices"
	"strings"
	"testing"
)

// TestPageAndItsRightsGoTogether: nobody has the page's rights without the page, and no token goes
// over the network without TLS.
func TestPageAndItsRightsGoTogether(t *testing.T) {
	base := cases(t)["default"]
	for _, c := range []struct {
		set             string
		argument        string
		rights, service bool
	}{
		{set: "page.enabled=false"},
		{set: "page.tlsSecret=x"},
		{set: "page.enabled=true", argument: "--page-address=127.0.0.1:9814", rights: true},
		{set: "page.enabled=true,page.tlsSecret=x,page.port=9999", argument: "--page-address=:9999", rights: true, service: true},
	} {
		argument, rights, service, allowed := "", false, false, false
		for _, o := range parse(t, render(t, base, "--set", c.set)) {
			switch o.kind() {
			case "Deployment":
				for _, container := range containers(o) {
					for _, arg := range list(container["args"]) {
						if text, _ := arg.(string); strings.HasPrefix(text, "--page-address=") {
							argument = text
						}
					}
				}
			case "ClusterRole":
				for _, rule := range list(o["rules"]) {
					resources := list(object(rule.(map[string]any)).get("resources"))
					rights = rights || slices.Contains(resources, any("tokenreviews")) || slices.Contains(resources, any("subjectaccessreviews"))
				}
			case "Service":
				service = service || strings.HasSuffix(o.name(), "-page")
			case "NetworkPolicy":
				for _, rule := range list(o.get("spec", "ingress")) {
					for _, port := range list(object(rule.(map[string]any)).get("ports")) {
						allowed = allowed || object(port.(map[string]any)).get("port") == "page"
					}
				}
			}
		}
		if argument != c.argument || rights != c.rights || service != c.service || allowed != c.service {
			t.Errorf("%s: %q, rights %v, Service %v, let in %v", c.set, argument, rights, service, allowed)
		}
	}
}

// TestLinksToGrafana: the address goes to the page as it is, and one that is no address does not get far.
func TestLinksToGrafana(t *testing.T) {
	const address = "https://grafana.example.com/d/escache?orgId=1&var-x={y}"
	text := render(t, cases(t)["default"], "--set", "page.enabled=true", "--set-literal", "page.grafana="+address)
	if !strings.Contains(text, `"--page-grafana=`+address+`"`) {
		t.Error("csi-controller does not get the address")
	}
	if strings.Contains(render(t, cases(t)["default"], "--set", "page.enabled=true"), "--page-grafana") {
		t.Error("it gets an address that is not set")
	}
}

// TestLinksToTheDocumentation: the page has the address where the alerts' pages are, unless another one is set, or none.
func TestLinksToTheDocumentation(t *testing.T) {
	alerts, err := os.ReadFile(chartDir + "/files/alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for set, want := range map[string]string{
		"page.enabled=true": "https://github.com/escache/escache-csi/blob/main/docs/",
		"page.enabled=true,page.docs=https://docs.example.com": "https://docs.example.com",
		"page.enabled=true,page.docs=":                         "",
		"page.enabled=false":                                   "",
	} {
		text := render(t, cases(t)["default"], "--set", set)
		if got := strings.Contains(text, "--page-docs"); got != (want != "") || got && !strings.Contains(text, `"--page-docs=`+want+`"`) {
			t.Errorf("%s: csi-controller gets another address than %q", set, want)
		}
		if set == "page.enabled=true" && !strings.Contains(string(alerts), "runbook_url: "+want+"alerts.md#") {
			t.Errorf("alerts do not link to %s", want)
		}
	}
}

func list(of any) []any { all, _ := of.([]any); return all }
