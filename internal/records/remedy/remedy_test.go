package remedy

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
)

// well are the reasons of conditions that say that all is as it should be.
var well = []string{
	"AllMembersReady", "Applied", "CanPlace", "Clean", "Discarded", "Drained", "ImageAdopted", "ImageCreated", "InSync", "NoError", "RecordRebuilt",
	"NothingToRepair", "TakenUp", "TwoCopies",
}

// ours are the reasons that no condition has.
var ours = []string{LeftDirty, PodWaits, InDeletion, NotReady, StaleReplicas, NoController, PodsMissing, CertificateEnds, HostCertificateEnds, VersionsDiffer}

// elsewhere are reasons of other things than our conditions.
var elsewhere = map[string]string{
	"DiscardRefused": "an Event's", "CacheDiscarded": "an Event's", "NotAllowed": "a CertificateSigningRequest's",
}

func TestEveryReasonInTheCodeHasARemedy(t *testing.T) {
	written := reasons(t)
	for _, sure := range []string{"PeerLost", "IOFrozen", "TooFewMembers", "EscachedUnreachable", "Copying", "VolumesFailed", "Restoring", "NotFound",
		"LaterAttachmentSeen", "VolumesInRepair", "Refused", "InSync", "AllMembersReady", "ImageAdopted", "Discarded"} {
		if written[sure] == "" {
			t.Errorf("the test does not find %s in the code any more: %q", sure, slices.Sorted(maps.Keys(written)))
		}
	}
	has := map[string]bool{}
	for _, k := range table {
		has[k.reason] = true
		if k.todo == "" {
			t.Errorf("%s: there is a row, and no remedy in it", k.reason)
		}
		if written[k.reason] == "" && !slices.Contains(ours, k.reason) {
			t.Errorf("%s has a remedy, and no condition has that reason", k.reason)
		}
	}
	for reason := range elsewhere {
		if written[reason] == "" {
			t.Errorf("%s is nowhere in the code", reason)
		}
		delete(written, reason)
	}
	for reason, where := range written {
		switch fine := slices.Contains(well, reason); {
		case !has[reason] && !fine:
			t.Errorf("%s: the reason %s has no remedy: add a row to the table, or to well if nothing is wrong", where, reason)
		case has[reason] && fine:
			t.Errorf("%s: the reason %s has a remedy and is well", where, reason)
		}
	}
	for _, reason := range well {
		if written[reason] == "" {
			t.Errorf("no condition has the reason %s", reason)
		}
	}
}

// The same word is the reason of several conditions.
func TestAReasonOfSeveralConditionsHasARemedyForEach(t *testing.T) {
	for _, kind := range []string{v1alpha1.ConditionReleased, v1alpha1.ConditionModified, v1alpha1.DiscardCondition} {
		for _, reason := range []string{"Refused", "Pending"} {
			if find(kind, reason) < 0 {
				t.Errorf("%s=%s has no remedy", kind, reason)
			}
		}
	}
	if release := Of(v1alpha1.ConditionReleased, "Refused", Place{}, Escached{}); release == Of(v1alpha1.ConditionModified, "Refused", Place{}, Escached{}) {
		t.Errorf("a refused release and a refused change have the same remedy: %s", release)
	}
}

func TestARemedyNamesWhatIsKnown(t *testing.T) {
	for name, c := range map[string]struct {
		reason string
		at     Place
		how    Escached
		says   []string
		not    []string
	}{
		"one volume":      {LeftDirty, Place{Volume: "pvc-1", Host: "n1 or n2"}, Escached{}, []string{"flush --volume=pvc-1 --wait: n1 or n2 writes it back", "discard-cache pvc-1"}, []string{"VOLUME", "HOST"}},
		"several volumes": {LeftDirty, Place{}, Escached{}, []string{"flush --volume=VOLUME --wait: HOST writes it back", "discard-cache VOLUME"}, nil},
		"escached in pods": {"EscachedUnreachable", Place{Host: "n1"}, Escached{true, true, "storage"}, []string{
			"kubectl -n storage get pods -o wide --field-selector spec.nodeName=n1",
		}, []string{"systemctl", "ESCACHED"}},
		"escached as a unit": {"EscachedUnreachable", Place{Host: "n1"}, Escached{Known: true, Namespace: "storage"}, []string{"on n1: systemctl status escached"}, []string{"get pods"}},
		"escached not known": {NotReady, Place{Host: "n1"}, Escached{}, []string{"-n escache-system get pods", "systemctl status escached"}, nil},
		"no csi-controller":  {NoController, Place{}, Escached{Namespace: "storage"}, []string{"kubectl -n storage get pods,leases"}, nil},
		"an unknown reason":  {"Novel", Place{}, Escached{}, []string{"see the message"}, nil},
	} {
		got := Of("", c.reason, c.at, c.how)
		for _, part := range c.says {
			if !strings.Contains(got, part) {
				t.Errorf("%s: it does not say %q: %s", name, part, got)
			}
		}
		for _, part := range c.not {
			if strings.Contains(got, part) {
				t.Errorf("%s: it says %q: %s", name, part, got)
			}
		}
	}
}

