package control

import (
	"fmt"

	"github.com/escache/escache-csi/internal/escached/cache"
)

const (
	maxPercent  = 100
	defaultHigh = 50
	// lowBelow is how far the low watermark is below the high one, if only that one is given.
	lowBelow = 5
)

// Order says in which order write-back brings writes to the image.
type Order string

const (
	// Merged may leave out what was overwritten since. It is the default.
	Merged Order = "merged"
	// Strict keeps the image a state that the volume had when its user asked for it to be stable.
	Strict Order = "strict"
)

// Options are in effect at once. Zero is the default of the engine, but for Mode and Order: there it leaves what is.
type Options struct {
	Mode cache.Mode `json:"mode,omitempty"`
	// Write-back starts when more than HighWatermark percent of the log are in use, and stops at LowWatermark.
	HighWatermark int `json:"highWatermark,omitempty"`
	LowWatermark  int `json:"lowWatermark,omitempty"`
	// MaxAgeSeconds bounds how long something stays dirty. Zero means no bound.
	MaxAgeSeconds int   `json:"maxAgeSeconds,omitempty"`
	Order         Order `json:"order,omitempty"`
}

// Of returns the options of a cache.
func Of(o cache.Options) Options {
	order := Merged
	if o.StrictOrder {
		order = Strict
	}
	return Options{
		Mode: o.Mode, HighWatermark: o.HighWatermark, LowWatermark: o.LowWatermark, MaxAgeSeconds: o.MaxAgeSeconds, Order: order,
	}
}

// Cache returns the options as cache.State has them.
func (o Options) Cache() cache.Options {
	return cache.Options{
		Mode: o.Mode, HighWatermark: o.HighWatermark, LowWatermark: o.LowWatermark, MaxAgeSeconds: o.MaxAgeSeconds,
		StrictOrder: o.Order == Strict,
	}
}

// Check returns ErrInvalid with the option that cannot be.
func (o Options) Check() error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: %s", ErrInvalid, fmt.Sprintf(format, args...))
	}
	switch o.Mode {
	case "", cache.Writeback, cache.Writethrough:
	default:
		return bad("mode is %q; it is %s or %s", o.Mode, cache.Writeback, cache.Writethrough)
	}
	switch o.Order {
	case "", Merged, Strict:
	default:
		return bad("order is %q; it is %s or %s", o.Order, Merged, Strict)
	}
	full := o.WithDefaults()
	switch {
	case o.HighWatermark < 0 || o.HighWatermark > maxPercent:
		return bad("highWatermark is %d; it is 1 to %d percent", o.HighWatermark, maxPercent)
	case o.LowWatermark < 0 || o.LowWatermark > maxPercent:
		return bad("lowWatermark is %d; it is 1 to %d percent", o.LowWatermark, maxPercent)
	case full.LowWatermark > full.HighWatermark:
		return bad("lowWatermark is %d and highWatermark is %d: write-back would stop above the mark at which it starts",
			full.LowWatermark, full.HighWatermark)
	case o.MaxAgeSeconds < 0:
		return bad("maxAgeSeconds is %d; 0 means no bound", o.MaxAgeSeconds)
	}
	return nil
}

// WithDefaults returns the options with numbers for the watermarks that are zero.
func (o Options) WithDefaults() Options {
	if o.HighWatermark == 0 {
		o.HighWatermark = defaultHigh
		if o.LowWatermark > defaultHigh {
			o.HighWatermark = min(o.LowWatermark+lowBelow, maxPercent)
		}
	}
	if o.LowWatermark == 0 {
		o.LowWatermark = max(o.HighWatermark-lowBelow, 0)
	}
	return o
}
