package nbd

import "github.com/escache/escache-csi/internal/escached/cache/log/record"

// Decode is what the server does with the header of a request.
func Decode(header []byte, bytes uint64) (Request, Errno, bool) {
	if len(header) != requestBytes {
		return Request{}, OK, false
	}
	r, ok := decodeRequest(header)
	return r, r.check(bytes, record.BlockBytes), ok
}
