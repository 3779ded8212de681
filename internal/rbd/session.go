package rbd

import (
	"errors"
	"fmt"
	"time"

	"github.com/ceph/go-ceph/rados"
)

// Session is a new connection that no call has used yet.
type Session struct {
	Cluster string // the name of its directory
	Address string // IP:PORT/NONCE, as the blocklist takes it

	conn *rados.Conn
}

// Fence makes Ceph refuse other clients for life. They cannot change anything that this connection
// reads afterwards.
func (s Session) Fence(life time.Duration, addresses ...string) error {
	err := translate(blocklist(s.conn, life, addresses...))
	if errors.Is(err, ErrPermission) {
		return fmt.Errorf(`its monitor capabilities have to allow command "osd blocklist": %w`, err)
	}
	return err
}
