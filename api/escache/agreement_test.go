package escache

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/getkin/kin-openapi/openapi3"
)

// source is what the package's own files declare, read from the files so that a new name cannot be
// forgotten here.
type source struct {
	structs []string
	consts  map[string][]string // by the constant's type ("" for untyped ones with Path in front): the string values
}

func readSource(t *testing.T) source {
	t.Helper()
	src := source{consts: map[string][]string{}}
	for _, name := range []string{"types.go", "problem.go"} {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.TypeSpec:
				if _, ok := n.Type.(*ast.StructType); ok && n.Name.IsExported() {
					src.structs = append(src.structs, n.Name.Name)
				}
			case *ast.ValueSpec:
				src.addConst(t, n)
			}
			return true
		})
	}
	return src
}

func (s *source) addConst(t *testing.T, spec *ast.ValueSpec) {
	if len(spec.Values) != 1 {
		return
	}
	lit, ok := spec.Values[0].(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return
	}
	value, err := strconv.Unquote(lit.Value)
	if err != nil {
		t.Fatal(err)
	}
	kind := ""
	if id, ok := spec.Type.(*ast.Ident); ok {
		kind = id.Name
	} else if !strings.HasPrefix(spec.Names[0].Name, "Path") {
		return
	}
	s.consts[kind] = append(s.consts[kind], value)
}

func TestPathsAgreeWithDocuments(t *testing.T) {
	var documented []string
	for _, file := range []string{OpenAPIFile, ArbiterFile} {
		documented = append(documented, slices.Collect(maps.Keys(load(t, file).Paths.Map()))...)
	}
	constants := readSource(t).consts[""]
	slices.Sort(documented)
	slices.Sort(constants)
	if !slices.Equal(documented, constants) {
		t.Errorf("paths differ:\ndocuments %q\nconstants %q", documented, constants)
	}
}

func TestEnumsAgreeWithDocument(t *testing.T) {
	doc, src := load(t, OpenAPIFile), readSource(t)
	for _, name := range []string{"State", "Role", "Mode", "Engine", "Code"} {
		var documented []string
		for _, v := range doc.Components.Schemas[name].Value.Enum {
			documented = append(documented, v.(string))
		}
		constants := src.consts[name]
		slices.Sort(documented)
		slices.Sort(constants)
		if len(constants) == 0 || !slices.Equal(documented, constants) {
			t.Errorf("%s differs:\ndocument  %q\nconstants %q", name, documented, constants)
		}
	}
}

func TestCodesHaveOneStatus(t *testing.T) {
	doc, src := load(t, OpenAPIFile), readSource(t)
	documented, ok := doc.Components.Schemas["Code"].Value.Extensions["x-code-status"].(map[string]any)
	if !ok {
		t.Fatal("Code has no x-code-status")
	}
	if len(documented) != len(src.consts["Code"]) || len(Codes()) != len(documented) {
		t.Errorf("%d codes have a status in the document, %d in StatusOf, of %d", len(documented), len(Codes()), len(src.consts["Code"]))
	}
	for _, code := range Codes() {
		if n, ok := documented[string(code)].(float64); !ok || int(n) != StatusOf(code) {
			t.Errorf("%s: document has %v, StatusOf %d", code, documented[string(code)], StatusOf(code))
		}
	}
	if got := StatusOf("no such code"); got != http.StatusInternalServerError {
		t.Errorf("an unknown code has status %d", got)
	}
}

// codesOf reads the codes an error response may carry.
func codesOf(t *testing.T, where string, response *openapi3.Response) []Code {
	t.Helper()
	media := response.Content[ProblemContentType]
	if media == nil || len(media.Schema.Value.AllOf) != 2 {
		t.Fatalf("%s: no %s with Problem and its codes", where, ProblemContentType)
	}
	var codes []Code
	for _, v := range media.Schema.Value.AllOf[1].Value.Properties["code"].Value.Enum {
		codes = append(codes, Code(v.(string)))
	}
	return codes
}

