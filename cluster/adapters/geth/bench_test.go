package geth

import (
	"fmt"
	"math/big"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
)

// payments is a chain whose blocks pay a number of accounts, some of them again and again.
func payments(b *testing.B, length, each int) *chainOf {
	b.Helper()
	config := merged()
	return generateWith(b, config, length, func(i int, block *core.BlockGen) {
		for n := range each {
			to := common.BigToAddress(big.NewInt(int64(0x10000 + (i*7919+n*104729)%5000)))
			block.AddTx(pay(b, config, block, to, nil))
		}
	})
}

// BenchmarkBlocks runs blocks of 100 payments on go-ethereum's tries in memory, and on those with a
// ledger that syncs each block to the disk: with a read for each account that it comes to, and with
// all of a block's at once.
func BenchmarkBlocks(b *testing.B) {
	const length, each = 20, 100
	chain := payments(b, length, each)
	run := func(b *testing.B, open func() state.Database, before func(state.Database, int)) {
		for b.Loop() {
			b.StopTimer()
			database := open()
			chain.begin(b, database)
			b.StartTimer()
			for number := 1; number <= length; number++ {
				before(database, number)
				chain.run(b, database, number)
			}
		}
		b.ReportMetric(float64(b.Elapsed().Milliseconds())/float64(b.N*length), "ms/block")
	}
	nothing := func(state.Database, int) {}
	b.Run("tries", func(b *testing.B) {
		run(b, func() state.Database { _, tries := local(b); return tries }, nothing)
	})
	client, opened := startLedger(b), 0
	open := func() state.Database {
		opened++
		return newDatabase(b, must(Open(limited(b), client, Options{Prefix: fmt.Sprintf("bench %d/", opened)}))(b))
	}
	b.Run("ledger", func(b *testing.B) { run(b, open, nothing) })
	b.Run("ledger, prefetched", func(b *testing.B) {
		run(b, open, func(database state.Database, number int) {
			block := chain.block(number)
			view := must(database.(*Database).ledger.At(limited(b), chain.block(number-1).Root()))(b)
			signer := types.MakeSigner(chain.config, block.Number(), block.Time())
			if err := view.Prefetch(limited(b), AccessesOf(block, signer)); err != nil {
				b.Fatal(err)
			}
		})
	})
}
