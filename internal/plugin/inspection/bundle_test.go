package inspection

import (
	"strings"
	"testing"
)

func TestSecretsAreCut(t *testing.T) {
	in := `key = AQBvXy1nAAAAABAAo2T3m5Q1YB0T7l0bW7JtGg== token: abcdef0123 "password":"hunter22" eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJr.c2ln volume pvc-1 ok`
	out := string(redactSecrets([]byte(in)))
	for _, secret := range []string{"AQBv", "abcdef", "hunter22", "eyJ"} {
		if strings.Contains(out, secret) {
			t.Errorf("%s is left in %s", secret, out)
		}
	}
	if !strings.Contains(out, "volume pvc-1 ok") {
		t.Errorf("too much is cut: %s", out)
	}
}
