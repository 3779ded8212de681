package storageclass

import (
	"encoding/json"
	"maps"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/escache/escache-csi/api/v1alpha1"
)

const (
	page   = "../../../../docs/parameters.md"
	schema = "../../../../charts/escache-csi/values.schema.json"
)

// row is a parameter's row in docs/parameters.md.
type row struct {
	standard string // a value, "none" or "required"
	example  string
}

// documented returns the page's rows, by parameter. They have four columns; other tables have
// three.
func documented(t *testing.T) map[string]row {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]row{}
	for line := range strings.Lines(string(text)) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 4 || !strings.HasPrefix(cells[0], " `") {
			continue
		}
		for i := range cells {
			cells[i] = strings.Trim(cells[i], " `")
		}
		if cells[3] == "" {
			t.Errorf("%s does not say what %s means", page, cells[0])
		}
		if _, twice := rows[cells[0]]; twice {
			t.Errorf("%s has %s twice", page, cells[0])
		}
		rows[cells[0]] = row{standard: cells[1], example: cells[2]}
	}
	return rows
}

// changes returns when each parameter can be changed, by the page's table of changes.
func changes(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, section, found := strings.Cut(string(text), "## Change a volume\n")
	if !found {
		t.Fatalf("%s has no section about changes", page)
	}
	section, _, _ = strings.Cut(section, "\n## ")
	when := map[string]string{}
	for line := range strings.Lines(section) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 3 || !strings.HasPrefix(cells[0], " `") {
			continue
		}
		for name := range strings.SplitSeq(cells[0], ",") {
			when[strings.Trim(name, " `")] = strings.TrimSpace(cells[1])
		}
	}
	return when
}

func TestPageHasEveryParameter(t *testing.T) {
	got, want := slices.Sorted(maps.Keys(documented(t))), slices.Sorted(maps.Keys(fields))
	if !slices.Equal(got, want) {
		t.Errorf("docs/parameters.md has\n%v\nthe code has\n%v", got, want)
	}
}

// TestChartTakesEveryParameter compares the chart's schema with the code. The chart sets the
// cluster and the pool itself.
func TestChartTakesEveryParameter(t *testing.T) {
	text, err := os.ReadFile(schema)
	if err != nil {
		t.Fatal(err)
	}
	var values struct {
		Properties struct {
			StorageClasses struct {
				Items struct {
					Properties struct {
						Parameters struct {
							Properties map[string]struct {
								Type    string  `json:"type"`
								Default *string `json:"default"`
							} `json:"properties"`
						} `json:"parameters"`
					} `json:"properties"`
				} `json:"items"`
			} `json:"storageClasses"`
		} `json:"properties"`
	}
	if err := json.Unmarshal(text, &values); err != nil {
		t.Fatal(err)
	}
	accepted := values.Properties.StorageClasses.Items.Properties.Parameters.Properties
	got := append(slices.Collect(maps.Keys(accepted)), keyClusterID, keyPool)
	slices.Sort(got)
	if want := slices.Sorted(maps.Keys(fields)); !slices.Equal(got, want) {
		t.Errorf("values.schema.json accepts, with clusterID and pool,\n%v\nthe code has\n%v", got, want)
	}
	rows := documented(t)
	for key, p := range accepted {
		if p.Type != "string" {
			t.Errorf("values.schema.json: %s is of type %q, and StorageClass parameters are strings", key, p.Type)
		}
		if p.Default != nil && *p.Default != rows[key].standard {
			t.Errorf("values.schema.json: the default of %s is %q, and docs/parameters.md says %s", key, *p.Default, rows[key].standard)
		}
	}
}

// TestPageHasTheDefaults builds the parameters from the documented defaults alone and compares them
// with what the code gives a StorageClass that has only a cluster and a pool.
func TestPageHasTheDefaults(t *testing.T) {
	want := Parameters{}
	for key, r := range documented(t) {
		switch r.standard {
		case "required":
			if _, err := Parse(with(key, "", otherOf(key), "x")); err == nil || !strings.Contains(err.Error(), key+" is required") {
				t.Errorf("docs/parameters.md: %s is required; the code says %v", key, err)
			}
		case "none":
		default:
			if key == keyImageFeatures { // internal/rbd's: compared in internal/controller/ceph
				continue
			}
			if err := fields[key](&want, r.standard); err != nil {
				t.Errorf("docs/parameters.md: the default of %s: %q %v", key, r.standard, err)
			}
		}
	}
	got, err := Parse(with())
	if err != nil {
		t.Fatal(err)
	}
	got.ClusterID, got.Pool = "", ""
	if got.Layout != nil {
		t.Fatalf("the code sets a layout: %+v", got.Layout)
	}
	got.Layout = &v1alpha1.ImageLayout{ObjectSizeBytes: defaultObjectSize}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("the code's defaults are\n%+v %+v\ndocs/parameters.md has\n%+v %+v", got, got.Layout, want, want.Layout)
	}
}

// otherOf returns the required parameter that key is not.
func otherOf(key string) string {
	if key == keyPool {
		return keyClusterID
	}
	return keyPool
}

func TestPagesExamplesAreValid(t *testing.T) {
	rows := documented(t)
	all := map[string]string{}
	for key, r := range rows {
		if r.example == r.standard {
			t.Errorf("docs/parameters.md: the example of %s is its default", key)
		}
		if key != keyCacheMode { // writethrough excludes the options of write-back
			all[key] = r.example
		}
	}
	if _, err := Parse(all); err != nil {
		t.Errorf("all examples together: %v", err)
	}
	if _, err := Parse(with(keyCacheMode, rows[keyCacheMode].example)); err != nil {
		t.Error(err)
	}

	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(text), "\n## Example\n")
	_, rest, _ = strings.Cut(rest, "```yaml\n")
	block, _, found := strings.Cut(rest, "```")
	var class struct {
		Parameters map[string]string `json:"parameters"`
	}
	if err := yaml.Unmarshal([]byte(block), &class); err != nil || !found {
		t.Fatalf("docs/parameters.md has no example, or one that cannot be read: %v", err)
	}
	if _, err := Parse(class.Parameters); err != nil {
		t.Errorf("the example: %v", err)
	}
}
