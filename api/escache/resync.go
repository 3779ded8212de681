package escache

// Resync is how a running resync goes on. Both ends of it say so.
type Resync struct {
	// LeftBytes is how much is still to be copied.
	LeftBytes int64 `json:"leftBytes"`
	// BytesPerSecond is the rate of the last moments; 0 while nothing is copied.
	BytesPerSecond int64 `json:"bytesPerSecond"`
	// RemainingSeconds is the time left at this rate. It means nothing while the rate is 0.
	RemainingSeconds int64 `json:"remainingSeconds,omitempty"`
}
