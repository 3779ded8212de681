package server

import (
	"fmt"

	"github.com/escache/escache-csi/api/escache"
)

// fail makes an error that the API answers with this code. The text tells the operator what to do.
func fail(code escache.Code, format string, args ...any) error {
	return &escache.Problem{Code: code, Detail: fmt.Sprintf(format, args...)}
}
