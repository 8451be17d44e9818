package state

import "sync/atomic"

// Metrics are counts since the cache was made, and what it holds now.
type Metrics struct {
	// Hits and Misses count reads of views. Fills counts the answers that were kept, and RefusedFills
	// those of versions that do not stand, or above the frontier.
	Hits, Misses, Fills, RefusedFills uint64
	// Waits counts the reads that waited for the frontier.
	Waits uint64
	// Versions counts those that moved the frontier, and Unknown those of them whose changes were not
	// known, so that open intervals ended. Rollbacks and Prunes are those of the log.
	Versions, Unknown, Rollbacks, Prunes uint64
	// Cuts counts the streams that broke, and Drops how often all was dropped.
	Cuts, Drops uint64
	// ProofsChecked counts keys that were read with a proof, and Reads the calls that read them.
	ProofsChecked, Reads uint64
	// SampleFailures counts samples that the ledger did not prove.
	SampleFailures uint64
	// Keys and Bytes are what is held now.
	Keys, Bytes int
}

type counters struct {
	hits, misses, fills, refusedFills, waits   atomic.Uint64
	versions, unknown, rollbacks, prunes       atomic.Uint64
	cuts, drops, proven, reads, sampleFailures atomic.Uint64
}

// Metrics gives the counts.
func (c *Cache) Metrics() Metrics {
	n := &c.counts
	m := Metrics{
		Hits: n.hits.Load(), Misses: n.misses.Load(), Fills: n.fills.Load(),
		RefusedFills: n.refusedFills.Load(), Waits: n.waits.Load(), Versions: n.versions.Load(),
		Unknown: n.unknown.Load(), Rollbacks: n.rollbacks.Load(), Prunes: n.prunes.Load(),
		Cuts: n.cuts.Load(), Drops: n.drops.Load(),
		ProofsChecked: n.proven.Load(), Reads: n.reads.Load(), SampleFailures: n.sampleFailures.Load(),
	}
	m.Keys, m.Bytes = c.store.size()
	return m
}
