// Command txmgr runs Fabric's transaction manager on a ledger: it simulates two transactions that
// both change one account, and commits them as one block. Fabric finds that the second one has read
// what the first one changes.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"

	"github.com/hyperledger/fabric-lib-go/common/flogging"

	"coppice.dev/adapters/fabric"
	"coppice.dev/adapters/fabric/internal/peer"
	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

func main() {
	endpoint := flag.String("endpoint", "127.0.0.1:7401", "where the ledger is")
	key := flag.String("key", "my-ledger/ledger.vkey", "file with the ledger's public key")
	directory := flag.String("directory", "my-peer", "directory for the peer's own files")
	flag.Parse()
	flogging.ActivateSpec("error")
	if err := run(*endpoint, *key, *directory); err != nil {
		log.Fatal(err)
	}
}

func run(endpoint, keyFile, directory string) error {
	text, err := os.ReadFile(keyFile)
	if err != nil {
		return err
	}
	key, err := verify.ParseVKey(strings.TrimSpace(string(text)))
	if err != nil {
		return err
	}
	client, err := coppice.New(coppice.Options{Endpoints: []string{endpoint}, Trust: &key})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	states, err := fabric.New(
		context.Background(),
		client,
		fabric.Options{Directory: directory + "/state"},
	)
	if err != nil {
		return err
	}
	p, err := peer.Open(directory, "mychannel", states)
	if err != nil {
		return err
	}
	defer p.Close()
	return next(p)
}

// next commits the block after those that the ledger has.
func next(p *peer.Peer) error {
	number := uint64(1)
	savepoint, err := p.GetLastSavepoint()
	if err != nil {
		return err
	}
	if savepoint != nil {
		number = savepoint.BlockNum + 1
	}
	var results [][]byte
	for _, amount := range []int{100, 50} {
		result, err := pay(p, amount)
		if err != nil {
			return err
		}
		results = append(results, result)
	}
	block, err := p.Block(number, results)
	if err != nil {
		return err
	}
	valid, err := p.CommitBlock(block)
	if err != nil {
		return err
	}
	fmt.Printf("block %d: %d of %d transactions are valid\n", number, valid, len(results))
	return nil
}

// pay simulates a transaction that adds to an account.
func pay(p *peer.Peer, amount int) ([]byte, error) {
	simulator, err := p.NewTxSimulator(strconv.Itoa(amount))
	if err != nil {
		return nil, err
	}
	defer simulator.Done()
	value, err := simulator.GetState("bank", "alice")
	if err != nil {
		return nil, err
	}
	// An account that is not there has nothing.
	balance, _ := strconv.Atoi(string(value))
	if err := simulator.SetState("bank", "alice", []byte(strconv.Itoa(balance+amount))); err != nil {
		return nil, err
	}
	results, err := simulator.GetTxSimulationResults()
	if err != nil {
		return nil, err
	}
	return results.GetPubSimulationBytes()
}
