package server

import (
	"fmt"

	"github.com/escache/escache-csi/api/escache"
)

// fail returns an error that the API answers with code. The text tells the operator what to do
// next.
func fail(code escache.Code, format string, args ...any) error {
	return &escache.Problem{Code: code, Detail: fmt.Sprintf(format, args...)}
}
