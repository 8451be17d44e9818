package coppice

import (
	"crypto/ed25519"
	"testing"

	"google.golang.org/grpc/credentials/insecure"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// orderOf is an order of the bank to occult a journal, which the court approves.
func orderOf(t testing.TB, seen *seenLog, ledger LedgerID, target verify.Target) *verify.Order {
	t.Helper()
	order := &verify.Order{Until: 1000, Targets: []verify.Target{target}}
	approval := verify.Approval{Member: verify.MemberIDOf("court")}
	copy(approval.Signature[:], ed25519.Sign(handOf("court"), order.Message(seen.cluster, ledger)))
	order.Approvals = append(order.Approvals, approval)
	return order
}

func TestContentIsMissingOnlyIfAnOrderHasOccultedIt(t *testing.T) {
	l := membersLedger(t)
	ctx, r := limited(t), startRelay(t, l, insecure.NewCredentials())
	client := r.client(t, l)
	founding := foundingOf("occult")
	founding.Policy.Occult = 1
	founding.Members = append(founding.Members, granted("court", verify.RoleRegulator|verify.RoleReader))
	ledger := must(client.FoundLedger(ctx, founding, "bank", handOf("bank")))(t).Ledger
	bank := must(client.Author(ctx, ledger, "bank", 0, handOf("bank")))(t)
	lot := []byte("lot")
	must(bank.Append(ctx, new(Draft).Add([]byte("secret"), lot).Add([]byte("open"), lot)))(t)
	read := func() (*JournalPage, error) { return client.JournalPage(ctx, ledger, 1, 2, wholeJournals, nil) }
	leaf := must(read())(t).Journals[0].Leaf
	order := orderOf(t, bank.seen, ledger, verify.Target{JSN: leaf.JSN, Leaf: leaf.Hash()})
	given := must(bank.Append(ctx, new(Draft).Occult(order)))(t)

	check := func(journals []LedgerJournal) {
		t.Helper()
		for _, journal := range journals {
			occulted := journal.Leaf.JSN == leaf.JSN
			if occulted != (journal.Envelope == nil) || occulted != (journal.OccultedBy != nil) ||
				occulted && *journal.OccultedBy != given.FirstJSN {
				t.Errorf("journal %d: %+v", journal.Leaf.JSN, journal)
			}
		}
	}
	check(must(read())(t).Journals)
	lineage := must(client.Lineage(ctx, ledger, lot, 0, wholeJournals))(t)
	if check(lineage.Journals); len(lineage.Journals) != 2 {
		t.Errorf("%+v", lineage)
	}
	shown := must(client.LedgerOrder(ctx, ledger, given.FirstJSN))(t)
	if len(shown.Signers) != 2 || shown.Signers[0].Name != "bank" || shown.Signers[1].Name != "court" ||
		!shown.Order.Names(order.Targets[0]) {
		t.Errorf("%+v", shown)
	}
	for name, signed := range map[string]bool{"court": true, "bank": false} {
		if shown.Order.SignedBy(granted(name, 0).Key, shown.Order.Approvals[0], bank.seen.cluster, ledger) != signed {
			t.Errorf("it is not so that %s has signed: %t", name, signed)
		}
	}
	for what, member := range map[string]string{"another signature": "court", "nobody of that name": "shop"} {
		never := func(verify.PublicKey) bool { return false }
		err := client.addSigner(ctx, shown, ledger, verify.MemberIDOf(member), never)
		isLie(t, what, member, err)
	}
	late, twice := *shown.Order, *shown.Order
	late.Until = shown.Leaf.JSN - 1
	twice.Approvals = []verify.Approval{{Member: shown.Leaf.Member}}
	for what, order := range map[string]*verify.Order{"expired": &late, "approved by its author": &twice} {
		if checkAuthor(shown.Leaf, shown.Order) != nil || checkAuthor(shown.Leaf, order) == nil {
			t.Errorf("an order that is %s", what)
		}
	}
	for rule, least := range []int{1 << 30, 2, 1, 1 << 30} {
		if enough(uint8(rule), least-1) || least < 9 && !enough(uint8(rule), least) {
			t.Errorf("rule %d needs %d members", rule, least)
		}
	}
	// The words of an order in a journal of data give no order.
	words := must(bank.Append(ctx, new(Draft).Add(must(shown.Order.Encode())(t))))(t)
	said, err := client.LedgerOrder(ctx, ledger, words.FirstJSN)
	isLie(t, "a journal of data", said, err)
	order.Approvals = nil
	if err := second(bank.Append(ctx, new(Draft).Occult(order))); err == nil {
		t.Error("an order without approval is taken")
	}

	bare := func(jsn uint64) *v1.GetJournalsResponse {
		return must(r.ledger.GetJournals(ctx, &v1.GetJournalsRequest{
			Ledger: identified(ledger), FromJsn: jsn, Limit: 1, WantRequest: true, Read: at(nil),
		}))(t)
	}
	by := given.FirstJSN
	for what, lie := range map[string]func(*v1.GetJournalsResponse){
		"no proof of the mark": func(a *v1.GetJournalsResponse) { a.MarksProof = nil },
		"another order":        func(a *v1.GetJournalsResponse) { other := by - 1; a.Journals[0].OccultedBy = &other },
		"a journal that no order names": func(a *v1.GetJournalsResponse) {
			marks := a.MarksProof
			become(a, bare(2))
			a.Journals[0].OccultedBy, a.MarksProof = &by, marks
		},
		"content that is withheld": func(a *v1.GetJournalsResponse) { become(a, bare(2)) },
		"a mark that is left out":  func(a *v1.GetJournalsResponse) { a.Journals[0].OccultedBy = nil },
		"the proof of a journal for that of a mark": func(a *v1.GetJournalsResponse) {
			a.MarksProof = a.Proof
		},
	} {
		r.onJournals = lie
		from := uint64(1)
		if what == "a journal that no order names" || what == "content that is withheld" {
			from = 2
		}
		got, err := client.JournalPage(ctx, ledger, from, 1, wholeJournals, nil)
		isLie(t, what, got, err)
	}
	r.onJournals = nil
	// A mark alone is not enough: the order has to name the journal.
	journals := must(read())(t).Journals[:1]
	journals[0].Leaf.Number++
	marks := must(r.ledger.GetJournals(ctx, &v1.GetJournalsRequest{
		Ledger: identified(ledger), FromJsn: 1, Limit: 1, WantPayload: true, Read: at(nil),
	}))(t).MarksProof
	if err := client.checkOcculted(ctx, client.known(), ledger, journals, marks); err == nil {
		t.Error("an order occults a journal with another leaf")
	}
	notAnOrder, err := client.LedgerOrder(ctx, ledger, 2)
	isLie(t, "a journal that is no order", notAnOrder, err)
}
