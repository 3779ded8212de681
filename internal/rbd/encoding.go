package rbd

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/ceph/go-ceph/rados"
)

// execRead calls a method of an object's class that changes nothing.
func execRead(io *rados.IOContext, object, method string, in []byte) ([]byte, error) {
	op := rados.CreateReadOp()
	defer op.Release()
	step := op.Exec("rbd", method, in)
	if err := op.Operate(io, object, rados.OperationNoFlag); err != nil {
		return nil, err
	}
	return step.Bytes()
}

// appendText encodes a text: its length and its bytes.
func appendText(in []byte, text string) []byte {
	return append(binary.LittleEndian.AppendUint32(in, uint32(len(text))), text...)
}

// decoder reads what Ceph has encoded, in the order in which it was. If that is cut off, what is
// missing is zero, and err says so.
type decoder struct {
	left   []byte
	cutOff bool
}

// bytes reads that many, and returns none if there are fewer.
func (d *decoder) bytes(count int) []byte {
	if d.cutOff = d.cutOff || count > len(d.left); d.cutOff {
		return nil
	}
	out := d.left[:count]
	d.left = d.left[count:]
	return out
}

func (d *decoder) byte() byte {
	if b := d.bytes(1); len(b) > 0 {
		return b[0]
	}
	return 0
}

func (d *decoder) uint32() uint32 {
	const size = 4
	if b := d.bytes(size); len(b) > 0 {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

func (d *decoder) text() string { return string(d.bytes(int(d.uint32()))) }

// time reads seconds and nanoseconds since 1970.
func (d *decoder) time() time.Time {
	seconds := int64(d.uint32())
	return time.Unix(seconds, int64(d.uint32()))
}

// structure reads one that says its version and length. A newer version may have more at its end.
func (d *decoder) structure() *decoder {
	d.bytes(2) // its version, and the oldest one whose readers can read it
	return &decoder{left: d.bytes(int(d.uint32())), cutOff: d.cutOff}
}

func (d *decoder) err() error {
	if d.cutOff {
		return fmt.Errorf("%w: its answer is cut off", ErrCeph)
	}
	return nil
}
