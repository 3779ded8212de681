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
// reads afterwards. A client that is on the blocklist already stays there as long as it was to be:
// replacing its entry would let it in for a moment, and its successor works already.
func (s Session) Fence(life time.Duration, addresses ...string) error {
	err := blocklistAdd(s.conn, life, addresses...)
	if err == nil {
		err = s.conn.WaitForLatestOSDMap()
	}
	err = translate(err)
	if errors.Is(err, ErrPermission) {
		return fmt.Errorf(`its monitor capabilities have to allow command "osd blocklist": %w`, err)
	}
	return err
}
