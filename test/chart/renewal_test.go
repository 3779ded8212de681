package chart

import (
	"encoding/base64"
	"fmt"
	"testing"

	"github.com/escache/escache-csi/test/testca"
)

// renewal shows that an upgrade near the end of csi-controller's certificate keeps one that somebody has renewed
// since Helm made it.
func renewal(t *testing.T, c *controlPlane, version string) {
	upgrade := func() {
		t.Helper()
		if _, err := c.helm(version, "upgrade", "--install", release, chartDir, "--values", cases(t)["default"]); err != nil {
			t.Fatal(err)
		}
	}
	upgrade()
	authority, err := testca.NewAuthority("clients")
	if err != nil {
		t.Fatal(err)
	}
	pair, err := authority.Client("csi-controller")
	if err != nil {
		t.Fatal(err)
	}
	certificate := base64.StdEncoding.EncodeToString(pair.Certificate)
	c.must("", "-n", namespace, "patch", "secret", release+"-controller-tls", "--type=merge", "--patch",
		fmt.Sprintf(`{"data":{"tls.crt":%q,"tls.key":%q}}`, certificate, base64.StdEncoding.EncodeToString(pair.Key)))
	c.must("", "-n", namespace, "annotate", "--overwrite", "secret", release+"-tls-authority", "escache.io/certificates-end=1")
	upgrade()
	if got := c.must("", "-n", namespace, "get", "secret", release+"-controller-tls", "-o", `jsonpath={.data.tls\.crt}`); got != certificate {
		t.Error("the upgrade replaced the renewed certificate")
	}
	if _, err := c.helm(version, "uninstall", release, "--no-hooks"); err != nil {
		t.Fatal(err)
	}
	c.must("", "delete", "nodegroup", "rack-1")
}
