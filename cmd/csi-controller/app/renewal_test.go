package app

import (
	"strings"
	"testing"
	"time"
)

func TestFlagsOfTheRenewalGoTogether(t *testing.T) {
	given := func(change func(*RenewalOptions)) *RenewalOptions {
		o := defaultRenewal()
		o.Prefix, o.ClientName = "escache", "csi-controller"
		change(&o)
		return &o
	}
	for what, c := range map[string]struct {
		options   *RenewalOptions
		pattern   string
		plaintext bool
		told      string
	}{
		"all":               {given(func(*RenewalOptions) {}), "{node}.example", false, ""},
		"none":              {&RenewalOptions{}, "", true, ""},
		"no name":           {given(func(o *RenewalOptions) { o.ClientName = "" }), "{node}.example", false, "--client-name"},
		"no host's name":    {given(func(*RenewalOptions) {}), "", false, "--escached-server-name"},
		"no TLS":            {given(func(*RenewalOptions) {}), "{node}.example", true, "--escached-plaintext"},
		"a short life":      {given(func(o *RenewalOptions) { o.Life = time.Minute }), "{node}.example", false, "--client-certificate-life 1m0s"},
		"a short authority": {given(func(o *RenewalOptions) { o.AuthorityLife = 0 }), "{node}.example", false, "--authority-life 0s"},
	} {
		err := c.options.validate(c.pattern, c.plaintext)
		if (err == nil) != (c.told == "") || err != nil && !strings.Contains(err.Error(), c.told) {
			t.Errorf("%s: %v, want %q", what, err, c.told)
		}
	}
}
