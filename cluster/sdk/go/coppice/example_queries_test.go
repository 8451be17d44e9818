package coppice_test

import (
	"context"
	"errors"
	"fmt"
	"log"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

// A batch reads keys at versions of their own, and walks through all states of a key. Each part of
// the reply is verified before it is given.
func ExampleClient_QueryBatch() {
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

	stock := []byte("stock/apples")
	var versions []uint64
	for _, value := range []string{"10", "7", "3"} {
		committed, err := client.Commit(ctx, new(coppice.Batch).Put(stock, []byte(value)))
		if err != nil {
			log.Fatal(err)
		}
		versions = append(versions, committed.Stamp.Version)
	}

	queries := []coppice.Query{
		{Keys: [][]byte{stock}, Since: coppice.AtVersion(versions[0])},
		{Keys: [][]byte{stock}, At: coppice.AtVersion(versions[1])},
		{Keys: [][]byte{stock}, At: coppice.AtVersion(versions[2] + 1000)},
	}
	walk := ""
	for part, err := range client.QueryBatch(ctx, queries) {
		if err != nil {
			log.Fatal(err)
		}
		for _, answer := range part.Answers {
			switch {
			case answer.Err != nil:
				// Other queries are answered all the same.
				fmt.Println("query", answer.Query, "asks for the future:", errors.Is(answer.Err, coppice.NotYet))
			case answer.Query == 0:
				walk += fmt.Sprintf(" %s", answer.Record.Value)
			default:
				fmt.Printf("query %d: %s\n", answer.Query, answer.Record.Value)
			}
		}
	}
	fmt.Println("newest first:" + walk)
	// Unordered output:
	// query 2 asks for the future: true
	// query 1: 7
	// newest first: 3 7 10
}
