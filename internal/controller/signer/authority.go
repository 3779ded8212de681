package signer

import (
	"fmt"
	"os"

	"github.com/escache/escache-csi/internal/issuer"
)

// readAuthority reads PEM files.
func readAuthority(cert, key string) (*issuer.Authority, error) {
	certificate, err := os.ReadFile(cert)
	if err != nil {
		return nil, fmt.Errorf("authority of the hosts' certificates: %w", err)
	}
	private, err := os.ReadFile(key)
	if err != nil {
		return nil, fmt.Errorf("authority of the hosts' certificates: %w", err)
	}
	authority, err := issuer.Parse(certificate, private)
	if err != nil {
		return nil, fmt.Errorf("authority of the hosts' certificates: %s: %w", cert, err)
	}
	return authority, nil
}
