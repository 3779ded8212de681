package lvm

import (
	"fmt"
	"strings"
)

// LVM takes only [A-Za-z0-9_+.=:&#!/-] in tags and no more than 1024 bytes. A pair is kept as
// "escache.KEY=VALUE"; in VALUE every byte that could be refused is written as "+XX", so any name
// fits and stays readable.
const tagPrefix = "escache."

// EncodeTag makes the tag of one pair. Keys are the project's own and need no encoding.
func EncodeTag(key, value string) string {
	var b strings.Builder
	b.WriteString(tagPrefix + key + "=")
	for _, c := range []byte(value) {
		if isPlain(c) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "+%02X", c)
		}
	}
	return b.String()
}

func isPlain(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-' || c == '/' || c == ':'
}

// DecodeTag returns the pair of a tag; ok is false for tags of others.
func DecodeTag(tag string) (key, value string, ok bool) {
	rest, ours := strings.CutPrefix(tag, tagPrefix)
	key, enc, pair := strings.Cut(rest, "=")
	if !ours || !pair || key == "" {
		return "", "", false
	}
	var b strings.Builder
	for i := 0; i < len(enc); i++ {
		if enc[i] != '+' {
			b.WriteByte(enc[i])
			continue
		}
		var c byte
		if i+2 >= len(enc) {
			return "", "", false
		}
		if _, err := fmt.Sscanf(enc[i+1:i+3], "%02X", &c); err != nil {
			return "", "", false
		}
		b.WriteByte(c)
		i += 2
	}
	return key, b.String(), true
}

func encodeTags(tags map[string]string) map[string]bool {
	out := make(map[string]bool, len(tags))
	for k, v := range tags {
		out[EncodeTag(k, v)] = true
	}
	return out
}
