package conformance

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
	"strings"

	"github.com/escache/escache-csi/api/escache"
)

func inputChecks() []Check {
	return []Check{
		{"bad bodies are refused and change nothing", badBodies, alone},
		{"bad parameters are refused and change nothing", badParameters, alone},
		{"wrong methods and paths are refused", wrongMethods, alone},
	}
}

// bodyCall is a call with a body, and a right one to spoil.
type bodyCall struct {
	method, path string
	right        any
}

func bodyCalls(v *volume) []bodyCall {
	ref := v.VolumeRef
	return []bodyCall{
		{http.MethodPut, escache.PathReplica, v.request()},
		{http.MethodPost, escache.PathDevConnect, escache.ConnectRequest{VolumeRef: ref, Epoch: 1}},
		{http.MethodPost, escache.PathFlush, escache.FlushRequest{VolumeRef: ref, TimeoutSeconds: 1}},
		{http.MethodPost, escache.PathStop, escache.StopRequest{VolumeRef: ref}},
		{http.MethodPost, escache.PathMode, escache.ModeRequest{VolumeRef: ref, Mode: escache.ModeWriteback}},
		{http.MethodPost, escache.PathOptions, escache.OptionsRequest{VolumeRef: ref, Epoch: 1}},
		{http.MethodPost, escache.PathHold, escache.HoldRequest{VolumeRef: ref, MaxSeconds: 1}},
		{http.MethodPost, escache.PathRelease, escache.ReleaseRequest{VolumeRef: ref}},
		{http.MethodPost, escache.PathResize, escache.ResizeRequest{VolumeRef: ref, SizeBytes: 4096}},
		{http.MethodPost, escache.PathAbandon, escache.AbandonRequest{VolumeRef: ref, Epoch: 1}},
		{http.MethodPost, escache.PathMap, escache.MapRequest{VolumeRef: ref, ImageID: "1d1"}},
		{http.MethodPost, escache.PathUnmap, escache.UnmapRequest{VolumeRef: ref}},
		{http.MethodPost, escache.PathTrim, escache.TrimRequest{VolumeRef: ref, Epoch: 1, FSType: "ext4", TimeoutSeconds: 1}},
	}
}

// lasting is what of each volume changes only by calls; links come up and disks are looked at by
// themselves.
func (h *host) lasting() []escache.VolumeStatus {
	h.s.Helper()
	volumes := h.statuses()
	for i := range volumes {
		v := &volumes[i]
		v.Role, v.DiskState, v.Peers, v.SyncedPercent, v.Resync, v.IOSuspended, v.DirtyBytes = "", "", nil, 0, nil, false, nil
	}
	return volumes
}

// unchanged demands that the host has the same volumes and the same space after f as before.
func (h *host) unchanged(f func()) {
	h.s.Helper()
	volumes, node := h.lasting(), h.node()
	f()
	if now := h.lasting(); !reflect.DeepEqual(now, volumes) {
		h.s.Errorf("%s: refused calls changed the volumes from %+v to %+v", h.Name, volumes, now)
	}
	if now := h.node(); now.CacheAllocatedBytes != node.CacheAllocatedBytes || now.Volumes != node.Volumes {
		h.s.Errorf("%s: refused calls changed the host from %+v to %+v", h.Name, node, now)
	}
}

func badBodies(s *suite) {
	v := s.nameVolume()
	s.first.unchanged(func() {
		for _, c := range bodyCalls(v) {
			right := encode(s, c.right)
			for what, body := range spoiled(s, right) {
				a := s.first.send(request{method: c.method, path: c.path, body: body, broken: true})
				refused(s, fmt.Sprintf("%s %s with %s", c.method, c.path, what), a, escache.CodeInvalidRequest)
			}
			a := s.first.send(request{method: c.method, path: c.path, body: oversized(right), chunked: true, broken: true})
			refused(s, fmt.Sprintf("%s %s with a body over 64 KiB of unknown length", c.method, c.path), a, escache.CodeInvalidRequest)
		}
	})
}

// oversized is right in all but its length.
func oversized(right []byte) []byte {
	return append(bytes.Repeat([]byte(" "), 64<<10), right...)
}

// spoiled are the ways in which a right body can be wrong.
func spoiled(t T, right []byte) map[string][]byte {
	t.Helper()
	bodies := map[string][]byte{
		"no body":              {},
		"no JSON":              []byte("pool=rbd"),
		"a cut body":           right[:len(right)-1],
		"something behind it":  append(slices.Clone(right), []byte("{}")...),
		"a list":               []byte("[" + string(right) + "]"),
		"null":                 []byte("null"),
		"a body over 64 KiB":   oversized(right),
		"invalid UTF-8":        bytes.Replace(right, []byte(`"image":"c`), []byte("\"image\":\"c\xff\xfe"), 1),
		"a deep nest of lists": []byte(strings.Repeat("[", 20000)),
	}
	var fields map[string]any
	if err := json.Unmarshal(right, &fields); err != nil {
		t.Fatalf("%v", err)
	}
	change := func(what, field string, value any) {
		changed := maps.Clone(fields)
		changed[field] = value
		bodies[what] = encode(t, changed)
	}
	change("an unknown field", "force", true)
	change("a negative epoch", "epoch", -1)
	change("an unknown cache engine", "engine", "bcache")
	for field := range fields {
		if field == "imageID" || field == "options" || field == "secret" || field == "engine" { // optional
			continue
		}
		without := maps.Clone(fields)
		delete(without, field)
		bodies["no "+field] = encode(t, without)
		change(field+" null", field, nil)
		change(field+" of another type", field, map[string]any{"a": 1})
	}
	for what, name := range map[string]string{
		"a slash": "a/b", "a leading dash": "-rf", "two dots": "..", "nothing": "", "a line break": "a\nb", "a quote": `a"b`,
		"a space":           "a b",
		"a shell's letters": "$(reboot)", "an at sign": "a@b", "129 letters": strings.Repeat("a", 129), "no ASCII": "é", "a NUL": "a\x00b",
	} {
		change("a pool with "+what, "pool", name)
		change("an image with "+what, "image", name)
	}
	spoilNumbers(fields, change)
	return bodies
}

