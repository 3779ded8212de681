package kernel

import (
	"bytes"
	"testing"

	"github.com/mdlayher/genetlink"
)

// Whatever an answer is: a device is connected, or was made, only if its number is in it.
func FuzzAnswer(f *testing.F) {
	f.Add(status(map[uint32]bool{0: false, 1: true, 12: true}), uint32(1))
	f.Add(attribute(1, u32(7)), uint32(7))
	f.Fuzz(func(t *testing.T, data []byte, index uint32) {
		replies := []genetlink.Message{{Data: data}}
		connected, err := connectedIn(replies, int(index))
		if connected && (err != nil || !bytes.Contains(data, u32(index))) {
			t.Errorf("nbd%d is connected, says %x; %v", index, data, err)
		}
		if made, err := indexIn(replies); err == nil && !bytes.Contains(data, u32(uint32(made))) {
			t.Errorf("nbd%d was made, says %x", made, data)
		}
	})
}
