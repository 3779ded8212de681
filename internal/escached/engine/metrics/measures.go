package metrics

import "github.com/escache/escache-csi/internal/escached/cache"

// collectMeasures sends what only an engine with a process of its own measures.
func collectMeasures(s scrape, m cache.Measures) {
	s.histogram("volume_read_seconds", "Duration of reads (engine log).", m.Reads)
	s.histogram("volume_write_seconds", "Duration of writes, without the flush that makes them stable (engine log).", m.Writes)
	s.histogram("volume_flush_seconds", "Duration of flushes: until what was written is stable on both copies (engine log).", m.Flushes)
	s.histogram("volume_log_record_writes", "Writes that reached the log together, as one record (engine log).", m.RecordWrites)
	s.gauge("volume_log_bytes", "Length of the log (engine log).", float64(m.LogBytes))
	s.gauge("volume_log_used_bytes", "Part of the log that cannot be written now (engine log).", float64(m.LogUsed))
	s.gauge("volume_log_live_bytes",
		"Part of the log that is not in Ceph. Divided by escached_volume_log_bytes: how full the log is (engine log).", float64(m.LogLive))
	s.gauge("volume_log_index_bytes", "Memory that says where dirty blocks are in the log (engine log).", float64(m.IndexBytes))
	s.gauge("volume_log_recovery_seconds", "How long the cache's process took to recover the log when it started (engine log).",
		m.Recovery.Seconds())
	s.counter("volume_log_written_bytes_total", "Bytes written to the log, with the headers of records (engine log).", m.RecordBytes)
	s.counter("volume_written_back_bytes_total", "Bytes written back to Ceph (engine log).", m.WrittenBack)
	s.counter("volume_request_errors_total", "Requests of the volume's user that were answered with an error (engine log).", m.Errors)
}
