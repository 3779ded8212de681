package shard

import (
	"fmt"
	"testing"
)

func TestSomeRunsTogetherHaveEveryTestOnce(t *testing.T) {
	for number := range 10 {
		had := 0
		for run := 41; run < 44; run++ {
			has, err := has(fmt.Sprintf("%d/3", run), number)
			if err != nil {
				t.Fatal(err)
			}
			if has {
				had++
			}
		}
		if had != 1 {
			t.Errorf("three runs have test %d %d times", number, had)
		}
	}
}

func TestWhatIsNoShardIsRefused(t *testing.T) {
	for _, text := range []string{"3", "a/3", "1/0", "-1/3", "1/3x", "1/3 2", "/3"} {
		if _, err := has(text, 0); err == nil {
			t.Errorf("%q is taken for a shard", text)
		}
	}
}