func TestEveryCallListsItsCodes(t *testing.T) {
	used := map[Code]bool{CodeUnknownPath: true, CodeMethodNotAllowed: true} // answers to what is no call of the document
	for path, item := range load(t, OpenAPIFile).Paths.Map() {
		for method, op := range item.Operations() {
			where := method + " " + path
			for status, ref := range op.Responses.Map() {
				if status < "400" {
					continue
				}
				for _, code := range codesOf(t, where+" "+status, ref.Value) {
					used[code] = true
					if strconv.Itoa(StatusOf(code)) != status {
						t.Errorf("%s: %s stands under %s, its status is %d", where, code, status, StatusOf(code))
					}
					if !strings.Contains(*ref.Value.Description, "`"+string(code)+"`") {
						t.Errorf("%s %s: the description does not name %s", where, status, code)
					}
				}
			}
			for _, status := range []int{400, 401, 500, 504} {
				if op.Responses.Status(status) == nil {
					t.Errorf("%s: %d is missing", where, status)
				}
			}
		}
	}
	for _, code := range Codes() {
		if !used[code] {
			t.Errorf("no call can give %s", code)
		}
	}
}

// populated holds one value of every wire type with no field at its zero value.
func populated() map[string]any {
	ref := VolumeRef{Pool: "rbd", Image: "csi-1"}
	dirty, until := int64(4096), time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	connectable := int64(8)
	kernel := Kernel{Release: "6.1.0", DRBD: "8.4.11", Writecache: "1.6.0", RBD: true}
	peer := Peer{Name: "n2", Address: "10.77.0.12", ConnectionState: "Connected", DiskState: "UpToDate", Role: RoleSecondary}
	fault := Fault{Code: CodeCacheError, Detail: "origin failed"}
	resync := Resync{LeftBytes: 4096, BytesPerSecond: 1024, RemainingSeconds: 4}
	volume := VolumeStatus{
		VolumeRef: ref, Node: "n1", HostID: "6f1c", ImageID: "10d2", State: StateConnected, Role: RolePrimary, Epoch: 3, Mode: ModeWriteback, CacheBytes: 4096, Uncached: true,
		Engine:     EngineLog,
		DirtyBytes: &dirty, SizeBytes: 4096, Device: "/dev/escache/rbd/csi-1", Port: 7800, Minor: 100, DiskState: "UpToDate",
		Peers: []Peer{peer}, SyncedPercent: 99.5, Resync: &resync, Connecting: true, IOSuspended: true, MayGoOnAlone: true, ClientAddress: "10.77.0.11:0/17", HeldUntil: &until, Error: &fault,
	}
	node := ReplicaNode{Name: "n1", Address: "10.77.0.11"}
	tuned := CacheOptions{HighWatermark: 50, LowWatermark: 45, MaxDirtyAgeSeconds: 300, WriteBackOrder: OrderStrict}
	options := ConnectOptions{CacheOptions: tuned, Mode: ModeWritethrough}
	return map[string]any{
		"Problem": Problem{Type: "urn:escache:problem:busy", Title: "Conflict", Status: 409, Detail: "flush runs", Code: CodeBusy},
		"Node": Node{
			Name: "n1", HostID: "6f1c", Version: "v1", Healthy: true, Reasons: []string{"no rbd"}, CacheCapacityBytes: 3, CacheAllocatedBytes: 1,
			CacheFreeBytes: 2, CacheReadSecondsAgo: 5, ConnectedBytes: 4, ConnectableBytes: &connectable, CacheMemoryBytes: 6,
			CacheMemoryFreeBytes: 7, DirtyBytes: 1, Volumes: 2, Primaries: 1, MaxVolumes: 9, Kernel: kernel,
			Engines: []Engine{EngineWritecache, EngineLog}, CertificateEnd: &until,
		},
		"Kernel": kernel, "Status": Status{Volumes: []VolumeStatus{volume}}, "VolumeStatus": volume, "Resync": resync, "Peer": peer, "Fault": fault,
		"ReplicaNode": node,
		"ReplicaRequest": ReplicaRequest{
			VolumeRef: ref, ImageID: "10d2", SizeBytes: 8192, CacheBytes: 4096, Port: 7800, Minor: 100, Join: true, Epoch: 3, MustExist: true, Engine: EngineLog,
			Secret: "uZ0cRQh7bqkq3yNf5mV2W8sXa1tLd4eGj6oPiKrTnHw",
			Nodes:  []ReplicaNode{node, {Name: "n2", Address: "10.77.0.12"}},
		},
		"CacheOptions":   tuned,
		"ConnectOptions": options,
		"ConnectRequest": ConnectRequest{VolumeRef: ref, ImageID: "10d2", Epoch: 3, Options: options, Engine: EngineLog, Fenced: []string{"10.77.0.11:0/16"},
			Uncached: true},
		"ConnectResponse": ConnectResponse{Device: "/dev/escache/rbd/csi-1", ImageID: "10d2", ClientAddress: "[fd00::1]:0/17"},
		"FlushRequest":    FlushRequest{VolumeRef: ref, Epoch: 3, TimeoutSeconds: 60},
		"FlushResponse":   FlushResponse{Clean: true, DirtyBytes: 1},
		"StopRequest":     StopRequest{VolumeRef: ref, Epoch: 3},
		"ModeRequest":     ModeRequest{VolumeRef: ref, Epoch: 3, Mode: ModeWriteback},
		"OptionsRequest":  OptionsRequest{VolumeRef: ref, Epoch: 3, Options: tuned},
		"OptionsResponse": OptionsResponse{Options: tuned},
		"HoldRequest":     HoldRequest{VolumeRef: ref, Epoch: 3, MaxSeconds: 10, Pause: true},
		"HoldResponse":    HoldResponse{HeldUntil: until, Paused: true},
		"ReleaseRequest":  ReleaseRequest{VolumeRef: ref, Epoch: 3},
		"ResizeRequest":   ResizeRequest{VolumeRef: ref, Epoch: 3, SizeBytes: 8192},
		"TrimRequest": TrimRequest{
			VolumeRef: ref, Epoch: 3, FSType: "ext4", MountOptions: []string{"noatime"}, StartByte: 4096, TimeoutSeconds: 10,
		},
		"TrimResponse":   TrimResponse{Done: true, NextByte: 8192, TrimmedBytes: 4096},
		"AbandonRequest": AbandonRequest{VolumeRef: ref, Epoch: 4},
		"MapRequest":     MapRequest{VolumeRef: ref, ImageID: "10d2", ReadOnly: true},
		"MapResponse":    MapResponse{Device: "/dev/rbd3"},
		"UnmapRequest":   UnmapRequest{VolumeRef: ref},
		"VolumeRecord": VolumeRecord{
			VolumeRef: ref, ImageID: "10d2", AttachedNode: "n2", Epoch: 4, Replicas: []string{"n1", "n2"}, Outdated: []string{"n1"},
			InCeph: true, InUse: true, AttachedHostID: "Fj3kQ2", Fenced: []string{"n1"}, DiscardedEpoch: 3,
		},
		"OutdatePeerRequest": OutdatePeerRequest{VolumeRef: ref, ImageID: "10d2", Node: "n1", Peer: "n2", Epoch: 3},
		"OutdateSelfRequest": OutdateSelfRequest{VolumeRef: ref, ImageID: "10d2", Node: "n1", Peer: "n2", Booted: true},
	}
}

