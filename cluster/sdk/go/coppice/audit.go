package coppice

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/codes"

	"coppice.dev/sdk/verify"
)

// AuditReport is the outcome of an audit of the whole log.
type AuditReport struct {
	// Checkpoint is the one whose log was audited, and Note its signed note.
	Checkpoint verify.Checkpoint
	Note       []byte
	// To is the last version whose state root follows from the journals so far, or the version before
	// the first one.
	To uint64
	// Broken is the first rule that does not hold, or nil. A journal that is not the one of its header
	// (rules 7 and 10) may be the word of the coordinator that answered.
	Broken *verify.AuditError
}

// Sound tells whether all is right.
func (r *AuditReport) Sound() bool { return r.Broken == nil }

// Audited are the versions that an audit replays. The zero value is all of them.
type Audited struct {
	// From is the first version. Above 1, the state before it is read and proven, which must not have
	// been pruned: that state is trusted to follow from what came before.
	From uint64
	// To is the last version; 0 is the newest one of the checkpoint.
	To uint64
}

// Audit replays the journals of versions that stand, and recomputes each state root. Whatever the
// versions, it reads all headers below the newest checkpoint. Only a cluster that keeps its
// journals has them. Progress is called behind each version, with the last one to come; it is nil
// for nobody. Streams that break are resumed. Memory holds the newest state without values, and
// some 450 bytes for each entry of the log.
func (c *Client) Audit(
	ctx context.Context, audited Audited, progress func(version, to uint64),
) (*AuditReport, error) {
	if c.trust == nil {
		return nil, errNoKey("Journal")
	}
	if audited.To != 0 && audited.From > audited.To {
		return nil, refused("Journal", InvalidArgument, codes.InvalidArgument, "the first version is above the last one")
	}
	log, err := c.readLog(ctx)
	if err != nil {
		return nil, err
	}
	report := &AuditReport{Checkpoint: log.checkpoint, Note: log.note, Broken: log.broken}
	if !report.Sound() {
		return report, nil
	}
	to := log.Head()
	if missing := max(audited.From, audited.To); missing > to {
		message := fmt.Sprintf("version %d is above head %d of the checkpoint", missing, to)
		return nil, refused("Journal", NotYet, codes.FailedPrecondition, message)
	}
	if audited.To != 0 {
		to = audited.To
	}
	if to == 0 {
		return report, nil
	}
	replay, err := c.startReplay(ctx, log, audited.From)
	if err != nil {
		return nil, err
	}
	report.To = max(audited.From, 1) - 1
	take := func(journal *Journaled) error {
		if _, hash := log.entry(report.To + 1); verify.EntryHash(journal.Header) != hash {
			return errMoved
		}
		if err := replay.Version(journal.VersionJournal); err != nil {
			return err
		}
		if report.To++; progress != nil {
			progress(report.To, to)
		}
		return nil
	}
	err = c.resume(ctx, func() uint64 { return report.To }, func() error {
		for journal, err := range c.Journals(ctx, report.To+1, to) {
			if err == nil {
				err = take(&journal)
			}
			if err != nil || report.To == to {
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
