package remedy

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/escache/escache-csi/api/v1alpha1"
	"github.com/escache/escache-csi/test/reasons"
)

// well are the reasons of conditions that say that all is as it should be.
var well = []string{
	"AllMembersReady", "Applied", "CanPlace", "Clean", "Discarded", "Drained", "ImageAdopted", "ImageCreated", "InSync", "NoError", "RecordRebuilt",
	"NothingToRepair", "TakenUp", "Trimmed", "TwoCopies",
}

// ours are the reasons that no condition has.
var ours = []string{LeftDirty, PodWaits, InDeletion, NotReady, StaleReplicas, NoController, PodsMissing, CertificateEnds, HostCertificateEnds, VersionsDiffer}

// elsewhere are reasons of other things than our conditions.
var elsewhere = map[string]string{
	"DiscardRefused": "an Event's", "CacheDiscarded": "an Event's", "NotAllowed": "a CertificateSigningRequest's",
}

func TestEveryReasonInTheCodeHasARemedy(t *testing.T) {
	written := reasons.OfConditions(t, "../../..")
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
