package coppice

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"testing"

	"coppice.dev/sdk/verify"
)

// begun is an audit that has found where to begin, behind a sweep.
func (a *audited) begun(t *testing.T) (*ledgerReplay, *sweptLedger) {
	t.Helper()
	ctx := limited(t)
	log := must(a.client.readLog(ctx))(t)
	r := &ledgerReplay{Client: a.client, LedgerAudit: LedgerAudit{Ledger: a.ledger}, log: log}
	return r, must(r.begin(ctx))(t)
}

// What a ledger that breaks the rules would prove is put in place of what an honest one proves.
func TestWhatAPurgeLeavesIsJudged(t *testing.T) {
	a := foundAudited(t, "audit-kept", nil)
	a.sweepAll(t, 47, "mill", "farm")
	ctx := limited(t)
	for what, c := range map[string]struct {
		kind   verify.OffenceKind
		change func(*ledgerReplay, *sweptLedger)
	}{
		"an honest ledger":       {"", func(*ledgerReplay, *sweptLedger) {}},
		"a purge that took less": {verify.OffencePurge, func(_ *ledgerReplay, s *sweptLedger) { s.state.Purged-- }},
		"a purge that took more": {verify.OffencePurge, func(_ *ledgerReplay, s *sweptLedger) { s.state.Purged++ }},
		"a purge that took less, whose sweep is pruned": {verify.OffencePurge, func(_ *ledgerReplay, s *sweptLedger) {
			s.state.Purged--
			s.purge.Swept--
		}},
		"a sweep to another number": {verify.OffencePurge, func(_ *ledgerReplay, s *sweptLedger) {
			s.state.Purged--
			s.purge.State = verify.PurgeSweeping
		}},
		"another order": {verify.OffencePurge, func(_ *ledgerReplay, s *sweptLedger) { s.purge.Order = a.order }},
		"an order of another version": {verify.OffencePurge, func(_ *ledgerReplay, s *sweptLedger) {
			s.purge.Stamp.Version++
		}},
		"a version without a sweep": {verify.OffencePurge, func(_ *ledgerReplay, s *sweptLedger) {
			s.version--
			s.purge.Swept = s.version
		}},
		"another list": {verify.OffenceHead, func(_ *ledgerReplay, s *sweptLedger) { s.state.Root[0] ^= 1 }},
	} {
		r, s := a.begun(t)
		c.change(r, s)
		err := r.checkSwept(ctx, s)
		if c.kind == "" {
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			continue
		}
		var offence *verify.LedgerOffence
		if !errors.As(err, &offence) || offence.Kind != c.kind || !offence.InLog() {
			t.Errorf("%s: %v", what, err)
		}
	}
	a.checkSigners(t)
	a.checkLeaves(t)
}

func isOffence(t *testing.T, what string, err error, kind verify.OffenceKind, jsn uint64) {
	t.Helper()
	var offence *verify.LedgerOffence
	if !errors.As(err, &offence) || offence.Kind != kind || offence.JSN == nil || *offence.JSN != jsn {
		t.Errorf("%s: %v", what, err)
	}
}

