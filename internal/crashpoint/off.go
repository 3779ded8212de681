//go:build !crashpoint

package crashpoint

// Reach marks a moment, e.g. "dev_connect/promoted". This build does nothing with it.
func Reach(string) {}
