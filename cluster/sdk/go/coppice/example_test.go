package coppice_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

// dev is a `coppice dev` of its own for an example, and the content of its ledger.vkey.
func dev() (endpoint, vkey string) { return coppice.LedgerOfExamples() }

func Example() {
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

	alice := []byte("account/alice")
	batch := new(coppice.Batch).Put(alice, []byte("100")).IfAbsent(alice)
	if _, err := client.Commit(ctx, batch); err != nil {
		log.Fatal(err)
	}
	// The condition does not hold any more: nothing is written.
	_, err = client.Commit(ctx, batch)
	fmt.Println(errors.Is(err, coppice.PreconditionFailed))

	got, err := client.Get(ctx, alice, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s = %s\n", got.Record.Key, got.Record.Value)
	// The proof is for others, too.
	proof, err := verify.Verify(got.Proof, key, nil)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(proof.Answers(verify.Question{Subject: verify.AboutKeys{alice}}))
	// Output:
	// true
	// account/alice = 100
	// <nil>
}

// A batch of a session is applied once, however often it is sent.
func ExampleSession() {
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

	session, err := client.OpenSession(ctx, coppice.NewSessionID())
	if err != nil {
		log.Fatal(err)
	}
	batch := new(coppice.Batch).Put([]byte("order/1"), []byte("paid"))
	for {
		_, err = session.Commit(ctx, batch)
		if err == nil || !coppice.OutcomeUnknown(err) {
			break
		}
		// The answer was lost. The number is still the next one: the same batch is sent again.
	}
	fmt.Println(err, session.Highest())
	again, err := session.CommitAs(ctx, 1, batch)
	fmt.Println(err, again.Replayed)
	// Output:
	// <nil> 1
	// <nil> true
}

// A range is proven to be complete, page by page, before its records are given.
func ExampleClient_Range() {
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

	batch := new(coppice.Batch).Put([]byte("fruit/apple"), []byte("3")).Put([]byte("fruit/pear"), []byte("5"))
	if _, err := client.Commit(ctx, batch); err != nil {
		log.Fatal(err)
	}
	for record, err := range client.Range(ctx, []byte("fruit/"), []byte("fruit0"), nil) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s = %s\n", record.Key, record.Value)
	}
	// Output:
	// fruit/apple = 3
	// fruit/pear = 5
}

// The memory of a client keeps time from going back between two runs of a program.
func ExampleClient_Memory() {
	endpoint, vkey := dev()
	ctx := context.Background()
	key, err := verify.ParseVKey(vkey)
	if err != nil {
		log.Fatal(err)
	}
	first, err := coppice.New(coppice.Options{Endpoints: []string{endpoint}, Trust: &key})
	if err != nil {
		log.Fatal(err)
	}
	if _, err := first.Get(ctx, []byte("k"), nil); err != nil {
		log.Fatal(err)
	}
	memory := first.Memory()
	_ = first.Close()

	second, err := coppice.New(coppice.Options{Endpoints: []string{endpoint}, Trust: &key, Memory: &memory})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	_, err = second.Get(ctx, []byte("k"), nil)
	var fork *coppice.ForkError
	fmt.Println(err, errors.As(err, &fork))
	// Output: <nil> false
}
