package node

import (
	"testing"

	"google.golang.org/grpc/codes"
)

// TestTheTextStaysTheSameWhileACacheIsWrittenBack: Kubernetes makes an Event of each different text.
func TestTheTextStaysTheSameWhileACacheIsWrittenBack(t *testing.T) {
	h, dir := staged(t)
	h.escached.FlushAtMost(4096)
	var texts []string
	for _, dirty := range []int64{12 << 20, 8 << 20} {
		h.change("v", withDirty(&dirty))
		_, err := h.service().NodeUnstageVolume(t.Context(), unstageOf(dir))
		if Code(err) != codes.DeadlineExceeded {
			t.Fatalf("%s: %v", Code(err), err)
		}
		texts = append(texts, err.Error())
	}
	if texts[0] != texts[1] {
		t.Errorf("first %q, then %q", texts[0], texts[1])
	}
}
