package kernel

import (
	"errors"
	"fmt"
	"time"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
)

// The names are the kernel's, without NBD_.
const (
	familyName = "nbd"

	cmdConnect     = 1
	cmdDisconnect  = 2
	cmdReconfigure = 3
	cmdStatus      = 5

	attrIndex             = 1
	attrSizeBytes         = 2
	attrBlockSizeBytes    = 3
	attrTimeout           = 4 // seconds
	attrServerFlags       = 5
	attrClientFlags       = 6
	attrSockets           = 7
	attrDeadConnTimeout   = 8 // seconds
	attrDeviceList        = 9
	attrBackendIdentifier = 10

	sockItem        = 1
	sockFD          = 1
	deviceItem      = 1
	deviceIndex     = 1
	deviceConnected = 2

	disconnectOnClose = 1 << 1
)

var errAnswer = errors.New("the NBD driver's answer makes no sense")

func connectRequest(d Device) ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	e.Uint64(attrSizeBytes, uint64(d.Bytes))
	e.Uint64(attrBlockSizeBytes, blockBytes)
	e.Uint64(attrTimeout, seconds(RequestTimeout))
	e.Uint64(attrDeadConnTimeout, seconds(DeadTimeout))
	e.Uint64(attrServerFlags, d.Flags)
	e.String(attrBackendIdentifier, d.Backend)
	sockets(e, d.Sockets)
	return encoded(e)
}

// change is what reconfiguring changes. Zero changes nothing.
type change struct {
	bytes   int64
	sockets []int
	client  *uint64 // flags
}

func reconfigureRequest(index int, backend string, c change) ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	e.Uint32(attrIndex, uint32(index))
	e.String(attrBackendIdentifier, backend)
	if c.bytes > 0 {
		e.Uint64(attrSizeBytes, uint64(c.bytes))
	}
	if c.client != nil {
		e.Uint64(attrClientFlags, *c.client)
	}
	if len(c.sockets) > 0 {
		sockets(e, c.sockets)
	}
	return encoded(e)
}

func indexRequest(index int) ([]byte, error) {
	e := netlink.NewAttributeEncoder()
	e.Uint32(attrIndex, uint32(index))
	return encoded(e)
}

func sockets(e *netlink.AttributeEncoder, all []int) {
	e.Nested(attrSockets, func(list *netlink.AttributeEncoder) error {
		for _, fd := range all {
			list.Nested(sockItem, func(item *netlink.AttributeEncoder) error {
				item.Uint32(sockFD, uint32(fd))
				return nil
			})
		}
		return nil
	})
}

func encoded(e *netlink.AttributeEncoder) ([]byte, error) {
	data, err := e.Encode()
	if err != nil {
		return nil, fmt.Errorf("encode the message to the NBD driver: %w", err)
	}
	return data, nil
}

func seconds(d time.Duration) uint64 { return uint64(d / time.Second) }

// indexIn is the number of the device in the answer to connect.
func indexIn(replies []genetlink.Message) (int, error) {
	for _, r := range replies {
		d, err := netlink.NewAttributeDecoder(r.Data)
		if err != nil {
			return 0, fmt.Errorf("%w: %w", errAnswer, err)
		}
		for d.Next() {
			if d.Type() == attrIndex {
				return int(d.Uint32()), d.Err()
			}
		}
		if err := d.Err(); err != nil {
			return 0, fmt.Errorf("%w: %w", errAnswer, err)
		}
	}
	return 0, fmt.Errorf("%w: it has no device's number", errAnswer)
}

// connectedIn finds a device in the answer to status. It has none that does not exist.
func connectedIn(replies []genetlink.Message, index int) (bool, error) {
	connected := false
	for _, r := range replies {
		d, err := netlink.NewAttributeDecoder(r.Data)
		if err != nil {
			return false, fmt.Errorf("%w: %w", errAnswer, err)
		}
		for d.Next() {
			if d.Type() == attrDeviceList {
				d.Nested(func(list *netlink.AttributeDecoder) error {
					for list.Next() {
						list.Nested(func(item *netlink.AttributeDecoder) error {
							is, on := item1(item)
							connected = connected || is == index && on
							return nil
						})
					}
					return nil
				})
			}
		}
		if err := d.Err(); err != nil {
			return false, fmt.Errorf("%w: %w", errAnswer, err)
		}
	}
	return connected, nil
}

// item1 reads one device of a list.
func item1(item *netlink.AttributeDecoder) (index int, connected bool) {
	index = -1
	for item.Next() {
		switch item.Type() {
		case deviceIndex:
			index = int(item.Uint32())
		case deviceConnected:
			connected = item.Uint8() != 0
		}
	}
	return index, connected
}