// checkLeaves lets an audit judge which journals a sweep has left.
func (a *audited) checkLeaves(t *testing.T) {
	t.Helper()
	ctx := limited(t)
	r, s := a.begun(t)
	var keys [][]byte
	for jsn := range uint64(49) {
		keys = append(keys, a.ledger.LeafKey(jsn), a.ledger.RetainedKey(jsn))
	}
	honest := must(a.client.LedgerRecords(ctx, a.ledger, keys))(t)
	leaf := func(jsn uint64) string { return string(a.ledger.LeafKey(jsn)) }
	retained := func(jsn uint64) string { return string(a.ledger.RetainedKey(jsn)) }
	// The number of the order lies behind the format.
	another := bytes.Clone(honest[retained(2)])
	another[1] = byte(a.order)
	for _, c := range []struct {
		key    string
		record []byte
		kind   verify.OffenceKind
		jsn    uint64
	}{
		{leaf(0), nil, verify.OffenceKept, 0},
		{leaf(2), nil, verify.OffenceKept, 2},
		{retained(2), nil, verify.OffenceRecords, 2},
		{leaf(3), honest[leaf(4)], verify.OffenceRecords, 3},
		{leaf(4), []byte{1}, verify.OffenceRecords, 4},
		{retained(2), []byte{1}, verify.OffenceRecords, 2},
		{retained(4), honest[retained(2)], verify.OffenceKept, 4},
		{retained(2), another, verify.OffenceKept, 2},
	} {
		records := maps.Clone(honest)
		if records[c.key] = c.record; c.record == nil {
			delete(records, c.key)
		}
		kept, err := r.keptOf(ctx, records, 0, 47)
		isOffence(t, fmt.Sprintf("%d journals are kept", len(kept)), err, c.kind, c.jsn)
	}
	kept := must(r.keptOf(ctx, honest, 0, 47))(t)
	if len(kept) != 5 || kept[4].JSN != 5 {
		t.Fatalf("%+v", kept)
	}
	// The state has another leaf than the list: one that looks like an order.
	if err := r.checkRun(ctx, s, kept); err != nil || r.report.Kept != 5 {
		t.Errorf("%v, %d are kept", err, r.report.Kept)
	}
	kept[2].Kind = verify.JournalOrder
	isOffence(t, "another leaf", r.checkRun(ctx, s, kept), verify.OffenceRecords, 2)
}

// checkSigners lets an audit judge signers that are none.
func (a *audited) checkSigners(t *testing.T) {
	t.Helper()
	ctx := limited(t)
	r, s := a.begun(t)
	honest := must(a.client.JournalPage(ctx, a.ledger, 1, 1, JournalRead{}, nil))(t).Journals[0].Leaf
	if err := r.checkSigner(ctx, s, honest); err != nil {
		t.Fatal(err)
	}
	scale, bank := verify.MemberIDOf("scale"), verify.MemberIDOf("bank")
	for what, change := range map[string]func(*verify.Leaf){
		"a member that is none":       func(l *verify.Leaf) { l.Member[0] ^= 1 },
		"an agent as a member":        func(l *verify.Leaf) { l.Member = scale },
		"a member as an agent":        func(l *verify.Leaf) { l.Agent = &bank },
		"the agent of another member": func(l *verify.Leaf) { l.Member, l.Agent = bank, &scale },
		"an agent before it was made": func(l *verify.Leaf) { l.Agent, l.Key = &scale, granted("scale", 0).Key },
		"the key of somebody else":    func(l *verify.Leaf) { l.Key = granted("bank", 0).Key },
	} {
		leaf := *honest
		change(&leaf)
		if err := r.checkSigner(ctx, s, &leaf); !errors.Is(err, verify.RefusedSignature) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if err := r.checkSwept(ctx, s); err != nil {
		t.Fatal(err)
	}
	// A key comes by a change of members. The list of the audit does not have later ones.
	r.members[bank] = &verify.Member{Name: "bank", Keys: []verify.MemberKey{{From: s.state.Size + 1}}}
	if err := r.checkChanges(s); err != nil {
		t.Error(err)
	}
	r.members[bank] = &verify.Member{Name: "bank", Keys: []verify.MemberKey{{From: 3}}}
	isOffence(t, "a key of no change", r.checkChanges(s), verify.OffenceRecords, 2)
	// The order that a record names does not retain the journal.
	given := must(a.client.LedgerOrder(ctx, a.ledger, a.status(t).Order+1))(t)
	mill := verify.MemberIDOf("mill")
	if retains(given, 1, bank) || retains(given, 3, mill) || !retains(given, 2, mill) {
		t.Errorf("%+v", given.Order.Retain)
	}
}
