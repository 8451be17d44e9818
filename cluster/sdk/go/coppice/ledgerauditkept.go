package coppice

import (
	"context"
	"errors"
	"fmt"
	"slices"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// auditSwept is how many journals below a purge are judged at a time, by two records each.
const auditSwept = auditRecords / 2

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
	r.report.To = version
	r.members, r.changes = make(map[verify.MemberID]*verify.Member), make(map[uint64]bool)
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
	for from := uint64(0); from < s.state.Purged; from += auditSwept {
		if err := r.checkKept(ctx, s, from, min(from+auditSwept, s.state.Purged)); err != nil {
			return err
		}
	}
	for next := s.state.Purged; next < s.state.Size; {
		journals, err := r.checkPage(ctx, s, next, s.state.Size-next)
		if err != nil {
			return err
		}
		next += uint64(len(journals))
	}
	return r.checkChanges(s)
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

// checkKept checks the journals from one number up to below another that the purge has kept.
// Records at head prove which these are.
func (r *ledgerReplay) checkKept(ctx context.Context, s *sweptLedger, from, to uint64) error {
	var keys [][]byte
	for jsn := from; jsn < to; jsn++ {
		keys = append(keys, r.Ledger.LeafKey(jsn), r.Ledger.RetainedKey(jsn))
	}
	records, err := r.records(ctx, r.log.Head(), keys)
	if err != nil {
		return err
	}
	kept, err := r.keptOf(ctx, records, from, to)
	if err != nil {
		return err
	}
	return r.checkRun(ctx, s, kept)
}

// keptOf gives the leaves that are left, by records of leaves and of what members retain. It checks
// that each of them should be left, and that no other should.
func (r *ledgerReplay) keptOf(
	ctx context.Context, records map[string][]byte, from, to uint64) (kept []*verify.Leaf, err error,
) {
	orders := make(map[uint64]*GivenOrder)
	for jsn := from; jsn < to; jsn++ {
		retained := records[string(r.Ledger.RetainedKey(jsn))]
		leaf, err := r.sweptLeaf(jsn, records[string(r.Ledger.LeafKey(jsn))], retained != nil)
		if err != nil {
			return nil, err
		}
		if leaf != nil {
			kept = append(kept, leaf)
		}
		if retained != nil {
			if err := r.checkRetained(ctx, orders, jsn, retained); err != nil {
				return nil, err
			}
		}
	}
	return kept, nil
}

// sweptLeaf reads the leaf of a journal that a sweep has passed. It is nil if the journal is gone,
// and an offence if it should not be.
func (r *ledgerReplay) sweptLeaf(jsn uint64, record []byte, isRetained bool) (*verify.Leaf, error) {
	wrong := func(kind verify.OffenceKind, why string) (*verify.Leaf, error) {
		return nil, r.offenceAt(r.log.Head(), kind, &jsn, why)
	}
	if record == nil {
		if jsn == 0 {
			return wrong(verify.OffenceKept, "a purge has taken the founding of the ledger")
		}
		if isRetained {
			return wrong(verify.OffenceKept, "a purge has taken it, though a member retains it")
		}
		return nil, nil
	}
	leaf, err := verify.DecodeLeaf(record)
	if err != nil || leaf.JSN != jsn {
		return wrong(verify.OffenceRecords, "its leaf is none, or that of another journal")
	}
	if leaf.Kind == verify.JournalData && !isRetained {
		return wrong(verify.OffenceRecords, "a purge should have taken it: no member retains it")
	}
	return leaf, nil
}

// checkRetained checks that a member has ordered to keep a journal, as the record says. The orders
// that were read are given.
func (r *ledgerReplay) checkRetained(
	ctx context.Context, orders map[uint64]*GivenOrder, jsn uint64, record []byte) error {
	number, member, err := verify.DecodeRetained(record)
	if err != nil {
		return r.offenceAt(r.log.Head(), verify.OffenceRecords, &jsn, err.Error())
	}
	if orders[number] == nil {
		if orders[number], err = r.LedgerOrder(ctx, r.Ledger, number); err != nil {
			return r.found(number, err)
		}
	}
	if !retains(orders[number], jsn, member) {
		return r.offenceAt(r.log.Head(), verify.OffenceKept, &jsn, "no order of the member retains it")
	}
	return nil
}

// retains tells whether an order is one of a member to keep a journal.
func retains(given *GivenOrder, jsn uint64, member verify.MemberID) bool {
	retain := given.Order.Retain
	return retain != nil && given.Leaf.Member == member && slices.Contains(retain.Journals, jsn)
}

// checkRun checks the journals below the purge that it has kept, by their leaves, which ascend.
func (r *ledgerReplay) checkRun(ctx context.Context, s *sweptLedger, kept []*verify.Leaf) error {
	for len(kept) > 0 {
		run := 1
		for run < len(kept) && kept[run].JSN == kept[0].JSN+uint64(run) {
			run++
		}
		journals, err := r.checkPage(ctx, s, kept[0].JSN, uint64(run))
		if err != nil {
			return err
		}
		for i := range journals {
			if leaf := kept[i]; leaf.Hash() != journals[i].Leaf.Hash() {
				why := "its leaf in the state is not the one in the list"
				return r.offenceAt(r.log.Head(), verify.OffenceRecords, &leaf.JSN, why)
			}
		}
		kept = kept[len(journals):]
		r.report.Kept += uint64(len(journals))
	}
	return nil
}

// checkChanges checks that the keys of all signers that the audit has met came and went by changes
// of members.
func (r *ledgerReplay) checkChanges(s *sweptLedger) error {
	var bounds []uint64
	for _, member := range r.members {
		for _, key := range member.Keys {
			bounds = append(bounds, key.From)
			if key.Until != nil {
				bounds = append(bounds, *key.Until)
			}
		}
	}
	slices.Sort(bounds)
	for _, bound := range bounds {
		// The first keys came by the founding. Records of signers may be newer than the list.
		if jsn := bound - 1; bound > 1 && bound <= s.state.Size && !r.changes[jsn] {
			why := "no change of members, and a key came or went by it"
			return r.offenceAt(s.version, verify.OffenceRecords, &jsn, why)
		}
	}
	return nil
}

// checkPage checks neighbouring journals, up to a number of them, which are there: each is in the
// list, as its author signed it by the key in force. It gives at least one.
func (r *ledgerReplay) checkPage(
	ctx context.Context, s *sweptLedger, from, most uint64) ([]LedgerJournal, error,
) {
	read := JournalRead{Payload: r.Payloads, Request: true}
	limit := uint32(min(most, auditJournals))
	page, err := r.JournalPage(ctx, r.Ledger, from, limit, read, s.mark())
	for limit > 1 && TooLarge(err) {
		limit /= 2
		page, err = r.JournalPage(ctx, r.Ledger, from, limit, read, s.mark())
	}
	if errors.Is(err, PurgedJournal) || err == nil && len(page.Journals) < int(limit) {
		return nil, r.notThere(ctx, s, from, page)
	}
	if err != nil {
		return nil, r.found(from, err)
	}
	for i := range page.Journals {
		journal := &page.Journals[i]
		if err := r.checkSigner(ctx, s, journal.Leaf); err != nil {
			return nil, err
		}
		if journal.Leaf.Kind == verify.JournalMembers {
			r.changes[journal.Leaf.JSN] = true
		}
		if journal.Envelope != nil {
			r.report.Payloads++
		}
	}
	return page.Journals, nil
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
