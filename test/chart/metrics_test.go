package chart

import (
	"context"
	"encoding/json"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.yaml.in/yaml/v3"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/controller/reservation"
	"github.com/escache/escache-csi/internal/controller/server"
	"github.com/escache/escache-csi/internal/controller/volumes"
	"github.com/escache/escache-csi/internal/exported"
	"github.com/escache/escache-csi/internal/node"
	"github.com/escache/escache-csi/internal/node/watch"
	"github.com/escache/escache-csi/internal/orphans"
	"github.com/escache/escache-csi/internal/placement"
	"github.com/escache/escache-csi/internal/rbd/emptier"
	"github.com/escache/escache-csi/internal/redundancy"
)

// metric is a row of docs/metrics.md.
type metric struct {
	labels []string
	help   string
}

var metricRow = regexp.MustCompile("(?m)^\\| `(\\w+)` \\| ([^|]*) \\| ([^|]*) \\| ([^|]*) \\|$")

// documented are the metrics that docs/metrics.md tells of. What escached exports is compared with
// it beside escached's own tests.
func documented(t *testing.T) map[string]metric {
	t.Helper()
	text, err := os.ReadFile(checkout + "/docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]metric{}
	for _, m := range metricRow.FindAllStringSubmatch(string(text), -1) {
		labels := strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' })
		slices.Sort(labels)
		out[m[1]] = metric{labels, m[4]}
	}
	return out
}

// registerer keeps what is registered.
type registerer struct {
	*prometheus.Registry

	collectors []prometheus.Collector
}

func (r *registerer) MustRegister(all ...prometheus.Collector) {
	r.collectors = append(r.collectors, all...)
}

var descText = regexp.MustCompile(`fqName: "(\w+)", help: ("(?:[^"\\]|\\.)*"), .*variableLabels: \{([^}]*)\}`)

func TestReferenceIsWhatIsExported(t *testing.T) {
	r := &registerer{Registry: prometheus.NewRegistry()}
	server.NewMetrics(r)
	node.NewCallMetric(r)
	orphans.NewWatch(orphans.Search{}, time.Minute, slog.New(slog.DiscardHandler), r)
	book := reservation.NewBook(reservation.Slots{
		Ports: reservation.Range{First: 7800, Last: 7899}, Minors: reservation.Range{First: 100, Last: 199},
	})
	if err := book.SetGroup(placement.Group{Name: "g", Members: []placement.Member{{Name: "n1"}, {Name: "n2"}, {Name: "n3"}}}, nil); err != nil {
		t.Fatal(err)
	}
	r.MustRegister(reservation.NewCollector(book), watch.New(watch.Options{Cache: noCache{}, Now: time.Now}).Collector(),
		emptier.NewCollector(nil, time.Now), volumes.NewCollector(nil), volumes.NewCopiesCollector(nil, time.Now),
		exported.BuildInfo("escache_controller", ""), exported.BuildInfo("escache_node", ""),
		exported.CertificateEnd("escache_controller", "csi-controller's", nil),
		exported.AuthorityEnd("escache_controller", "csi-controller", "hosts", nil))

	exported := map[string]metric{}
	for _, c := range r.collectors {
		descs := make(chan *prometheus.Desc, 100)
		c.Describe(descs)
		close(descs)
		for d := range descs {
			m := descText.FindStringSubmatch(d.String())
			if m == nil {
				t.Fatalf("cannot be read: %s", d)
			}
			var help string
			if err := json.Unmarshal([]byte(m[2]), &help); err != nil {
				t.Fatal(err)
			}
			labels := strings.FieldsFunc(m[3], func(r rune) bool { return r == ',' || r == ' ' })
			slices.Sort(labels)
			exported[m[1]] = metric{labels, help}
		}
	}
	if len(exported) < 20 {
		t.Fatalf("only %d metrics were looked at", len(exported))
	}
	written := documented(t)
	for name, m := range exported {
		if w, ok := written[name]; !ok || w.help != m.help || !slices.Equal(w.labels, m.labels) {
			t.Errorf("%s is exported as %v, and docs/metrics.md has %v", name, m, w)
		}
	}
	for name := range written {
		foreign := strings.HasPrefix(name, "escached_") || strings.HasPrefix(name, "leader_election_")
		if _, ok := exported[name]; !ok && !foreign {
			t.Errorf("docs/metrics.md has %s, which is not exported", name)
		}
	}
}

type noCache struct{ watch.Cache }

func (noCache) Status(context.Context) (*escache.Status, error) { return &escache.Status{}, nil }

// queries are the expressions of alerts and dashboard by where they stand.
func queries(t *testing.T) map[string]string {
	t.Helper()
	read := func(name string, into any, unmarshal func([]byte, any) error) {
		text, err := os.ReadFile(filepath.Join(chartDir, "files", name))
		if err == nil {
			err = unmarshal(text, into)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	var rules struct {
		Groups []struct {
			Rules []struct{ Alert, Expr string }
		}
	}
	read("alerts.yaml", &rules, yaml.Unmarshal)
	var dashboard struct {
		Panels []struct {
			Title   string
			Type    string
			Targets []struct{ Expr, LegendFormat string }
		}
	}
	read("dashboard.json", &dashboard, json.Unmarshal)
	out := map[string]string{}
	for _, g := range rules.Groups {
		for _, r := range g.Rules {
			out["alert "+r.Alert] = r.Expr
		}
	}
	for _, p := range dashboard.Panels {
		for _, q := range p.Targets {
			out["panel "+p.Title+" "+q.LegendFormat] = strings.ReplaceAll(q.Expr, "$volume", ".*")
		}
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("panel %s asks for nothing", p.Title)
		}
	}
	return out
}

var (
	metricName = regexp.MustCompile(`\b(escache\w*_\w+|leader_election_\w+)(?:\{([^}]*)\})?`)
	labelName  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	grouping   = regexp.MustCompile(`\b(?:by|on)\s*\(([^)]*)\)`)
)

// TestQueriesAskForWhatIsExported looks at names and labels; that the expressions can be parsed,
// promtool says.
func TestQueriesAskForWhatIsExported(t *testing.T) {
	written := documented(t)
	all := queries(t)
	if len(all) < 30 {
		t.Fatalf("only %d queries were found", len(all))
	}
	// Labels that scraping adds.
	added := []string{"node", "pod", "le"}
	for where, expr := range all {
		asked := metricName.FindAllStringSubmatch(expr, -1)
		if len(asked) == 0 {
			t.Errorf("%s asks for none of our metrics: %s", where, expr)
		}
		var known []string
		for _, m := range asked {
			name := m[1]
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				if _, ok := written[name]; !ok {
					name = strings.TrimSuffix(name, suffix)
				}
			}
			w, ok := written[name]
			if !ok {
				t.Errorf("%s asks for %s, which is not exported", where, m[1])
			}
			known = append(known, w.labels...)
			for _, l := range labelName.FindAllStringSubmatch(m[2], -1) {
				if !slices.Contains(w.labels, l[1]) {
					t.Errorf("%s asks for label %s of %s, which has %v", where, l[1], name, w.labels)
				}
			}
		}
		for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
			for label := range strings.FieldsFuncSeq(g[1], func(r rune) bool { return r == ',' || r == ' ' }) {
				if !slices.Contains(known, label) && !slices.Contains(added, label) {
					t.Errorf("%s groups by %s, which none of its metrics has", where, label)
				}
			}
		}
	}
}

