package overview

import (
	"net/url"
	"slices"
	"strings"
	"testing"
)

func TestAddresses(t *testing.T) {
	for address, want := range map[string]string{ // the same address again, or the error
		"": "?", "group=rack1": "?group=rack1", "group=a%2C+b&node=": "?group=a%2Cb", "text=x&sort=dirty&page=2": "?page=2&sort=dirty&text=x",
		"problems=1&namespace=shop&after=x.1": "?namespace=shop&problems=1", "page=0": `page "0"`, "page=x": `page "x"`, "sort=colour": "none of",
		"problems=perhaps": `problems "perhaps"`, "colour=red": `no filter "colour"`, "group=a&group=b": "more than once",
		"text=" + strings.Repeat("x", 254): "longer than",
	} {
		values, err := url.ParseQuery(address)
		if err != nil {
			t.Fatal(err)
		}
		q, err := parse(values)
		got := q.Address(q.Page)
		if err != nil {
			got = err.Error()
		}
		if got != want && (err == nil || !strings.Contains(got, want)) {
			t.Errorf("%s: %s, want %s", address, got, want)
		}
	}
	q, _ := parse(url.Values{"group": {"a, b,,c"}})
	if !slices.Equal(q.Groups, []string{"a", "b", "c"}) {
		t.Errorf("%q", q.Groups)
	}
}

func FuzzAddress(f *testing.F) {
	f.Add("group=a&page=2&problems=1&sort=dirty")
	f.Fuzz(func(t *testing.T, address string) {
		values, err := url.ParseQuery(address)
		if err != nil {
			return
		}
		q, err := parse(values)
		if err != nil {
			return
		}
		again, err := url.ParseQuery(strings.TrimPrefix(q.Address(q.Page), "?"))
		if err != nil {
			t.Fatal(err)
		}
		second, err := parse(again)
		if err != nil || second.Address(second.Page) != q.Address(q.Page) {
			t.Errorf("%q is %q, and then %q: %v", address, q.Address(q.Page), second.Address(second.Page), err)
		}
	})
}
