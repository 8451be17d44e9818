package coppice

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// sweptLedger is a ledger where the audit of it begins, behind a sweep.
type sweptLedger struct {
	version uint64
	state   verify.LedgerState
	purge   *verify.Purge
}

// mark is what the list of later versions continues.
func (s *sweptLedger) mark() *LedgerMark { return &LedgerMark{Size: s.state.Size, Root: s.state.Root} }

// beginBehind begins the audit behind a version, with the ledger's head as it is proven there.
func (r *ledgerReplay) beginBehind(ctx context.Context, version uint64) (*sweptLedger, error) {
	state, purge, err := r.stateAt(ctx, version)
	if err != nil {
		return nil, err
	}
	if purge == nil || state.Purged == 0 {
		return nil, r.offenceAt(version, verify.OffencePurge, nil, "the newest sweep is none")
	}
	head := r.Ledger.HeadKey()
	records, err := r.records(ctx, version, [][]byte{head})
	if err != nil {
		return nil, err
	}
	r.report.To, r.members = version, make(map[verify.MemberID]*verify.Member)
	r.auditor = verify.NewLedgerAuditor(&r.log.HeaderLog, &r.log.roots, r.Ledger, version)
	return &sweptLedger{version: version, state: state, purge: purge}, r.auditor.Begin(records[string(head)])
}

// checkSwept checks what lies before the beginning: the order of the purge, the sweep, and all
// journals that are left.
func (r *ledgerReplay) checkSwept(ctx context.Context, s *sweptLedger) error {
	given, err := r.checkPurge(ctx, r.Ledger, s.purge)
	if err != nil {
		return r.found(s.purge.Order, err)
	}
	for _, signer := range given.Signers {
		r.members[verify.MemberIDOf(signer.Name)] = signer
	}
	reached := s.state.Purged == s.purge.Before
	if s.state.Purged > s.purge.Before || s.purge.State == verify.PurgeSwept && !reached {
		why := "the purge has taken other journals than it was ordered to"
		return r.offenceAt(s.version, verify.OffencePurge, &s.purge.Order, why)
	}
	if s.version == s.purge.Swept {
		if err := r.checkSweep(ctx, s); err != nil {
			return err
		}
	}
	if err := r.checkRun(ctx, s, []uint64{0}); err != nil {
		return err
	}
	for from := uint64(0); from < s.state.Purged; from += auditRecords {
		if err := r.checkRetained(ctx, s, from, min(from+auditRecords, s.state.Purged)); err != nil {
			return err
		}
	}
	for next := s.state.Purged; next < s.state.Size; {
		count, err := r.checkPage(ctx, s, next, s.state.Size-next)
		if err != nil {
			return err
		}
		next += count
	}
	return r.checkChanges(ctx, s)
}

// checkSweep checks that the version of the newest sweep has one, so that nothing was left out that
// could be judged.
func (r *ledgerReplay) checkSweep(ctx context.Context, s *sweptLedger) error {
	auditor := verify.NewLedgerAuditor(&r.log.HeaderLog, &r.log.roots, r.Ledger, s.version-1)
	appends, err := r.appendsOf(ctx, auditor, s.version)
	if err != nil {
		return err
	}
	for _, entry := range appends {
		page, _, err := r.journalPage(ctx, r.Ledger, entry.FirstJSN, 1, JournalRead{}, nil)
		if err != nil && !errors.Is(err, PurgedJournal) {
			return r.found(entry.FirstJSN, err)
		}
		if err != nil || len(page.Journals) == 0 || page.Journals[0].Leaf.Kind != verify.JournalOrder {
			continue
		}
		given, err := r.LedgerOrder(ctx, r.Ledger, entry.FirstJSN)
		if err != nil {
			return r.found(entry.FirstJSN, err)
		}
		if sweep := given.Order.Sweep; sweep != nil && sweep.To == s.state.Purged && sweep.From < sweep.To {
			return nil
		}
	}
	return r.offenceAt(s.version, verify.OffencePurge, nil, "the version of the newest sweep has no sweep to this number")
}

// appendsOf reads the appends of one version.
func (r *ledgerReplay) appendsOf(
	ctx context.Context, auditor *verify.LedgerAuditor, version uint64) ([]*verify.Entry, error,
) {
	request := &v1.JournalRequest{FromVersion: version, ToVersion: version}
	for message, err := range messages(ctx, r.Client, "Journal", request, v1.LedgerClient.Journal, true) {
		if err != nil {
			return nil, err
		}
		if _, hash := r.log.entry(version); verify.EntryHash(message.Header) != hash {
			return nil, errMoved
		}
		return auditor.Version(message.Entries)
	}
	return nil, streamError(ctx, "Journal", errEnded)
}

// checkRetained checks the journals that members retain. Which ones these are is proven where the
// audit begins, and that members ordered it by their orders, which are kept as well.
func (r *ledgerReplay) checkRetained(ctx context.Context, s *sweptLedger, from, to uint64) error {
	var keys [][]byte
	for jsn := from; jsn < to; jsn++ {
		keys = append(keys, r.Ledger.RetainedKey(jsn))
	}
	records, err := r.records(ctx, s.version, keys)
	if err != nil {
		return err
	}
	var kept []uint64
	orders := make(map[uint64]*GivenOrder)
	for jsn := from; jsn < to; jsn++ {
		record := records[string(r.Ledger.RetainedKey(jsn))]
		if record == nil {
			continue
		}
		number, member, err := verify.DecodeRetained(record)
		if err != nil {
			return r.offenceAt(s.version, verify.OffenceRecords, &jsn, err.Error())
		}
		if orders[number] == nil {
			if orders[number], err = r.LedgerOrder(ctx, r.Ledger, number); err != nil {
				return r.found(number, err)
			}
		}
		if !retains(orders[number], jsn, member) {
			return r.offenceAt(s.version, verify.OffenceKept, &jsn, "no order of the member retains it")
		}
		kept = append(kept, jsn)
	}
	return r.checkRun(ctx, s, kept)
}

