package engine

import (
	"testing"

	"github.com/escache/escache-csi/internal/escached/cache/cachetest"
)

func TestTheLogKeepsTheContract(t *testing.T) {
	cachetest.Run(t, func(t *testing.T) cachetest.Host { return newHost(t) })
}
