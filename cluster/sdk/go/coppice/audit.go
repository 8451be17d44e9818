package coppice

import (
	"context"
	"errors"

	"coppice.dev/sdk/verify"
)

// AuditReport is the outcome of an audit of the whole log.
type AuditReport struct {
	// Checkpoint is the one whose log was audited, and Note its signed note.
	Checkpoint verify.Checkpoint
	Note       []byte
	// To is the last version whose state root follows from the journals so far.
	To uint64
	// Broken is the first rule that does not hold, or nil. A journal that is not the one of its header
	// (rules 7 and 10) may be the word of the coordinator that answered.
	Broken *verify.AuditError
}

// Sound tells whether all is right.
func (r *AuditReport) Sound() bool { return r.Broken == nil }

// Audit replays the journals of all versions that stand, from genesis to the newest checkpoint, and
// recomputes each state root. Only a cluster that keeps its journals has them. Progress is called
// behind each version, with the last one to come; it is nil for nobody. Streams that break are
// resumed. Memory holds the newest state without values, and some 450 bytes for each entry of the
// log.
func (c *Client) Audit(ctx context.Context, progress func(version, to uint64)) (*AuditReport, error) {
	if c.trust == nil {
		return nil, errNoKey("Journal")
	}
	log, err := c.readLog(ctx)
	if err != nil {
		return nil, err
	}
	report := &AuditReport{Checkpoint: log.checkpoint, Note: log.note, Broken: log.broken}
	if !report.Sound() || log.Head() == 0 {
		return report, nil
	}
	replay, err := verify.NewReplay(&log.HeaderLog)
	if err != nil {
		return nil, err
	}
	take := func(journal *Journaled) error {
		if _, hash := log.entry(report.To + 1); verify.EntryHash(journal.Header) != hash {
			return errMoved
		}
		if err := replay.Version(journal.VersionJournal); err != nil {
			return err
		}
		if report.To++; progress != nil {
			progress(report.To, log.Head())
		}
		return nil
	}
	err = c.resume(ctx, func() uint64 { return report.To }, func() error {
		for journal, err := range c.Journals(ctx, report.To+1, log.Head()) {
			if err == nil {
				err = take(&journal)
			}
			if err != nil || report.To == log.Head() {
				return err
			}
		}
		return streamError(ctx, "Journal", errEnded)
	})
	if err != nil && !errors.As(err, &report.Broken) {
		return nil, err
	}
	return report, nil
}
