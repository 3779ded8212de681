// Package requests parses and checks the requests of CSI, before anything is done for them.
package requests
