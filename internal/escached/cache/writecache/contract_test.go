package writecache

import (
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
)

func TestWritecacheKeepsTheContract(t *testing.T) {
	cachetest.Run(t, func(t *testing.T) cachetest.Host { return newHost(t) })
}