func spoilNumbers(fields map[string]any, change func(what, field string, value any)) {
	for field, values := range map[string][]any{
		"sizeBytes":      {0, -4096, 4095, 4097, 1.5, "4096", json.Number("1e30")},
		"cacheBytes":     {0, -4096, 4097, 1.5, json.Number("9223372036854775808")},
		"epoch":          {0, -1, 1.5, "1"},
		"timeoutSeconds": {0, -1, 0.5, 86401, json.Number("1e12")},
		"maxSeconds":     {0, -1, 0.5, 3601},
		"port":           {0, -1, 65536},
		"minor":          {-1, 1 << 20},
		"mode":           {"", "fast", "Writeback"},
		"secret":         {strings.Repeat("x", 42), strings.Repeat("x", 44), strings.Repeat("\"", 43), strings.Repeat("x", 42) + "\n", 1},
	} {
		if _, ok := fields[field]; !ok {
			continue
		}
		for _, value := range values {
			change(fmt.Sprintf("%s %v", field, value), field, value)
		}
	}
	if nodes, ok := fields["nodes"].([]any); ok {
		for _, value := range []any{"true", 1, []any{}} {
			change(fmt.Sprintf("join %v", value), "join", value)
		}
		one, two := nodes[0].(map[string]any), nodes[1].(map[string]any) //nolint:forcetypeassert // the suite's own request
		change("one node", "nodes", []any{one})
		change("three nodes", "nodes", []any{one, two, two})
		change("the same node twice", "nodes", []any{one, one})
		change("two nodes with one address", "nodes", []any{one, map[string]any{"name": two["name"], "address": one["address"]}})
		change("an address that is none", "nodes", []any{one, map[string]any{"name": two["name"], "address": "10.0.0.1:80"}})
		change("nodes without this one", "nodes", []any{two, map[string]any{"name": "elsewhere", "address": "192.0.2.1"}})
		change("an unknown field in a node", "nodes", []any{one, map[string]any{"name": two["name"], "address": two["address"], "x": 1}})
	}
	if _, ok := fields["options"]; ok {
		change("an unknown option", "options", map[string]any{"force": true})
		change("an option out of range", "options", map[string]any{"highWatermark": 101})
		change("a mode that is none", "options", map[string]any{"mode": "fast"})
		change("a low watermark above the high one", "options", map[string]any{"highWatermark": 20, "lowWatermark": 30})
	}
}

func badParameters(s *suite) {
	v := s.laid()
	s.first.unchanged(func() {
		for _, query := range []url.Values{
			{}, {"pool": {v.Pool}}, {"image": {v.Image}}, {"pool": {v.Pool}, "image": {"-x"}}, {"pool": {"a/b"}, "image": {v.Image}},
			{"pool": {v.Pool}, "image": {v.Image}, "discard": {"yes"}}, {"pool": {v.Pool}, "image": {v.Image}, "discard": {""}},
			{"pool": {v.Pool}, "image": {v.Image}, "force": {"true"}}, {"pool": {v.Pool}, "image": {v.Image, "other"}},
		} {
			a := s.first.send(request{method: http.MethodDelete, path: escache.PathReplica, query: query, broken: true})
			refused(s, "DELETE replica?"+query.Encode(), a, escache.CodeInvalidRequest)
		}
	})
}

func wrongMethods(s *suite) {
	v := s.nameVolume()
	allowed := map[string][]string{escache.PathNode: {http.MethodGet}, escache.PathStatus: {http.MethodGet}}
	for _, c := range bodyCalls(v) {
		allowed[c.path] = append(allowed[c.path], c.method)
	}
	allowed[escache.PathReplica] = append(allowed[escache.PathReplica], http.MethodDelete)
	for path, methods := range allowed {
		for _, method := range []string{http.MethodGet, http.MethodPut, http.MethodPost, http.MethodDelete, http.MethodPatch} {
			if slices.Contains(methods, method) {
				continue
			}
			a := s.first.send(request{method: method, path: path, broken: true})
			refused(s, method+" "+path, a, escache.CodeMethodNotAllowed)
			for _, right := range methods {
				if !strings.Contains(a.header.Get("Allow"), right) {
					s.Errorf("%s %s: Allow is %q, want %s in it", method, path, a.header.Get("Allow"), right)
				}
			}
		}
	}
	for _, path := range []string{"/", "/v1", "/v2/node", "/v1/node/", "/v1/nothing"} {
		refused(s, "GET "+path, s.first.send(request{method: http.MethodGet, path: path, broken: true}), escache.CodeUnknownPath)
	}
}