func TestWhatMayLoseDataIsGraverThanWhatPasses(t *testing.T) {
	order := []string{"LaterAttachmentSeen", LeftDirty, "IOFrozen", "EscachedUnreachable", "PeerLost", "VolumesLeft", "VolumesFailed", "Resyncing"}
	if !slices.IsSortedFunc(order, func(a, b string) int { return Gravity("", a) - Gravity("", b) }) {
		t.Errorf("%q are not in the order of gravity", order)
	}
}

// reasons returns all reasons of conditions in the code, and where each is.
func reasons(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, folder := range []string{"api/v1alpha1", "internal/controller", "internal/node", "internal/authority", "internal/redundancy"} {
		err := filepath.WalkDir(filepath.Join("../../..", folder), func(path string, entry fs.DirEntry, err error) error {
			if err != nil || entry.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
				return err
			}
			set := token.NewFileSet()
			file, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
			if err != nil {
				return err
			}
			collect(file, func(reason string) { found[reason] = path })
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return found
}

// types are those whose values are reasons of conditions.
var types = []string{"Reason", "Action", "DiscardPhase"}

// collect finds constants of these types or with such a name, what is assigned to something called
// reason, what stands in a condition, and what is passed to the functions that write one.
func collect(file *ast.File, add func(reason string)) {
	take := func(e ast.Expr) {
		if s, ok := reason(e); ok {
			add(s)
		}
	}
	ast.Inspect(file, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.ValueSpec:
			kind, _ := n.Type.(*ast.Ident)
			for i, value := range n.Values {
				if called(n.Names[i]) || kind != nil && slices.Contains(types, kind.Name) {
					take(value)
				}
			}
		case *ast.AssignStmt:
			for i, value := range n.Rhs {
				if len(n.Lhs) == len(n.Rhs) && called(n.Lhs[i]) {
					take(value)
				}
			}
		case *ast.CompositeLit:
			condition(n, take)
		case *ast.CallExpr:
			if f, ok := n.Fun.(*ast.SelectorExpr); ok && f.Sel.Name == "condition" {
				for _, arg := range n.Args {
					take(arg)
				}
			}
		}
		return true
	})
}

// condition takes the reason of a metav1.Condition, and of the table of good ones in csi-node.
func condition(n *ast.CompositeLit, take func(ast.Expr)) {
	if kind, ok := n.Type.(*ast.SelectorExpr); ok && kind.Sel.Name == "Condition" {
		for _, field := range n.Elts {
			if pair, ok := field.(*ast.KeyValueExpr); ok && called(pair.Key) {
				take(pair.Value)
			}
		}
	}
	if table, ok := n.Type.(*ast.MapType); ok {
		row, ok := table.Value.(*ast.StructType)
		if !ok || len(row.Fields.List) == 0 || len(row.Fields.List[0].Names) == 0 || !called(row.Fields.List[0].Names[0]) {
			return
		}
		for _, pair := range n.Elts {
			if pair, ok := pair.(*ast.KeyValueExpr); ok {
				if value, ok := pair.Value.(*ast.CompositeLit); ok && len(value.Elts) > 0 {
					take(value.Elts[0])
				}
			}
		}
	}
}

// called reports whether an expression has the name of a reason.
func called(e ast.Expr) bool {
	name := ""
	switch e := e.(type) {
	case *ast.Ident:
		name = e.Name
	case *ast.SelectorExpr:
		name = e.Sel.Name
	}
	return strings.HasPrefix(name, "reason") || strings.HasPrefix(name, "Reason")
}

var camelCase = regexp.MustCompile(`^[A-Z][A-Za-z]+$`)

func reason(e ast.Expr) (string, bool) {
	text, ok := e.(*ast.BasicLit)
	if !ok || text.Kind != token.STRING {
		return "", false
	}
	s, err := strconv.Unquote(text.Value)
	return s, err == nil && camelCase.MatchString(s)
}
