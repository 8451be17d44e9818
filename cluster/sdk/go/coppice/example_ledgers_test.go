package coppice_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

// members is a client of a cluster that keeps ledgers of members.
func members() *coppice.Client {
	endpoint, vkey := coppice.MembersOfExamples()
	key, err := verify.ParseVKey(vkey)
	if err != nil {
		log.Fatal(err)
	}
	client, err := coppice.New(coppice.Options{Endpoints: []string{endpoint}, Trust: &key})
	if err != nil {
		log.Fatal(err)
	}
	return client
}

// newHand makes the key of a member.
func newHand() (ed25519.PrivateKey, verify.PublicKey) {
	public, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		log.Fatal(err)
	}
	return private, verify.PublicKey(public)
}

// A bank founds a ledger, and its mill appends to it. Each signs by its own key.
func ExampleAuthor() {
	client := members()
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	bankKey, bank := newHand()
	millKey, mill := newHand()

	founding := &verify.Founding{Name: "example-grain", Members: []verify.Grant{
		{Name: "bank", Roles: verify.RoleOwner | verify.RoleWriter, Key: bank},
		{Name: "mill", Roles: verify.RoleWriter | verify.RoleReader, Key: mill},
	}}
	founded, err := client.FoundLedger(ctx, founding, "bank", bankKey)
	if err != nil {
		log.Fatal(err)
	}
	author, err := client.Author(ctx, founded.Ledger, "mill", 0, millKey)
	if err != nil {
		log.Fatal(err)
	}
	lot := []byte("lot-7")
	invoice := new(coppice.Draft).Add([]byte("invoice 17"), lot).IfCount(lot, 0)
	appended, err := author.Append(ctx, invoice)
	if coppice.OutcomeUnknown(err) {
		// The same draft is the same request: it is applied once.
		appended, err = author.Append(ctx, invoice)
	}
	if err != nil {
		log.Fatal(err)
	}
	// The receipt is a proof file, for others too.
	fmt.Println("journal", appended.FirstJSN, len(appended.Receipt) > 0)

	_, err = author.Append(ctx, new(coppice.Draft).Add([]byte("invoice 17"), lot).IfCount(lot, 0))
	fmt.Println(errors.Is(err, coppice.ClueChanged))
	// Output:
	// journal 1 true
	// true
}

// A lineage shows all journals with a clue, newest first. None is left out.
func ExampleClient_Lineage() {
	client := members()
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	key, public := newHand()
	founding := &verify.Founding{Name: "example-lots", Members: []verify.Grant{
		{Name: "mill", Roles: verify.RoleOwner | verify.RoleWriter, Key: public},
	}}
	founded, err := client.FoundLedger(ctx, founding, "mill", key)
	if err != nil {
		log.Fatal(err)
	}
	author, err := client.Author(ctx, founded.Ledger, "mill", 0, key)
	if err != nil {
		log.Fatal(err)
	}
	for _, payload := range []string{"milled", "sold"} {
		if _, err := author.Append(ctx, new(coppice.Draft).Add([]byte(payload), []byte("lot-7"))); err != nil {
			log.Fatal(err)
		}
	}
	read := coppice.JournalRead{Payload: true, Request: true}
	lineage, err := client.Lineage(ctx, founded.Ledger, []byte("lot-7"), 0, read)
	if err != nil {
		log.Fatal(err)
	}
	for _, journal := range lineage.Journals {
		fmt.Printf("%d %s\n", journal.Leaf.JSN, journal.Envelope.Payload)
	}
	for journal, err := range client.LedgerJournals(ctx, founded.Ledger, 0, coppice.JournalRead{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(journal.Leaf.JSN, journal.Leaf.Kind == verify.JournalFounding)
	}
	// Output:
	// 2 sold
	// 1 milled
	// 0 true
	// 1 false
	// 2 false
}

// foundGrain founds a ledger of a mill, which appends two journals.
func foundGrain(
	ctx context.Context, client *coppice.Client, name string, key ed25519.PrivateKey,
) (coppice.LedgerID, *coppice.Author) {
	founding := &verify.Founding{Name: name, Members: []verify.Grant{{
		Name: "mill", Roles: verify.RoleOwner | verify.RoleWriter | verify.RoleReader,
		Key: verify.PublicKey(key.Public().(ed25519.PublicKey)),
	}}}
	founding.Policy.RetainedMax = 100
	founded, err := client.FoundLedger(ctx, founding, "mill", key)
	if err != nil {
		log.Fatal(err)
	}
	author, err := client.Author(ctx, founded.Ledger, "mill", 0, key)
	if err != nil {
		log.Fatal(err)
	}
	for _, payload := range []string{"milled", "sold"} {
		if _, err := author.Append(ctx, new(coppice.Draft).Add([]byte(payload))); err != nil {
			log.Fatal(err)
		}
	}
	return founded.Ledger, author
}

// A trusted anchor is kept from one run to the next. Below it, a journal is proven by 8 hashes.
func ExampleClient_TrustLedger() {
	client := members()
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	key, _ := newHand()
	ledger, author := foundGrain(ctx, client, "example-anchor", key)
	anchor, err := client.TrustLedger(ctx, ledger)
	if err != nil {
		log.Fatal(err)
	}
	kept, err := json.Marshal(anchor)
	if err != nil {
		log.Fatal(err)
	}

	// In another run: the ledger has grown, and nothing else.
	if _, err := author.Append(ctx, new(coppice.Draft).Add([]byte("paid"))); err != nil {
		log.Fatal(err)
	}
	anchor = new(verify.TrustedAnchor)
	if err := json.Unmarshal(kept, anchor); err != nil {
		log.Fatal(err)
	}
	if anchor, err = client.AdvanceAnchor(ctx, anchor); err != nil {
		log.Fatal(err)
	}
	journals, err := client.JournalsBelow(ctx, anchor, 1, 100, true)
	if err != nil {
		log.Fatal(err)
	}
	for _, journal := range journals {
		fmt.Printf("%d %s\n", journal.Leaf.JSN, journal.Envelope.Payload)
	}
	// Output:
	// 1 milled
	// 2 sold
	// 3 paid
}

// A claim about a journal is verified by a proof, or by a coordinator, whose word is believed.
func ExampleClient_VerifyJournal() {
	client := members()
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	key, _ := newHand()
	ledger, _ := foundGrain(ctx, client, "example-verdict", key)

	for _, payload := range []string{"sold", "lost"} {
		claim := coppice.JournalClaim{Ledger: ledger, JSN: 2, Payload: []byte(payload)}
		proven, err := client.VerifyJournal(ctx, claim)
		if err != nil {
			log.Fatal(err)
		}
		said, err := client.CoordinatorVerdict(ctx, claim)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s: by %s %t, by %s %t, failed at %q\n",
			payload, proven.By, proven.Valid(), said.By, said.Valid(), said.Failed)
	}
	// Output:
	// sold: by proof true, by coordinator true, failed at ""
	// lost: by proof false, by coordinator false, failed at "payload"
}

