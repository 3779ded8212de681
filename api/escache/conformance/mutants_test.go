package conformance

import "github.com/escache/escache-csi/api/escache"

// engines are those of the checks that say nothing about writecache.
var engines = map[string]escache.Engine{
	"a second hold has what was written during the first":         escache.EngineLog,
	"a hold with a pause keeps writers waiting with every engine": escache.EngineLog,
}

// mutants are worlds that break one rule, each under the check that must catch it.
var mutants = map[string][]string{
	"node counts what is created": {
		"space is not given back", "primaries are not counted",
		"connected caches are not counted", "a connected cache takes no memory", "nothing is connectable",
	},
	"a cache is connected only if there is memory for it": {
		"memory is not checked", "a connect without memory stores the epoch",
	},
	"status of a volume that is not here": {
		"an absent volume is an error",
		"answers have a field of their own",
		"unknown parameters are ignored",
	},
	"TCP needs a client certificate":      {"anybody may call"},
	"a client of another name is refused": {"every name may call"},
	"bad bodies are refused and change nothing": {
		"unknown fields are ignored",
		"bodies have no bound",
		"names are not checked",
		"missing fields are zero",
		"sizes are not checked",
	},
	"bad parameters are refused and change nothing": {"unknown parameters are ignored"},
	"wrong methods and paths are refused": {
		"Allow is not sent",
		"errors are plain JSON",
		"every error is a 500",
		"codes of its own",
	},
	"a replica is created once":                     {"a replica is created but once", "an image id is not filled in", "the list is empty", "an older size is refused"},
	"a replica with other parameters is refused":    {"parameters are not compared", "engines are not compared"},
	"ports and minors belong to one volume":         {"a port is given twice", "a minor is given twice"},
	"a cache larger than the free space is refused": {"space is not checked", "a refused replica stays"},
	"a replica is deleted once":                     {"what is gone cannot be deleted"},
	"a request of an earlier attachment changes nothing": {
		"an old request is carried out", "a later attachment's replica is discarded", "the epoch of a confirmation is forgotten",
		"a discard without an epoch drops everything",
	},
	"a connected replica is not deleted":                {"a connected replica is deleted", "discard removes a connected replica"},
	"a standby is not deleted while the cache is dirty": {"a dirty replica is deleted"},
	"a standby is not deleted while it is the only copy of a running volume": {
		"the only copy is deleted", "a refused delete removes the only copy",
	},
	"connect makes the device once": {
		"the device has another size",
		"a repeated connect is refused",
		"a repeated connect maps again",
		"a newer epoch is not recorded",
		"it goes on without a current peer",
		"a connect is never over",
	},
	"an older epoch is refused":                        {"older epochs are taken", "stop forgets the epoch", "a refused epoch is recorded"},
	"another cache engine is refused":                  {"engines are not compared", "a refused engine is recorded"},
	"another image is refused":                         {"image ids are not compared", "a refused connect stays Primary"},
	"connect without a replica or an image is refused": {"a refused connect stays Primary"},
	"an image that another client holds is refused":    {"a lock is no obstacle"},
	"flush makes the cache clean":                      {"flush lies", "flush loses data"},
	"flush says what is left when its time is up":      {"flush lies when its time is up", "flush knows no end"},
	"a second call on a busy volume is told what runs": {
		"a busy volume makes callers wait",
		"busy does not name the operation",
		"operations run at the same time",
		"one operation blocks all volumes",
		"status waits for the running operation",
	},
	"stop removes the device once":             {"stop twice is an error", "stop does nothing", "stop keeps the image's lock"},
	"stop is refused while dirty":              {"a dirty device is stopped"},
	"stop is refused while the device is open": {"an open device is stopped"},
	"writethrough drains and keeps the cache clean under writes": {
		"writethrough dirties",
		"writethrough does not drain",
		"mode does nothing",
	},
	"connect may begin in writethrough": {"options are ignored"},
	"options change under running I/O": {
		"options are said and not set",
		"options of an older epoch are taken",
		"options lose what is dirty",
		"options end write-through",
		"an option that is left out stays",
		"crossed watermarks are taken",
		"an order that the engine does not have is taken",
	},
	"a device on a fenced client's map is built again": {
		"a fenced client's map is handed out", "what was dirty is gone with a fenced client's map", "every map is taken for fenced",
	},
	"hold suspends I/O with a clean cache until release": {
		"hold lets writes through",
		"hold does not clean",
		"a second hold cuts the first short",
		"a held volume is stopped",
		"what is not held cannot be released",
	},
	"a second hold has what was written during the first": {
		"a second hold has the image of the first", "a second hold has the time of the first", "hold does not clean",
	},
	"a hold with a pause keeps writers waiting with every engine": {
		"a pause lets writes through", "a pause is only said", "a pause is ignored", "a pause is not said", "no watchdog",
		"hold does not clean", "pause is an unknown field",
	},
	"a watchdog releases a hold": {"no watchdog"},
	"resize grows the device and keeps its data": {
		"resize does nothing",
		"resize loses data",
		"a device shrinks",
		"a device outgrows its image",
		"the peer does not learn of a resize",
	},
	"the second host is refused while the first has the device":      {"two hosts may connect"},
	"a standby tells that its linked peer is Primary":                {"a peer's role is not told"},
	"an orderly move takes the data along":                           {"data does not move"},
	"two copies that are both to be filled are never declared equal": {"joined copies are declared equal"},
	"a copy that joins a running volume is filled from it":           {"a joined copy stays empty", "data does not move", "a resync has no end"},
	"a copy that must exist is not created":                          {"what must exist is created"},
	"every answer says which host it is of": {
		"a host has no identity", "all hosts have one identity", "status does not say who answers",
		"answers without a body do not say who answers",
	},
	"a call of an earlier attachment changes nothing": {
		"a late stop is carried out", "a late flush is carried out", "a late mode is carried out", "a late resize is carried out",
		"a late hold is carried out", "a late release is carried out", "stop forgets the epoch",
	},
	"a call for another host changes nothing": {"a call for another host is carried out", "all hosts have one identity"},
	"a device without a filesystem is not trimmed and not formatted": {
		"a device without a filesystem is trimmed", "trim makes a filesystem", "a late trim is carried out",
	},
	"an image without a cache is not trimmed when another host is given the volume": {"a trim asks no arbiter"},
	"a device is not abandoned without proof":                                       {"the caller's word is proof"},
	"a device whose peer has everything is abandoned when another host is given the volume": {
		"a device is not abandoned while its peer is connected", "stop keeps the image's lock",
	},
	"no answer has the secret of the link":          {"a refusal repeats the request", "names are not checked"},
	"a peer with another secret is not let in":      {"anybody is taken for the peer", "a secret is kept for ever"},
	"another secret does not disturb a link in use": {"another secret is taken at once"},
	"an image is mapped without a cache, by one host": {
		"a map without a cache takes older epochs", "any image is mapped without a cache", "a map without a cache is not exclusive",
		"a map without a cache is not told", "stop keeps the image's lock", "an open device is stopped",
	},
	"a request to map without a cache names the image and no cache": {"a map without a cache takes any request"},
	"a replica and a map without a cache keep each other out": {
		"a replica is created beside a map without a cache", "an image is mapped beside a replica",
	},
	"an image without a cache is mapped once": {
		"a repeated map maps again", "what is not mapped cannot be unmapped", "image ids are not compared", "an open map is unmapped",
		"unmap does nothing", "a map has no lock",
	},
	"many hosts map an image read-only":                {"a read-only map can be written to"},
	"an image with a replica is mapped by its connect": {"an image with a replica is mapped"},
	"after a restart nothing is absent that is there": {
		"a service answers before it has recovered", "a service lists what it has found so far", "a restart loses the epoch",
	},
	"abandon of what is not connected changes nothing": {"a standby cannot be abandoned", "abandon drops the standby"},
}
