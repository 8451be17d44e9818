package coppice_test

import (
	"context"
	"errors"
	"fmt"
	"log"
	"time"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

// A read at a time reads the version that was head at that time. The choice of the version is
// proven.
func ExampleClient_VersionAt() {
	endpoint, vkey := dev()
	ctx := context.Background()
	key, err := verify.ParseVKey(vkey)
	if err != nil {
		log.Fatal(err)
	}
	client, err := coppice.New(coppice.Options{Endpoints: []string{endpoint}, Trust: &key})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()

	rate := []byte("rate")
	committed, err := client.Commit(ctx, new(coppice.Batch).Put(rate, []byte("4.25")))
	if err != nil {
		log.Fatal(err)
	}
	header, err := verify.DecodeHeader(committed.Header)
	if err != nil {
		log.Fatal(err)
	}
	then := time.UnixMilli(int64(header.TimestampMS))
	// The ledger goes on.
	for time.Now().Before(then.Add(2 * time.Millisecond)) {
		time.Sleep(time.Millisecond)
	}
	if _, err := client.Commit(ctx, new(coppice.Batch).Put(rate, []byte("4.00"))); err != nil {
		log.Fatal(err)
	}

	got, err := client.Get(ctx, rate, &coppice.Read{AtTime: then})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("the rate was %s\n", got.Record.Value)
	// Others can verify two proofs: one of the version, and one of the record in it.
	found, err := client.VersionAt(ctx, then, false)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(found.Stamp == got.ReadAt, found.Final, len(found.Proof) > 0, len(got.Proof) > 0)
	// Nobody knows yet which version is head tomorrow.
	_, err = client.Get(ctx, rate, &coppice.Read{AtTime: time.Now().Add(24 * time.Hour)})
	fmt.Println(errors.Is(err, coppice.NotYet))
	// Output:
	// the rate was 4.25
	// true true true true
	// true
}

// An interval shows which time stamps of independent authorities lie around an entry of the log. A
// ledger without authorities has none.
func ExampleClient_EntryInterval() {
	endpoint, vkey := dev()
	ctx := context.Background()
	key, err := verify.ParseVKey(vkey)
	if err != nil {
		log.Fatal(err)
	}
	client, err := coppice.New(coppice.Options{Endpoints: []string{endpoint}, Trust: &key})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }()

	committed, err := client.Commit(ctx, new(coppice.Batch).Put([]byte("deed"), []byte("signed")))
	if err != nil {
		log.Fatal(err)
	}
	header, err := verify.DecodeHeader(committed.Header)
	if err != nil {
		log.Fatal(err)
	}
	interval, err := client.EntryInterval(ctx, header.Sequence, nil)
	if err != nil {
		log.Fatal(err)
	}
	// The interval belongs to the commit if it is for the bytes of the commit's header.
	fmt.Println(interval.Entry == verify.EntryHash(committed.Header))
	fmt.Println(len(interval.Below), "anchors below,", len(interval.Above), "above")
	// Output:
	// true
	// 0 anchors below, 0 above
}

// Content that owners have ordered to be occulted goes from every disk. A ledger says when.
func ExampleClient_WaitForErasure() {
	client := members()
	defer func() { _ = client.Close() }()
	ctx := context.Background()
	private, public := newHand()

	// This ledger has one member, which orders alone.
	founding := &verify.Founding{Name: "example-erasure", Members: []verify.Grant{
		{Name: "clinic", Roles: verify.RoleOwner | verify.RoleWriter | verify.RoleReader, Key: public},
	}}
	founding.Policy.Occult = 2
	founded, err := client.FoundLedger(ctx, founding, "clinic", private)
	if err != nil {
		log.Fatal(err)
	}
	author, err := client.Author(ctx, founded.Ledger, "clinic", 0, private)
	if err != nil {
		log.Fatal(err)
	}
	appended, err := author.Append(ctx, new(coppice.Draft).Add([]byte("a patient's name")))
	if err != nil {
		log.Fatal(err)
	}
	page, err := client.JournalPage(ctx, founded.Ledger, appended.FirstJSN, 1, coppice.JournalRead{}, nil)
	if err != nil {
		log.Fatal(err)
	}
	leaf := page.Journals[0].Leaf
	order := &verify.Order{Until: 1000, Targets: []verify.Target{{JSN: leaf.JSN, Leaf: leaf.Hash()}}}
	ordered, err := author.Append(ctx, new(coppice.Draft).Occult(order))
	if err != nil {
		log.Fatal(err)
	}
	erasure, err := client.WaitForErasure(ctx, founded.Ledger, ordered.FirstJSN, time.Minute)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println("gone from all disks:", erasure.Done)
	// Output: gone from all disks: true
}
