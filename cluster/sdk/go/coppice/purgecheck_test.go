package coppice

import (
	"errors"
	"testing"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

func TestAPurgeIsCheckedByThoseThatReadTheRest(t *testing.T) {
	p := foundPurged(t, "purge-check", nil)
	ctx, client := limited(t), p.client
	must(p.mill.Append(ctx, numbered(1, 3)))(t)
	if err := second(client.CheckPurge(ctx, p.ledger)); !errors.Is(err, NotFound) {
		t.Error(err)
	}
	draft := must(client.PreparePurge(ctx, p.ledger, 4, 9))(t)
	purge := p.submit(t, &draft.OrderFile, "mill", "court")
	// An author of later journals need not have signed.
	join := verify.MemberChange{Kind: verify.ChangeJoin, Grant: granted("farm", verify.RoleWriter)}
	must(p.bank.Append(ctx, new(Draft).ChangeMembers(join)))(t)
	farm := must(client.Author(ctx, p.ledger, "farm", 0, handOf("farm")))(t)
	must(farm.Append(ctx, numbered(1, 1)))(t)
	for _, step := range []func(){func() {}, func() { p.sweep(t) }} {
		step()
		given := must(client.CheckPurge(ctx, p.ledger))(t)
		if given.Leaf.JSN != purge || len(given.Signers) != 3 || given.Order.Purge.Authors != 2 {
			t.Errorf("%+v", given)
		}
	}
	bank, mill := verify.MemberIDOf("bank"), verify.MemberIDOf("mill")
	farmID, court := verify.MemberIDOf("farm"), verify.MemberIDOf("court")
	given := must(client.CheckPurge(ctx, p.ledger))(t)
	for what, affected := range map[string][]verify.MemberID{
		"a member more":               {bank, mill, court},
		"a member less":               {bank},
		"a member that did not sign":  {bank, farmID},
		"an author that did not sign": {farmID, mill},
	} {
		if err := signedByAll(given, affected); err == nil {
			t.Errorf("%s: the purge is taken for signed", what)
		}
	}
	record := p.status(t).Purge
	for what, change := range map[string]func(*verify.Purge){
		"another number":  func(r *verify.Purge) { r.Before++ },
		"another version": func(r *verify.Purge) { r.Stamp.Version++ },
		"another effect":  func(r *verify.Purge) { r.Closes = true },
	} {
		other := record
		if change(&other); !orders(given, &record) || orders(given, &other) {
			t.Errorf("%s: the order of another purge is taken", what)
		}
	}
	absent := *given.Order
	absent.Approvals = nil
	absent.Purge = &verify.PurgeOrder{Authors: 2, Absent: []verify.Absent{{Member: mill}}}
	without := &GivenOrder{Leaf: given.Leaf, Order: &absent}
	if err := signedByAll(without, []verify.MemberID{bank, mill}); err != nil {
		t.Error(err)
	}
	p.checkLies(t, purge)
}

// checkLies checks that lies about a purge are refused.
func (p *purged) checkLies(t *testing.T, purge uint64) {
	t.Helper()
	ctx, client := limited(t), p.client
	for what, lie := range map[string]func(*v1.GetLedgerRecordsResponse){
		"a record left out": func(a *v1.GetLedgerRecordsResponse) { a.Records[0].Value = nil },
		"no proof":          func(a *v1.GetLedgerRecordsResponse) { a.Proof = nil },
	} {
		p.onRecords = lie
		got, err := client.CheckPurge(ctx, p.ledger)
		isLie(t, what, got, err)
	}
	p.onRecords = nil
	other := must(client.LedgerOrder(ctx, p.ledger, purge))(t).Leaf.JSN + 1
	p.onJournals = func(a *v1.GetJournalsResponse) {
		become(a, must(p.relay.ledger.GetJournals(ctx, &v1.GetJournalsRequest{
			Ledger: identified(p.ledger), FromJsn: other, Limit: 1, WantPayload: true, WantRequest: true,
			Read: at(nil),
		}))(t))
	}
	got, err := client.CheckPurge(ctx, p.ledger)
	isLie(t, "another journal for the order", got, err)
	calls := 0
	p.onJournals = func(a *v1.GetJournalsResponse) {
		if calls++; calls == 2 {
			become(a, must(p.relay.ledger.GetJournals(ctx, &v1.GetJournalsRequest{
				Ledger: identified(p.ledger), FromJsn: purge, Limit: 1, Read: at(nil),
			}))(t))
		}
	}
	unseen, err := client.CheckPurge(ctx, p.ledger)
	isLie(t, "no word of the list that signers saw", unseen, err)
	reader := connect(t, Options{Endpoints: []string{p.endpoint}, Unverified: true})
	got, err = reader.CheckPurge(ctx, p.ledger)
	isLie(t, "a check without a key to trust", got, err)
}