func TestRulesAndQueriesByPromtool(t *testing.T) {
	promtool := goTool(t, "promtool")
	type rule struct {
		Record string `yaml:"record"`
		Expr   string `yaml:"expr"`
	}
	var rules []rule
	all := queries(t)
	for _, where := range slices.Sorted(maps.Keys(all)) {
		rules = append(rules, rule{"q", all[where] + " # " + where})
	}
	text, err := yaml.Marshal(map[string]any{"groups": []any{map[string]any{"name": "queries", "rules": rules}}})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "queries.yaml")
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{
		{"check", "rules", "--lint=none", file},
		{"check", "rules", filepath.Join(chartDir, "files/alerts.yaml")},
		{"test", "rules", "testdata/alerts/test.yaml"},
	} {
		if out, err := run(t, nil, promtool, args...); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
}

// TestEveryAlertIsTested wants each alert named in a test, explained, and linked with what explains it.
func TestEveryAlertIsTested(t *testing.T) {
	tests, err := os.ReadFile("testdata/alerts/test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile(checkout + "/docs/alerts.md")
	if err != nil {
		t.Fatal(err)
	}
	rules, err := os.ReadFile(filepath.Join(chartDir, "files/alerts.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	for where := range queries(t) {
		if alert, ok := strings.CutPrefix(where, "alert "); ok {
			if strings.Count(string(tests), alert) < 2 {
				t.Errorf("%s is not tested both ways", alert)
			}
			if !strings.Contains(string(page), "## "+alert+"\n") {
				t.Errorf("docs/alerts.md does not explain %s", alert)
			}
			if !strings.Contains(string(rules), "/docs/alerts.md#"+strings.ToLower(alert)+"\n") {
				t.Errorf("%s has no runbook_url to its section of docs/alerts.md", alert)
			}
		}
	}
}

// TestAlertsAreProvenWithReasonsThatThereAre wants each reason for one copy that the rules' tests have to be
// one that the metrics can have.
func TestAlertsAreProvenWithReasonsThatThereAre(t *testing.T) {
	tests, err := os.ReadFile("testdata/alerts/test.yaml")
	if err != nil {
		t.Fatal(err)
	}
	named := regexp.MustCompile(`escache_volumes_one_copy\w*\{reason="(\w+)"`).FindAllStringSubmatch(string(tests), -1)
	if len(named) == 0 {
		t.Error("no reason is named")
	}
	for _, m := range named {
		if !slices.Contains(redundancy.Reasons(), m[1]) {
			t.Errorf("there is no reason %s, only %s", m[1], strings.Join(redundancy.Reasons(), ", "))
		}
	}
}
