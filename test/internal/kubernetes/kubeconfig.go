package kubernetes

import (
	"encoding/base64"
	"fmt"
	"os"
)

const kubeconfigTemplate = `apiVersion: v1
kind: Config
clusters:
- name: lab
  cluster:
    server: %s
    certificate-authority-data: %s
users:
- name: %[3]s
  user:
    client-certificate-data: %[4]s
    client-key-data: %[5]s
contexts:
- name: lab
  context:
    cluster: lab
    user: %[3]s
current-context: lab
`

// UserKubeconfig makes a kubeconfig for a user in these groups. It holds all it needs, so it works
// from any host that reaches the API server.
func (c *ControlPlane) UserKubeconfig(user string, groups ...string) ([]byte, error) {
	identity, err := c.authority.Client(user, groups...)
	if err != nil {
		return nil, err
	}
	encode := base64.StdEncoding.EncodeToString
	return fmt.Appendf(nil, kubeconfigTemplate,
		c.Server(), encode(c.authority.Certificate()), user, encode(identity.Certificate), encode(identity.Key)), nil
}

func (c *ControlPlane) writeKubeconfig(path, user string, groups ...string) error {
	content, err := c.UserKubeconfig(user, groups...)
	if err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o600)
}
