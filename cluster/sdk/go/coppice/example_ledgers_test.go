package coppice_test

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
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