// retains tells whether an order is one of a member to keep a journal.
func retains(given *GivenOrder, jsn uint64, member verify.MemberID) bool {
	retain := given.Order.Retain
	return retain != nil && given.Leaf.Member == member && slices.Contains(retain.Journals, jsn)
}

// checkRun checks journals below the purge, which ascend, and which no purge takes.
func (r *ledgerReplay) checkRun(ctx context.Context, s *sweptLedger, kept []uint64) error {
	for len(kept) > 0 {
		run := 1
		for run < len(kept) && kept[run] == kept[0]+uint64(run) {
			run++
		}
		count, err := r.checkPage(ctx, s, kept[0], uint64(run))
		if err != nil {
			return err
		}
		kept = kept[count:]
		r.report.Kept += count
	}
	return nil
}

// checkChanges checks the changes of members below the purge by which keys came and went: those of
// all signers that the audit has met. They are kept.
func (r *ledgerReplay) checkChanges(ctx context.Context, s *sweptLedger) error {
	changes := make(map[uint64]bool)
	for _, member := range r.members {
		for _, key := range member.Keys {
			for _, bound := range []*uint64{&key.From, key.Until} {
				if bound != nil && *bound > 1 && *bound <= s.state.Purged {
					changes[*bound-1] = true
				}
			}
		}
	}
	for _, jsn := range slices.Sorted(maps.Keys(changes)) {
		if err := r.checkRun(ctx, s, []uint64{jsn}); err != nil {
			return err
		}
		if r.kind != verify.JournalMembers {
			return r.offenceAt(s.version, verify.OffenceRecords, &jsn, "no change of members, and a key came or went by it")
		}
	}
	return nil
}

// checkPage checks neighbouring journals, up to a number of them, which are there: each is in the
// list, as its author signed it by the key in force. It gives their number.
func (r *ledgerReplay) checkPage(ctx context.Context, s *sweptLedger, from, most uint64) (uint64, error) {
	read := JournalRead{Payload: r.Payloads, Request: true}
	limit := uint32(min(most, auditJournals))
	page, err := r.JournalPage(ctx, r.Ledger, from, limit, read, s.mark())
	for limit > 1 && TooLarge(err) {
		limit /= 2
		page, err = r.JournalPage(ctx, r.Ledger, from, limit, read, s.mark())
	}
	if errors.Is(err, PurgedJournal) || err == nil && len(page.Journals) < int(limit) {
		return 0, r.notThere(ctx, s, from, page)
	}
	if err != nil {
		return 0, r.found(from, err)
	}
	for i := range page.Journals {
		journal := &page.Journals[i]
		if err := r.checkSigner(ctx, s, journal.Leaf); err != nil {
			return 0, err
		}
		r.kind = journal.Leaf.Kind
		if journal.Envelope != nil {
			r.report.Payloads++
		}
	}
	return uint64(len(page.Journals)), nil
}

// notThere tells why a page has fewer journals than are there where the audit begins.
func (r *ledgerReplay) notThere(ctx context.Context, s *sweptLedger, from uint64, page *JournalPage) error {
	if page != nil {
		from += uint64(len(page.Journals))
	}
	if from < s.state.Purged {
		// No later sweep takes what an earlier one has kept.
		err := errors.New("a journal is withheld that the purge has kept")
		return &verify.LedgerOffence{Kind: verify.OffenceWithheld, JSN: &from, Err: err}
	}
	return r.missing(ctx, from)
}

// checkSigner checks that the key in a leaf, by which its request is signed, was that of its member
// or agent.
func (r *ledgerReplay) checkSigner(ctx context.Context, s *sweptLedger, leaf *verify.Leaf) error {
	wrong := func(why string) error {
		err := fmt.Errorf("%s: %w", why, verify.RefusedSignature)
		return &verify.LedgerOffence{Kind: verify.OffenceRequest, Stamp: leaf.Stamp, JSN: &leaf.JSN, Err: err}
	}
	signer := leaf.Member
	if leaf.Agent != nil {
		signer = *leaf.Agent
	}
	member, err := r.memberAt(ctx, s.version, signer)
	if err != nil {
		return err
	}
	if member == nil || (leaf.Agent == nil) != (member.Agency == nil) ||
		leaf.Agent != nil && member.Agency.Principal != leaf.Member {
		return wrong("its signer is no member, or no agent of its member")
	}
	if key, has := member.KeyAt(leaf.JSN - uint64(leaf.Index)); !has || key != leaf.Key {
		return wrong("its key was not that of its signer")
	}
	return nil
}

// memberAt reads the record of a member where the audit begins, or nil.
func (r *ledgerReplay) memberAt(ctx context.Context, version uint64, id verify.MemberID) (*verify.Member, error) {
	if member, known := r.members[id]; known {
		return member, nil
	}
	key := r.Ledger.MemberKey(id)
	records, err := r.records(ctx, version, [][]byte{key})
	if err != nil {
		return nil, err
	}
	if record := records[string(key)]; record != nil {
		if r.members[id], err = verify.DecodeMember(record); err != nil {
			return nil, r.offenceAt(version, verify.OffenceRecords, nil, err.Error())
		}
	}
	return r.members[id], nil
}
