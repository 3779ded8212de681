package testca

import (
	"crypto/tls"
	"testing"
)

func TestOnlyClientsOfTheAuthorityGetThrough(t *testing.T) {
	ours, err := NewAuthority("ours")
	if err != nil {
		t.Fatal(err)
	}
	other, err := NewAuthority("other")
	if err != nil {
		t.Fatal(err)
	}
	tests := map[string]struct {
		client *Authority
		trusts *Authority
		name   string
		works  bool
	}{
		"by name":             {ours, ours, "n1", true},
		"by address":          {ours, ours, "127.0.0.1", true},
		"another name":        {ours, ours, "n2", false},
		"client of another":   {other, ours, "n1", false},
		"client trusts other": {ours, other, "n1", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			err := handshake(t, ours, test.client, test.trusts, test.name)
			if (err == nil) != test.works {
				t.Errorf("handshake: %v", err)
			}
		})
	}
}

func handshake(t *testing.T, server, client, trusts *Authority, name string) error {
	t.Helper()
	serverPair, err := server.Server("n1", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	clientPair, err := client.Client("controller")
	if err != nil {
		t.Fatal(err)
	}
	listener, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{
		Certificates: []tls.Certificate{load(t, serverPair)}, ClientCAs: server.Pool(), ClientAuth: tls.RequireAndVerifyClientCert,
	})
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	served := make(chan error, 1)
	go func() {
		conn, err := listener.Accept()
		if err == nil {
			err = conn.(*tls.Conn).Handshake()
			conn.Close()
		}
		served <- err
	}()
	conn, err := tls.Dial("tcp", listener.Addr().String(), &tls.Config{
		Certificates: []tls.Certificate{load(t, clientPair)}, RootCAs: trusts.Pool(), ServerName: name,
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	return <-served
}

func load(t *testing.T, pair Pair) tls.Certificate {
	t.Helper()
	certificate, err := pair.TLS()
	if err != nil {
		t.Fatal(err)
	}
	return certificate
}
