package console

import (
	"strings"
	"testing"
)

func TestScreenNeverScrollsOrWraps(t *testing.T) {
	text := strings.Repeat("a line that is longer than the window\n", 30)
	drawn := Screen{Width: 20, Height: 10}.Redraw(text)
	if n := strings.Count(drawn, "\n"); n != 9 {
		t.Errorf("%d lines, and the cursor's, in a window of 10", n)
	}
	if !strings.Contains(drawn, "… and 22 more lines") {
		t.Errorf("it does not say what is left out:\n%s", drawn)
	}
	for line := range strings.SplitSeq(drawn, "\n") {
		if n := len([]rune(strings.NewReplacer(toTop, "", EndOfLine, "", endOfScreen, "").Replace(line))); n > 20 {
			t.Errorf("%d characters: %q", n, line)
		}
	}
	if drawn := (Screen{Width: 80, Height: 24}).Redraw("one\ntwo\n"); drawn != "\x1b[Hone\x1b[K\ntwo\x1b[K\n\x1b[J" {
		t.Errorf("%q", drawn)
	}
}
