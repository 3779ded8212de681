package escache

import "testing"

// DRBD 8.4 orders the states of a link (drbd_conns in linux/drbd.h); from Connected on it is up.
func TestALinkIsUpFromConnectedOn(t *testing.T) {
	linked := false
	for _, state := range []LinkState{
		"StandAlone", "Disconnecting", "Unconnected", "Timeout", "BrokenPipe", "NetworkFailure", "ProtocolError", "TearDown",
		"WFConnection", "WFReportParams",
		"Connected", "StartingSyncS", "StartingSyncT", "WFBitMapS", "WFBitMapT", "WFSyncUUID", "SyncSource", "SyncTarget", "VerifyS",
		"VerifyT", "PausedSyncS", "PausedSyncT", "Ahead", "Behind",
	} {
		linked = linked || state == LinkConnected
		if (Peer{ConnectionState: state}).Linked() != linked {
			t.Errorf("%s: linked %v, want %v", state, !linked, linked)
		}
	}
	for _, state := range []LinkState{"", LinkUnconfigured, "Connecting"} {
		if state.Linked() {
			t.Errorf("%q is no state of a link that is up", state)
		}
	}
}
