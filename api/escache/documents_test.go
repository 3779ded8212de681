package escache

import (
	"context"
	"net/url"
	"path"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
)

func load(t *testing.T, file string) *openapi3.T {
	t.Helper()
	loader := openapi3.NewLoader()
	loader.IsExternalRefsAllowed = true
	loader.ReadFromURIFunc = func(_ *openapi3.Loader, u *url.URL) ([]byte, error) {
		return Documents.ReadFile(path.Base(u.Path))
	}
	doc, err := loader.LoadFromURI(&url.URL{Path: file})
	if err != nil {
		t.Fatalf("load %s: %v", file, err)
	}
	return doc
}

func TestDocumentsAreValid(t *testing.T) {
	for _, file := range []string{OpenAPIFile, ArbiterFile} {
		t.Run(file, func(t *testing.T) {
			doc := load(t, file)
			err := doc.Validate(context.Background(), openapi3.EnableExamplesValidation(), openapi3.EnableSchemaFormatValidation())
			if err != nil {
				t.Fatal(err)
			}
		})
	}
}