func schemas(t *testing.T) map[string]*openapi3.Schema {
	t.Helper()
	found := map[string]*openapi3.Schema{}
	for _, file := range []string{ArbiterFile, OpenAPIFile} {
		for name, ref := range load(t, file).Components.Schemas {
			found[name] = ref.Value
		}
	}
	return found
}

func asJSON(t *testing.T, value any) map[string]any {
	t.Helper()
	data, err := json.Marshal(value)
	if err != nil {
		t.Fatal(err)
	}
	var decoded map[string]any
	if err := json.Unmarshal(data, &decoded); err != nil {
		t.Fatal(err)
	}
	return decoded
}

func TestTypesAgreeWithSchemas(t *testing.T) {
	values, defined := populated(), schemas(t)
	for _, name := range readSource(t).structs {
		if _, ok := values[name]; !ok && name != "VolumeRef" {
			t.Errorf("type %s is not in the table of populated values", name)
		}
	}
	for name, schema := range defined {
		if schema.Type.Is("object") && values[name] == nil {
			t.Errorf("schema %s has no Go type", name)
		}
	}
	for name, value := range values {
		t.Run(name, func(t *testing.T) {
			schema := defined[name]
			if schema == nil {
				t.Fatal("the documents have no such schema")
			}
			for f, v := range reflect.ValueOf(value).Fields() {
				if v.IsZero() {
					t.Errorf("field %s is not populated in this test", f.Name)
				}
			}
			full := asJSON(t, value)
			if err := schema.VisitJSON(full, openapi3.EnableJSONSchema2020()); err != nil {
				t.Error(err)
			}
			sent, known := slices.Sorted(maps.Keys(full)), slices.Sorted(maps.Keys(schema.Properties))
			if !slices.Equal(sent, known) {
				t.Errorf("fields differ:\ntype   %q\nschema %q", sent, known)
			}
			// What Go leaves out when empty must be optional, or an empty value would break the
			// contract; a problem's text never is empty.
			empty := asJSON(t, reflect.Zero(reflect.TypeOf(value)).Interface())
			for _, required := range schema.Required {
				if _, ok := empty[required]; !ok && required != "detail" {
					t.Errorf("%s is required, but the type omits it when empty", required)
				}
			}
		})
	}
}

