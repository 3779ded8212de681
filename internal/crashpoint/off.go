//go:build !crashpoint

package crashpoint

// Reach marks a moment, such as "dev_connect/promoted". In this build it does nothing.
func Reach(string) {}
