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

// engines are the cache engines that the hosts can run.
func (h *Host) engines() []escache.Engine {
	return []escache.Engine{escache.EngineWritecache, escache.EngineLog}
}

// goesOn reports whether I/O goes on during a hold: the cache takes what is written meanwhile.
func (r *replica) goesOn() bool { return r.req.Engine == escache.EngineLog && !r.paused }

// waits reports whether a write has to wait for the end of a hold.
func (h *Host) waits(r *replica) bool {
	return r.held != nil && (!r.goesOn() || r.mode == escache.ModeWritethrough) && !h.w.breaks("hold lets writes through") &&
		(!r.paused || !h.w.breaks("a pause lets writes through"))
}

// canRun refuses an engine that the host cannot run.
func (h *Host) canRun(engine escache.Engine) error {
	if engine != "" && !slices.Contains(h.engines(), engine) {
		return fail(escache.CodeEngineMissing, "no engine %s here", engine)
	}
	return nil
}
