package wordwrap

import "testing"

func TestSentencesBreakBetweenWords(t *testing.T) {
	const line = "  host n3: it does not answer"
	for width, want := range map[int]string{
		0: line + "\n", 80: line + "\n", 17: "  host n3: it\n    does not\n    answer\n", 1: "  host\n    n3:\n    it\n    does\n    not\n    answer\n",
	} {
		if got := Line(line, "    ", width); got != want {
			t.Errorf("%d: %q", width, got)
		}
	}
}
