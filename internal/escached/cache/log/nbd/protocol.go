// Package nbd serves a device with the protocol of network block devices, on a socket whose other end the kernel has: the
// transmission phase with simple replies, as https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md has it. There is no
// handshake: what it would agree on, the kernel is told when it is given the socket.
package nbd

import (
	"encoding/binary"
	"fmt"
)

// Flags are what the server can do, for whoever gives the kernel the sockets. Give it two at least, with a Serve each of the same Export:
// when a process dies in the middle of a reply, older kernels with one connection fail that read instead of repeating it.
const Flags = flagHasFlags | flagSendFlush | flagSendFUA | flagSendTrim | flagSendWriteZeroes | flagCanMultiConn

// MaxRequestBytes is the longest data of one request. The kernel never sends more, and by default 128 KiB at most.
const MaxRequestBytes = 32 << 20

const (
	flagHasFlags        = 1 << 0
	flagSendFlush       = 1 << 2
	flagSendFUA         = 1 << 3
	flagSendTrim        = 1 << 5
	flagSendWriteZeroes = 1 << 6
	flagCanMultiConn    = 1 << 8 // a flush covers what was answered on any connection

	requestMagic = 0x25609513
	replyMagic   = 0x67446698
	requestBytes = 28
	replyBytes   = 16
)

// Command is what a request asks for.
type Command uint16

// Commands. Close ends the connection, and has no reply.
const (
	Read        Command = 0
	Write       Command = 1
	Close       Command = 2
	Flush       Command = 3
	Trim        Command = 4
	WriteZeroes Command = 6
)

func (c Command) String() string {
	switch c {
	case Read:
		return "read"
	case Write:
		return "write"
	case Close:
		return "close"
	case Flush:
		return "flush"
	case Trim:
		return "trim"
	case WriteZeroes:
		return "write zeroes"
	}
	return fmt.Sprintf("command %d", uint16(c))
}

// Flags of a request.
const (
	// FUA asks for the reply when the request is stable.
	FUA uint16 = 1 << 0
	// NoHole asks for zeros whose room is not given back.
	NoHole uint16 = 1 << 1
)

// Errno is the error in a reply.
type Errno uint32

// Errors in replies. The numbers are the protocol's.
const (
	OK     Errno = 0
	EIO    Errno = 5
	EINVAL Errno = 22
	ENOSPC Errno = 28
)

// Request is the header of a request. The data of a write follows.
type Request struct {
	Flags   uint16
	Command Command
	Cookie  uint64
	Offset  uint64
	Bytes   uint32
}

// Encode returns the header.
func (r Request) Encode() []byte {
	p := make([]byte, requestBytes)
	binary.BigEndian.PutUint32(p, requestMagic)
	binary.BigEndian.PutUint16(p[4:], r.Flags)
	binary.BigEndian.PutUint16(p[6:], uint16(r.Command))
	binary.BigEndian.PutUint64(p[8:], r.Cookie)
	binary.BigEndian.PutUint64(p[16:], r.Offset)
	binary.BigEndian.PutUint32(p[24:], r.Bytes)
	return p
}

// decodeRequest reports whether it is one.
func decodeRequest(p []byte) (Request, bool) {
	return Request{
		Flags:   binary.BigEndian.Uint16(p[4:]),
		Command: Command(binary.BigEndian.Uint16(p[6:])),
		Cookie:  binary.BigEndian.Uint64(p[8:]),
		Offset:  binary.BigEndian.Uint64(p[16:]),
		Bytes:   binary.BigEndian.Uint32(p[24:]),
	}, binary.BigEndian.Uint32(p) == requestMagic
}

// check returns the error of a request that the device cannot do.
func (r Request) check(bytes, block uint64) Errno {
	allowed := FUA // the kernel may set it on anything
	switch r.Command {
	case Flush, Close:
		return OK
	case WriteZeroes:
		allowed |= NoHole
	case Read, Write, Trim:
	default:
		return EINVAL
	}
	switch {
	case r.Flags&^allowed != 0, r.Bytes == 0, r.Offset%block != 0, uint64(r.Bytes)%block != 0:
		return EINVAL
	case r.Command == Read && r.Bytes > MaxRequestBytes:
		return EINVAL
	case r.Offset > bytes || uint64(r.Bytes) > bytes-r.Offset:
		if r.Command == Write || r.Command == WriteZeroes {
			return ENOSPC
		}
		return EINVAL
	}
	return OK
}

func encodeReply(p []byte, cookie uint64, errno Errno) {
	binary.BigEndian.PutUint32(p, replyMagic)
	binary.BigEndian.PutUint32(p[4:], uint32(errno))
	binary.BigEndian.PutUint64(p[8:], cookie)
}
