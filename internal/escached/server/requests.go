package server

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/escache/escache-csi/api/escache"
	"github.com/escache/escache-csi/internal/escached"
	"github.com/escache/escache-csi/internal/escached/problem"
	"github.com/escache/escache-csi/internal/fstype"
)

// maxBody bounds a request's body, in bytes.
const maxBody = 64 << 10

// minCache is the size of the smallest cache that works, in bytes: header, metadata of the cache
// and of DRBD, some data.
const minCache = 8 << 20

// Its length is not part of the pattern: see internal/escached/config.go.
var imageID = regexp.MustCompile(`^[A-Za-z0-9]+$`)

const maxImageID = 64

func invalid(format string, args ...any) error {
	return problem.New(escache.CodeInvalidRequest, format, args...)
}

// decode reads a body into a request. The body is one JSON value in UTF-8. Unknown fields are
// errors.
func decode(r *http.Request, into any) error {
	data, err := io.ReadAll(io.LimitReader(r.Body, maxBody+1))
	switch {
	case err != nil:
		return invalid("body: cannot be read: %v", err)
	case len(data) > maxBody:
		return invalid("body: longer than %d bytes", maxBody)
	case !utf8.Valid(data):
		return invalid("body: not valid UTF-8")
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(into); err != nil {
		return invalid("body: %v", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return invalid("body: more than one JSON value")
	}
	return nil
}

// query reads the parameters of the URL. A parameter that is not allowed, or given twice, is an
// error.
func query(r *http.Request, allowed ...string) (map[string]string, error) {
	values, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return nil, invalid("query: %v", err)
	}
	out := map[string]string{}
	for key, list := range values {
		if !slices.Contains(allowed, key) {
			return nil, invalid("query: unknown parameter %q; allowed are: %s", key, strings.Join(allowed, ", "))
		}
		if len(list) != 1 {
			return nil, invalid("query: parameter %q is given %d times", key, len(list))
		}
		out[key] = list[0]
	}
	return out, nil
}

func checkRef(ref escache.VolumeRef) error {
	for key, name := range map[string]string{"pool": ref.Pool, "image": ref.Image} {
		if !escached.IsVolumeName(name) {
			return invalid("%s: %q is not a valid name: use 1 to 128 of A-Z a-z 0-9 _ . - and begin with a letter, a digit or _", key, name)
		}
	}
	return nil
}

// checkCall checks what most calls begin with: the volume, and the epoch if one is given.
func checkCall(ref escache.VolumeRef, epoch int64) error {
	if epoch < 0 {
		return cmp.Or(checkRef(ref), invalid("epoch: %d is negative", epoch))
	}
	return checkRef(ref)
}

func checkImageID(id string) error {
	if len(id) > maxImageID || id != "" && !imageID.MatchString(id) {
		return invalid("imageID: %q is not an image id; `rbd info` shows the id", id)
	}
	return nil
}

func checkBytes(key string, n int64) error {
	switch {
	case n <= 0:
		return invalid("%s: %d is not a size", key, n)
	case n%4096 != 0:
		return invalid("%s: %d is not a multiple of 4096; round the size up", key, n)
	}
	return nil
}

func checkReplica(r escache.ReplicaRequest) error {
	errs := []error{
		checkCall(r.VolumeRef, r.Epoch), checkImageID(r.ImageID),
		checkBytes("sizeBytes", r.SizeBytes), checkBytes("cacheBytes", r.CacheBytes),
	}
	if r.CacheBytes < minCache {
		errs = append(errs, invalid("cacheBytes: %d is less than %d, the smallest cache", r.CacheBytes, minCache))
	}
	if len(r.Nodes) != 2 {
		errs = append(errs, invalid("nodes: %d given, but a replica has exactly two", len(r.Nodes)))
		return cmp.Or(errs...)
	}
	for _, n := range r.Nodes {
		if !escached.IsNodeName(n.Name) {
			errs = append(errs, invalid("nodes: %q is not a host name", n.Name))
		}
		if net.ParseIP(n.Address) == nil {
			errs = append(errs, invalid("nodes: %q is not an IP address", n.Address))
		}
	}
	if r.Nodes[0].Name == r.Nodes[1].Name || net.ParseIP(r.Nodes[0].Address).Equal(net.ParseIP(r.Nodes[1].Address)) {
		errs = append(errs, invalid("nodes: both replicas are on one host; name two"))
	}
	if r.Port < 1 || r.Port > 65535 {
		errs = append(errs, invalid("port: %d is not a port", r.Port))
	}
	if r.Minor < 0 || r.Minor >= 1<<20 {
		errs = append(errs, invalid("minor: %d is not a minor number", r.Minor))
	}
	errs = append(errs, checkEngine(r.Engine))
	if r.Secret != "" && !r.Secret.Valid() {
		errs = append(errs, invalid("secret: it is not 32 bytes in unpadded base64url"))
	}
	return cmp.Or(errs...)
}

func checkConnect(r escache.ConnectRequest) error {
	errs := []error{checkRef(r.VolumeRef), checkImageID(r.ImageID), checkEpoch(r.Epoch), checkEngine(r.Engine)}
	if r.Options.Mode != "" {
		errs = append(errs, checkMode(r.Options.Mode))
	}
	switch {
	case !r.Uncached:
	case r.ImageID == "":
		errs = append(errs, invalid("imageID: it is required with uncached"))
	case r.Engine != "" || r.Options != escache.ConnectOptions{}:
		errs = append(errs, invalid("uncached: there is no cache, so leave engine and options out"))
	}
	return cmp.Or(append(errs, checkOptions(r.Options.CacheOptions))...)
}

func checkMap(r escache.MapRequest) error {
	if r.ImageID == "" {
		return invalid("imageID: it is missing; `rbd info` shows the id")
	}
	return cmp.Or(checkRef(r.VolumeRef), checkImageID(r.ImageID))
}

func checkOptions(o escache.CacheOptions) error {
	var errs []error
	for key, percent := range map[string]int{"highWatermark": o.HighWatermark, "lowWatermark": o.LowWatermark} {
		if percent < 0 || percent > 100 {
			errs = append(errs, invalid("options.%s: %d is not between 1 and 100 percent", key, percent))
		}
	}
	if o.MaxDirtyAgeSeconds < 0 || o.MaxDirtyAgeSeconds > escache.MaxDirtyAgeSeconds {
		errs = append(errs, invalid("options.maxDirtyAgeSeconds: %d is not between 1 and %d",
			o.MaxDirtyAgeSeconds, escache.MaxDirtyAgeSeconds))
	}
	if order := o.WriteBackOrder; order != "" && order != escache.OrderMerged && order != escache.OrderStrict {
		errs = append(errs, invalid("options.writeBackOrder: %q is neither %s nor %s", order, escache.OrderMerged, escache.OrderStrict))
	}
	return cmp.Or(errs...)
}

func checkEpoch(epoch int64) error {
	if epoch < 1 {
		return invalid("epoch: %d is not positive", epoch)
	}
	return nil
}

// checkEngine accepts every engine of the API. Whether this host has it is for the engine to say.
func checkEngine(name escache.Engine) error {
	if name != "" && name != escache.EngineWritecache && name != escache.EngineLog {
		return invalid("engine: %q is neither %s nor %s", name, escache.EngineWritecache, escache.EngineLog)
	}
	return nil
}

func checkMode(m escache.Mode) error {
	if m != escache.ModeWriteback && m != escache.ModeWritethrough {
		return invalid("mode: %q is neither %s nor %s", m, escache.ModeWriteback, escache.ModeWritethrough)
	}
	return nil
}

func checkSeconds(key string, n, most int) error {
	if n < 1 || n > most {
		return invalid("%s: %d is not between 1 and %d", key, n, most)
	}
	return nil
}

// discardOf reads the parameters discard and epoch, which allow losing data. Only "true" means yes;
// left out means no. Who says yes must say up to which attachment.
func discardOf(q map[string]string) (upTo *int64, err error) {
	var epoch int64
	number, numbered := q["epoch"]
	if numbered {
		if epoch, err = strconv.ParseInt(number, 10, 64); err != nil || epoch < 0 {
			return nil, invalid("epoch: %q is no number of an attachment", number)
		}
	}
	switch text, given := q["discard"]; {
	case !given, text == "false":
		return nil, nil //nolint:nilnil // nothing may be lost
	case text != "true":
		return nil, invalid("discard: %q is neither true nor false", text)
	case !numbered:
		return nil, invalid("epoch: it is required with discard=true: the last attachment whose data may be lost, as %s shows it",
			escache.PathStatus)
	}
	return &epoch, nil
}

func checkTrim(r escache.TrimRequest) error {
	if err := cmp.Or(checkRef(r.VolumeRef), checkEpoch(r.Epoch), checkSeconds("timeoutSeconds", r.TimeoutSeconds, 60)); err != nil {
		return err
	}
	if err := fstype.Known(r.FSType); err != nil {
		return invalid("fsType: %v", err)
	}
	const most, longest = 64, 1024
	switch {
	case r.StartByte < 0:
		return invalid("startByte: %d is negative", r.StartByte)
	case len(r.MountOptions) > most:
		return invalid("mountOptions: %d given, at most %d are taken", len(r.MountOptions), most)
	case slices.ContainsFunc(r.MountOptions, func(o string) bool {
		return o == "" || len([]rune(o)) > longest || strings.ContainsRune(o, 0)
	}):
		return invalid("mountOptions: each is 1 to %d characters", longest)
	}
	return nil
}
