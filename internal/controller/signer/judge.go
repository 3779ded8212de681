package signer

import (
	"crypto/ecdsa"
	"errors"
	"fmt"
	"slices"

	"github.com/escache/escache-csi/internal/hostcert"
)

// extraNode is where the API server writes the node of the token with which a request was made. Only
// it can: the token is bound to a pod, and the pod to its node.
const extraNode = "authentication.kubernetes.io/node-name"

// errNoNode is returned for a request of csi-node without a node.
var errNoNode = errors.New("the request does not say to which node the requester's token belongs: " +
	"Kubernetes 1.30 or newer adds that to the tokens of pods")

// rules say which requests are signed.
type rules struct {
	// account is csi-node's user name in Kubernetes.
	account string
	// pattern is that of the names in certificates.
	pattern string
}

// judge returns the node that a request is of, and the key that it is for. It fails unless csi-node
// asks for the certificate of the node that it runs on. A request's signer, user and extra are the
// API server's word; what is in spec.request is the requester's.
func (r rules) judge(csr *request) (node string, key *ecdsa.PublicKey, err error) {
	if csr.Spec.SignerName != hostcert.Signer {
		return "", nil, fmt.Errorf("its signer is %q, not %q", csr.Spec.SignerName, hostcert.Signer)
	}
	if csr.Spec.Username != r.account {
		return "", nil, fmt.Errorf("%q has made it, and only %q may", csr.Spec.Username, r.account)
	}
	nodes := csr.Spec.Extra[extraNode]
	if len(nodes) != 1 || nodes[0] == "" {
		return "", nil, errNoNode
	}
	var usages []string
	for _, usage := range csr.Spec.Usages {
		usages = append(usages, string(usage))
	}
	slices.Sort(usages)
	if !slices.Equal(usages, hostcert.Usages()) {
		return "", nil, fmt.Errorf("its usages are %q, not %q", usages, hostcert.Usages())
	}
	key, err = hostcert.Check(csr.Spec.Request, nodes[0], hostcert.Name(r.pattern, nodes[0]))
	if err != nil {
		return "", nil, fmt.Errorf("the requester's token is of node %s: %w", nodes[0], err)
	}
	return nodes[0], key, nil
}
