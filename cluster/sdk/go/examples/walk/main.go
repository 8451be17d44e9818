// walk HOST:PORT LEDGER.VKEY
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"strings"
	"time"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

func main() {
	if err := walk(os.Args[1], os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func walk(endpoint, vkey string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	text, err := os.ReadFile(vkey)
	if err != nil {
		return err
	}
	key, err := verify.ParseVKey(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	ledger, err := coppice.New(coppice.Options{Endpoints: []string{endpoint}, Trust: &key})
	if err != nil {
		return err
	}
	defer func() { _ = ledger.Close() }()

	// A commit. The client has checked the receipt: it is of exactly this batch.
	done, err := ledger.Commit(ctx, new(coppice.Batch).Put([]byte("go/alice"), []byte("100")))
	if err != nil {
		return err
	}
	fmt.Println("committed in version", done.Stamp.Version)

	// A read of the newest version. The client has checked the proof.
	got, err := ledger.Get(ctx, []byte("go/alice"), nil)
	if err != nil {
		return err
	}
	fmt.Printf("go/alice is %s in version %d\n", got.Record.Value, got.ReadAt.Version)

	// What the ledger does, as it comes: the word of a coordinator.
	for entry, err := range ledger.WatchHeads(ctx, coppice.Watch{From: 1, Follow: true}) {
		if err != nil {
			return err
		}
		fmt.Println("an entry is a", entry.Header.Kind)
		break
	}
	return nil
}
