package escache

import "embed"

// Names of the OpenAPI 3.1 documents in Documents.
const (
	OpenAPIFile = "openapi.yaml"
	ArbiterFile = "arbiter.yaml"
)

// Documents holds the API's OpenAPI documents, for tests that validate requests and answers against
// them.
//
//go:embed openapi.yaml arbiter.yaml
var Documents embed.FS