func TestSchemasRefuse(t *testing.T) {
	for _, tc := range []struct {
		name, schema string
		change       func(map[string]any)
	}{
		{"a pool with a slash", "StopRequest", func(v map[string]any) { v["pool"] = "a/b" }},
		{"an image with a leading dash", "StopRequest", func(v map[string]any) { v["image"] = "-x" }},
		{"an image of dots", "StopRequest", func(v map[string]any) { v["image"] = ".." }},
		{"an unknown field", "StopRequest", func(v map[string]any) { v["force"] = true }},
		{"a missing field", "FlushRequest", func(v map[string]any) { delete(v, "timeoutSeconds") }},
		{"no time to flush", "FlushRequest", func(v map[string]any) { v["timeoutSeconds"] = 0 }},
		{"a size that is no multiple of 4096", "ResizeRequest", func(v map[string]any) { v["sizeBytes"] = 5000 }},
		{"a replica on one node", "ReplicaRequest", func(v map[string]any) { v["nodes"] = v["nodes"].([]any)[:1] }},
		{"a secret that DRBD would cut off", "ReplicaRequest", func(v map[string]any) { v["secret"] = strings.Repeat("x", 65) }},
		{"an unknown cache engine", "ConnectRequest", func(v map[string]any) { v["engine"] = "bcache" }},
		{"an unknown mode", "ModeRequest", func(v map[string]any) { v["mode"] = "fast" }},
		{"a state that is not in the list", "VolumeStatus", func(v map[string]any) { v["state"] = "gone" }},
		{"a client address without a nonce", "ConnectResponse", func(v map[string]any) { v["clientAddress"] = "10.0.0.1" }},
		{"a code that is not in the list", "Problem", func(v map[string]any) { v["code"] = "oops" }},
		{"a problem that tells nothing", "Problem", func(v map[string]any) { delete(v, "detail") }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			value := asJSON(t, populated()[tc.schema])
			tc.change(value)
			if err := schemas(t)[tc.schema].VisitJSON(value, openapi3.EnableJSONSchema2020()); err == nil {
				t.Error("accepted")
			}
		})
	}
}
