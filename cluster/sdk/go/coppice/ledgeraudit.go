package coppice

import (
	"context"
	"errors"
	"fmt"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// LedgerAudit says which ledger of members to audit, and how.
type LedgerAudit struct {
	Ledger LedgerID
	// Payloads reads the content of each journal as well, and compares it with what its author signed.
	// Not everybody may.
	Payloads bool
	// Progress is called behind each version, with the last one to come. It is nil for nobody.
	Progress func(version, to uint64)
}

// LedgerReport is the outcome of an audit of a ledger.
type LedgerReport struct {
	// Checkpoint is the one whose log was audited, and Note its signed note.
	Checkpoint verify.Checkpoint
	Note       []byte
	// To is the last version that was taken.
	To uint64
	// Since is the version behind which requests were judged again: that of the newest sweep, or a
	// later one if that is pruned. It is nil if no purge has swept the ledger, and all were judged.
	Since *uint64
	// Purged is the number below which journals are gone, but for kept ones. Kept counts these: the
	// founding, changes of members, orders, and what members retain. All are proven and were checked.
	Purged uint64
	Kept   uint64
	// Journals counts those that are right, or were purged. Root is that of the list of them.
	Journals uint64
	Root     verify.Digest
	// Occulted counts the journals that orders have occulted since then.
	Occulted uint64
	// Payloads counts those that were read and are right.
	Payloads uint64
	// Offence is the first thing that is wrong; nil if all is right.
	Offence *verify.LedgerOffence
}

// Sound tells whether all is right.
func (r *LedgerReport) Sound() bool { return r.Offence == nil }

// AuditLedger judges the requests of a ledger of members again, up to the newest checkpoint, as
// their authors signed them: who was a member, by which key and in which role, lanes, conditions,
// lineages, orders with their approvals, and every record that follows. It reads all headers, the
// journals of versions, and leaves. Content that is missing has to be covered by an order.
//
// What a purge has swept can't be judged again. The audit then begins behind the newest sweep, with
// records that are proven there. It checks the order of the purge, which journals it has kept, and
// by proofs each journal that is left from before.
//
// A ledger that is wrong is no error: the report names the first offence. It is an error if the
// headers are not those of a signed checkpoint, if a rollback or a purge comes between, or if the
// cluster does not answer. Streams that break are resumed. Memory holds some 450 bytes for each
// entry of the root log, 250 for each clue, and 40 for each journal: at most 12 GiB.
func (c *Client) AuditLedger(ctx context.Context, audit LedgerAudit) (*LedgerReport, error) {
	if c.trust == nil {
		return nil, errNoKey("Journal")
	}
	log, err := c.readLog(ctx)
	if err != nil {
		return nil, err
	}
	r := &ledgerReplay{Client: c, LedgerAudit: audit, log: log}
	r.report.Checkpoint, r.report.Note = log.checkpoint, log.note
	if err = log.offence(); err == nil {
		err = r.run(ctx)
	}
	if r.auditor != nil {
		r.report.Since, r.report.Occulted = r.auditor.Since(), r.auditor.Occulted()
		r.report.Journals, r.report.Root = r.auditor.Size(), r.auditor.Root()
	}
	if err != nil && !errors.As(err, &r.report.Offence) {
		return nil, err
	}
	return &r.report, nil
}

// ledgerReplay is an audit under way.
type ledgerReplay struct {
	*Client
	LedgerAudit
	log     *auditedLog
	auditor *verify.LedgerAuditor
	report  LedgerReport
	// ahead has leaves that were read ahead, from a number on.
	ahead     [][]byte
	aheadFrom uint64
	// members are the signers whose records were read. Past keys never change.
	members map[verify.MemberID]*verify.Member
	// changes are the numbers of the changes of members that were checked by a proof.
	changes map[uint64]bool
}

func (r *ledgerReplay) run(ctx context.Context) error {
	swept, err := r.begin(ctx)
	if err != nil {
		return err
	}
	if r.report.To < r.log.Head() {
		place := func() uint64 { return r.report.To }
		if err := r.resume(ctx, place, func() error { return r.replay(ctx) }); err != nil {
			return err
		}
	}
	if swept != nil {
		if err := r.checkSwept(ctx, swept); err != nil {
			return err
		}
	}
	if r.Payloads {
		return r.checkPayloads(ctx)
	}
	return nil
}

// begin finds the version behind which the audit begins. If a purge has swept the ledger, it gives
// the records of that version.
func (r *ledgerReplay) begin(ctx context.Context) (*sweptLedger, error) {
	head := r.log.Head()
	now, purge, err := r.stateAt(ctx, head)
	if err != nil {
		return nil, err
	}
	r.report.Purged = now.Purged
	if now.Purged > 0 {
		if purge == nil {
			return nil, r.offenceAt(head, verify.OffencePurge, nil, "journals were swept, and no purge was ordered")
		}
		return r.beginBehind(ctx, min(max(purge.Swept, r.log.Boundary()), head))
	}
	// The founding is always kept. If its leaf names another version, the replay finds that.
	page, _, err := r.journalPage(ctx, r.Ledger, 0, 1, JournalRead{Request: true}, nil)
	if err == nil && len(page.Journals) == 0 {
		err = &withheld{why: "the founding is not given"}
	}
	if err != nil {
		return nil, r.found(0, err)
	}
	founded := page.Journals[0].Leaf.Stamp.Version
	r.report.To = min(max(founded, 1)-1, head)
	r.auditor = verify.NewLedgerAuditor(&r.log.HeaderLog, &r.log.roots, r.Ledger, r.report.To)
	return nil, nil
}

// replay takes versions from the next one on.
func (r *ledgerReplay) replay(ctx context.Context) error {
	head := r.log.Head()
	request := &v1.JournalRequest{FromVersion: r.report.To + 1, ToVersion: head}
	lists := 0
	for message, err := range messages(ctx, r.Client, "Journal", request, v1.LedgerClient.Journal, true) {
		if err != nil {
			return err
		}
		if len(message.Header) == 0 {
			// The hashes of operation lists are in the entries.
			if lists++; lists > len(r.log.Genesis().Shards) {
				return distrust("Journal", "a version has operation lists of more shards than there are")
			}
			continue
		}
		lists = 0
		if err := r.take(ctx, message); err != nil {
			return err
		}
		if r.report.To == head {
			return nil
		}
	}
	return streamError(ctx, "Journal", errEnded)
}

var errMoved = distrust("Journal",
	"another version than the audited log has: if there was a rollback, audit again")

// take judges the next version.
func (r *ledgerReplay) take(ctx context.Context, message *v1.JournalResponse) error {
	next := r.report.To + 1
	if _, hash := r.log.entry(next); verify.EntryHash(message.Header) != hash {
		return errMoved
	}
	appends, err := r.auditor.Version(message.Entries)
	if err != nil {
		return err
	}
	told := make([]verify.Told, len(appends))
	for i, entry := range appends {
		if told[i], err = r.tell(ctx, entry); err != nil {
			return err
		}
	}
	for {
		need, err := r.auditor.Take(told)
		if err != nil {
			return err
		}
		if need == nil {
			break
		}
		if err := r.supply(ctx, need); err != nil {
			return err
		}
	}
	r.report.To = next
	if r.Progress != nil {
		r.Progress(next, r.log.Head())
	}
	return nil
}

// supply gives the auditor what it needs.
func (r *ledgerReplay) supply(ctx context.Context, need *verify.LedgerNeed) error {
	for _, jsn := range need.Leaves {
		journals, err := r.read(ctx, jsn, 1, false)
		if err != nil {
			return err
		}
		if !r.auditor.Lend(jsn, journals[0].Leaf) {
			return r.offence(verify.OffenceAnswer, jsn, "the leaf is not the one that was appended")
		}
	}
	if len(need.Records) == 0 {
		return nil
	}
	records, err := r.records(ctx, *r.auditor.Since(), need.Records)
	if err != nil {
		return err
	}
	for _, key := range need.Records {
		if err := r.auditor.Believe(key, records[string(key)]); err != nil {
			return err
		}
	}
	return nil
}

// offence is one that was found in the version that is judged, or behind the last one.
func (r *ledgerReplay) offence(kind verify.OffenceKind, jsn uint64, why string) error {
	return r.offenceAt(min(r.report.To+1, r.log.Head()), kind, &jsn, why)
}

func (r *ledgerReplay) offenceAt(version uint64, kind verify.OffenceKind, jsn *uint64, why string) error {
	header, _ := r.log.entry(version)
	return &verify.LedgerOffence{Kind: kind, Stamp: header.Stamp(), JSN: jsn, Err: errors.New(why)}
}

// found makes an offence of a failed check of an answer about a journal. Forks and calls that fail
// stay what they are.
func (r *ledgerReplay) found(jsn uint64, err error) error {
	var fork *ForkError
	var hidden *withheld
	var order *badOrder
	offence := &verify.LedgerOffence{JSN: &jsn, Err: err}
	if header, _ := r.log.entry(r.report.To + 1); header != nil && r.auditor != nil {
		offence.Stamp = header.Stamp()
	}
	switch {
	case err == nil || errors.As(err, &fork) || errors.As(err, new(*verify.LedgerOffence)):
		return err
	case errors.As(err, &hidden):
		offence.Kind, offence.JSN, offence.Err = verify.OffenceWithheld, &hidden.jsn, hidden
	case errors.As(err, &order):
		offence.Kind, offence.Err = verify.OffencePurge, order
	case errors.Is(err, errOtherList):
		offence.Kind, offence.JSN = verify.OffenceHead, nil
	case errors.Is(err, ErrUntrusted):
		offence.Kind = verify.OffenceAnswer
	default:
		return err
	}
	return offence
}

// stateAt reads the ledger's head in a version, and its newest purge, or nil.
func (r *ledgerReplay) stateAt(ctx context.Context, version uint64) (verify.LedgerState, *verify.Purge, error) {
	head, newest := r.Ledger.HeadKey(), r.Ledger.PurgeKey()
	records, err := r.records(ctx, version, [][]byte{head, newest})
	if err != nil {
		return verify.LedgerState{}, nil, err
	}
	if records[string(head)] == nil {
		return verify.LedgerState{}, nil, fmt.Errorf("coppice: version %d has no such ledger: %w", version, NotFound)
	}
	state, err := verify.DecodeLedgerState(records[string(head)])
	if err != nil {
		return state, nil, r.offenceAt(version, verify.OffenceRecords, nil, err.Error())
	}
	if records[string(newest)] == nil {
		return state, nil, nil
	}
	purge, err := verify.DecodePurge(records[string(newest)])
	if err != nil {
		return state, nil, r.offenceAt(version, verify.OffenceRecords, nil, err.Error())
	}
	return state, purge, nil
}
