package coppice

import (
	"errors"
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
	// A key came by a journal that is no change of members.
	r.members[bank] = &verify.Member{Name: "bank", Keys: []verify.MemberKey{{From: 3}}}
	var offence *verify.LedgerOffence
	err := r.checkChanges(ctx, s)
	if !errors.As(err, &offence) || offence.JSN == nil || *offence.JSN != 2 {
		t.Errorf("%v", err)
	}
	// The order that a record names does not retain the journal.
	given := must(a.client.LedgerOrder(ctx, a.ledger, a.status(t).Order+1))(t)
	mill := verify.MemberIDOf("mill")
	if retains(given, 1, bank) || retains(given, 3, mill) || !retains(given, 2, mill) {
		t.Errorf("%+v", given.Order.Retain)
	}
}