// An audit judges all requests of a ledger again, and names the first that is wrong.
func ExampleClient_AuditLedger() {
	client := members()
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	key, _ := newHand()
	ledger, _ := foundGrain(ctx, client, "example-audit", key)

	report, err := client.AuditLedger(ctx, coppice.LedgerAudit{Ledger: ledger, Payloads: true})
	if err != nil {
		// Nothing is known: the cluster did not answer, or did not prove its log.
		log.Fatal(err)
	}
	if offence := report.Offence; offence != nil {
		// InLog tells what the signed log shows from what one coordinator has said.
		fmt.Println("not sound:", offence.Kind, offence.JSN, offence.InLog(), offence.Err)
	}
	fmt.Println(report.Sound(), report.Journals, "journals,", report.Payloads, "payloads")
	// Output:
	// true 3 journals, 3 payloads
}

// A purge is ordered by all whose journals go. One of them keeps a journal, and the rest is swept.
func ExampleClient_PreparePurge() {
	client := members()
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	key, _ := newHand()
	ledger, mill := foundGrain(ctx, client, "example-purge", key)

	draft, err := client.PreparePurge(ctx, ledger, 3, 1000)
	if err != nil {
		log.Fatal(err)
	}
	signers, _ := draft.Signers()
	fmt.Println("must be signed by", signers)
	// Others sign the file by OrderFile.Approve, or `coppice order sign`. The author signs its
	// request.
	file, err := draft.Encode()
	if err != nil {
		log.Fatal(err)
	}
	signed, err := coppice.DecodeOrderFile(file)
	if err != nil {
		log.Fatal(err)
	}
	order, err := mill.OrderDraft(signed)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := mill.Append(ctx, order); err != nil {
		log.Fatal(err)
	}

	retain, err := client.PrepareRetain(ctx, ledger, 1)
	if err != nil {
		log.Fatal(err)
	}
	if _, err := mill.Append(ctx, retain); err != nil {
		log.Fatal(err)
	}
	for below, err := range mill.Sweep(ctx) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println("swept below", below)
	}
	status, err := client.PurgeStatus(ctx, ledger)
	if err != nil {
		log.Fatal(err)
	}
	_, err = client.JournalPage(ctx, ledger, 2, 1, coppice.JournalRead{}, nil)
	fmt.Println(status.State, errors.Is(err, coppice.PurgedJournal))
	// Output:
	// must be signed by [mill]
	// swept below 3
	// swept true
}
