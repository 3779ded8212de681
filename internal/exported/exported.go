// Package exported has what several of the programs need for the metrics that they export.
package exported

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// BuildInfo is the metric PREFIX_build_info, which is always 1 and has the program's version as its
// label.
func BuildInfo(prefix, version string) prometheus.Collector {
	info := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: prefix + "_build_info", Help: "Always 1; the label is the program's version.",
	}, []string{"version"})
	info.WithLabelValues(version).Set(1)
	return info
}

// CertificateEnd is the metric PREFIX_certificate_end_seconds. end returns when the certificate ends,
// zero if there is none.
func CertificateEnd(prefix, whose string, end func() time.Time) prometheus.Collector {
	return endGauge(prefix+"_certificate_end_seconds", "When "+whose+" TLS certificate ends, as Unix time; 0 while there is none.", end)
}

// AuthorityEnd is the metric PREFIX_authority_end_seconds. end returns when the last authority ends by which who
// believes others, zero if there is none.
func AuthorityEnd(prefix, who, others string, end func() time.Time) prometheus.Collector {
	return endGauge(prefix+"_authority_end_seconds",
		"When the last authority ends whose "+others+" "+who+" believes, as Unix time; 0 while there is none.", end)
}

func endGauge(name, help string, end func() time.Time) prometheus.Collector {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		if at := end(); !at.IsZero() {
			return float64(at.Unix())
		}
		return 0
	})
}

// Truth is the value of a metric that is 0 or 1.
func Truth(is bool) float64 {
	if is {
		return 1
	}
	return 0
}
