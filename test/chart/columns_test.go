package chart

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// schema is what the test needs of a field's OpenAPI schema.
type schema struct {
	Type       string
	Properties map[string]schema
	Additional *schema `yaml:"additionalProperties"`
	Items      *schema
}

type crd struct {
	Spec struct {
		Names    struct{ Plural string }
		Versions []struct {
			Columns []struct {
				Name, Type string
				Path       string `yaml:"jsonPath"`
			} `yaml:"additionalPrinterColumns"`
			Schema struct {
				OpenAPI schema `yaml:"openAPIV3Schema"`
			}
		}
	}
}

// step is one part of a column's JSONPath: a field, whose dots have a backslash before them, or an index or filter in brackets.
var step = regexp.MustCompile(`\.((?:[^.\[\\]|\\.)+)|(\[[^\]]*\])`)

// pointsTo follows a JSONPath through a schema. It is nil if the schema has no such field.
func pointsTo(s *schema, path string) *schema {
	for _, part := range step.FindAllStringSubmatch(path, -1) {
		if part[2] != "" {
			s = s.Items
		} else if field, ok := s.Properties[strings.ReplaceAll(part[1], `\`, "")]; ok {
			s = &field
		} else {
			s = s.Additional
		}
		if s == nil {
			return nil
		}
	}
	return s
}

// TestColumnsAreForPeople wants no column of `kubectl get` that prints a list as JSON, a number of bytes, or nothing.
func TestColumnsAreForPeople(t *testing.T) {
	files, err := filepath.Glob(chartDir + "/crds/*.yaml")
	if err != nil || len(files) == 0 {
		t.Fatalf("no CRDs: %v", err)
	}
	for _, file := range files {
		var c crd
		text, err := os.ReadFile(file)
		if err == nil {
			err = yaml.Unmarshal(text, &c)
		}
		if err != nil || len(c.Spec.Versions) == 0 {
			t.Fatalf("%s: %v", file, err)
		}
		for _, v := range c.Spec.Versions {
			if len(v.Columns) < 3 {
				t.Errorf("%s has %d columns", file, len(v.Columns))
			}
			for _, column := range v.Columns {
				where := "kubectl get " + c.Spec.Names.Plural + ": column " + column.Name
				if strings.HasPrefix(column.Path, ".metadata.") {
					continue // the CRD's schema does not describe these
				}
				field := pointsTo(&v.Schema.OpenAPI, column.Path)
				switch {
				case field == nil:
					t.Errorf("%s: there is no field %s", where, column.Path)
				case field.Type == "array" || field.Type == "object":
					t.Errorf("%s prints the %s %s as JSON", where, field.Type, column.Path)
				case strings.HasSuffix(column.Path, "Bytes"):
					t.Errorf("%s prints the number %s: sizes are shown as 1Gi", where, column.Path)
				}
			}
		}
	}
}
