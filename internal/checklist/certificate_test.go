package checklist

import (
	"crypto/x509"
	"strings"
	"testing"
	"time"
)

func TestACertificateIsJudgedByItsDates(t *testing.T) {
	const day = 24 * time.Hour
	noon := time.Date(2027, 3, 1, 12, 0, 0, 0, time.UTC)
	c := &x509.Certificate{NotBefore: noon.Add(-day), NotAfter: noon.Add(30 * day)}
	for name, want := range map[string]struct {
		now    time.Time
		state  State
		found  string
		remedy string
	}{
		"valid":        {noon, OK, "the certificate of n1 ends 2027-03-31 12:00 UTC", ""},
		"ends soon":    {noon.Add(17 * day), Warning, "the certificate of n1 ends 2027-03-31 12:00 UTC", "renew it"},
		"at the bound": {noon.Add(16 * day), OK, "the certificate of n1 ends 2027-03-31 12:00 UTC", ""},
		"ended":        {noon.Add(31 * day), Failed, "the certificate of n1 ended 2027-03-31 12:00 UTC", "renew it"},
		"not yet":      {noon.Add(-2 * day), Failed, "the certificate of n1 is not valid before 2027-02-28 12:00 UTC", "compare the clocks"},
	} {
		got := Certificate(c, "n1", "renew it", want.now)
		if got.State != want.state || got.Found != want.found || !strings.HasPrefix(got.Remedy, want.remedy) || (got.Remedy == "") != (want.remedy == "") {
			t.Errorf("%s: got %+v", name, got)
		}
	}
}
