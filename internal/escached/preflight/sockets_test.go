package preflight

import (
	"errors"
	"net"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// What Linux 6.1 shows: one socket listens, one is connected.
const procTCP = `  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode                                                     
   0: 0B01007F:A095 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 95621 2 000000008b3023b3 100 0 0 10 0                     
   1: 0100007F:1E78 0100007F:A095 01 00000000:00000000 00:00000000 00000000     0        0 95627 2 0000000060873df1 100 0 0 10 0                     
`

func TestOnlySocketsThatListenCount(t *testing.T) {
	got, err := parseSockets(strings.NewReader(procTCP))
	if want := []socket{{0xA095, "95621"}}; err != nil || !slices.Equal(got, want) {
		t.Errorf("%v, %v", got, err)
	}
	for _, bad := range []string{tcpHead + "x\n", tcpHead + strings.Replace(tcp(22, "1"), "0016", "zz", 1), tcpHead + strings.Replace(tcp(22, "1"), ":0016", "", 1)} {
		if got, err := parseSockets(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: %v", bad, got)
		}
	}
}

func TestDialTellsAPortNobodyListensOnFromSilence(t *testing.T) {
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must(t, err)
	address := listener.Addr().String()
	if err := Dial(t.Context(), "127.0.0.2", address); err != nil {
		t.Errorf("somebody listens: %v", err)
	}
	must(t, listener.Close())
	if err := Dial(t.Context(), "127.0.0.2", address); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("nobody listens: %v", err)
	}
	if err := Dial(t.Context(), "192.0.2.1", address); err == nil || errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("from an address of another host: %v", err)
	}
}

func FuzzSockets(f *testing.F) {
	f.Add(procTCP)
	f.Add(tcpHead + tcp(7801, "0"))
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseSockets(strings.NewReader(text))
		if err != nil && all != nil {
			t.Errorf("an error with %v", all)
		}
		for _, s := range all {
			if s.port < 0 || s.port > 65535 || s.inode == "" {
				t.Errorf("%+v", s)
			}
		}
	})
}
