package escachetest

import (
	"cmp"
	"slices"

	"github.com/escache/escache-csi/api/escache"
)

// otherEngine reports whether a request names another engine than that of the replica.
func (h *Host) otherEngine(r *replica, engine escache.Engine) bool {
	return r.req.Engine != cmp.Or(engine, escache.EngineWritecache) && !h.w.breaks("engines are not compared")
}

// engines are the cache engines that the host can run. A host whose peer the test plays has them all.
func (h *Host) engines() []escache.Engine {
	if h.w.alone {
		return []escache.Engine{escache.EngineWritecache, escache.EngineLog}
	}
	return []escache.Engine{escache.EngineWritecache}
}

// canRun refuses an engine that the host cannot run.
func (h *Host) canRun(engine escache.Engine) error {
	if engine != "" && !slices.Contains(h.engines(), engine) {
		return fail(escache.CodeEngineMissing, "no engine %s here", engine)
	}
	return nil
}
