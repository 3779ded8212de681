package rbd

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/ceph/go-ceph/rados"
)

// monCommand asks a monitor and decodes its answer.
func monCommand[T any](ctx context.Context, c *Cluster, op string, command map[string]any) (T, error) {
	return call(ctx, c, op, "", func(conn *rados.Conn) (T, error) { return ask[T](conn, command) })
}

// ask is monCommand within a call.
func ask[T any](conn *rados.Conn, command map[string]any) (T, error) {
	var answer T
	out, err := sendCommand(conn, command)
	if err != nil {
		return answer, err
	}
	if err := json.Unmarshal(out, &answer); err != nil {
		return answer, fmt.Errorf("%w: answer to %q: %w", ErrCeph, command["prefix"], err)
	}
	return answer, nil
}

// sendCommand sends a command whose answer is text for people, or nothing.
func sendCommand(conn *rados.Conn, command map[string]any) ([]byte, error) {
	command["format"] = "json"
	text, err := json.Marshal(command)
	if err != nil {
		return nil, err
	}
	out, status, err := conn.MonCommand(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w: %s", command["prefix"], translate(err), status)
	}
	return out, nil
}
