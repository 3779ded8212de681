package traces

import (
	"fmt"
	"net"
)

// CheckTarget returns an error unless a target is empty or HOST:PORT.
func CheckTarget(target string) error {
	if target == "" {
		return nil
	}
	if host, port, err := net.SplitHostPort(target); err != nil || host == "" || port == "" {
		return fmt.Errorf("%q is not the HOST:PORT of an OpenTelemetry collector, as in otel-collector:4317", target)
	}
	return nil
}
