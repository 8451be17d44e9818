package geth

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/params"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/coppicetest"
)

// updatesOf runs a chain on go-ethereum alone, and gives what each block changes.
func updatesOf(t testing.TB, chain *chainOf, tries *state.MPTDatabase) (updates []*Update) {
	t.Helper()
	database := &recorder{MPTDatabase: tries}
	chain.begin(t, database)
	updates = append(updates, UpdateOf(database.update))
	for number := 1; number <= len(chain.blocks); number++ {
		chain.run(t, database, number)
		updates = append(updates, UpdateOf(database.update))
	}
	return updates
}

// until calls until there is no error.
func until(ctx context.Context, t testing.TB, call func() error) {
	t.Helper()
	for {
		err := call()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

func TestNoBlockIsLostOrWrittenTwiceIfAnswersAre(t *testing.T) {
	const length = 20
	l := startDev(t)
	var after atomic.Int64
	after.Store(6000)
	cut := coppicetest.StartCutter(t, l, func(int64) int64 { return after.Load() })
	ledger := must(Open(limited(t), dial(t, l.Key(t), cut.Endpoint), Options{}))(t)
	_, tries := local(t)
	chain := generate(t, merged(), length, length, 0)
	updates := updatesOf(t, chain, tries)
	ctx := limited(t)
	for number, update := range updates {
		// Connections break in proofs, in headers and in receipts.
		after.Store(int64(2500 + 400*(number%7)))
		until(ctx, t, func() error { return ledger.Apply(ctx, update) })
	}
	after.Store(0)
	direct := dial(t, l.Key(t), l.Endpoint)
	// Each block is one version, and there is no other.
	if head := must(direct.Head(ctx))(t); head.Stamp.Version != uint64(len(updates)) {
		t.Errorf("%d versions for %d blocks", head.Stamp.Version, len(updates))
	}
	again := must(Open(ctx, direct, Options{}))(t)
	for number := range length + 1 {
		root := chain.block(number).Root()
		compare(t, must(again.At(ctx, root))(t), tries, root)
	}
	if cuts := cut.Cuts.Load(); cuts < 5 {
		t.Errorf("%d connections were cut", cuts)
	}
}

func TestReorganizationsComeThroughTheDeathOfTheLedger(t *testing.T) {
	const length, fork = 8, 4
	l := startDev(t)
	ledger := must(Open(limited(t), dial(t, l.Key(t), l.Endpoint), Options{}))(t)
	_, tries := local(t)
	a, b := generate(t, merged(), length, fork, 1), generate(t, merged(), length, fork, 2)
	ctx := limited(t)
	stop, done := make(chan struct{}), make(chan struct{})
	var deaths atomic.Int64
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			case <-time.After(300 * time.Millisecond):
			}
			l.Kill()
			deaths.Add(1)
			l.Restart(t)
		}
	}()
	for _, chain := range []*chainOf{a, b} {
		for _, update := range updatesOf(t, chain, tries) {
			if update.Root == chain.first.Root() && chain == b {
				continue
			}
			until(ctx, t, func() error { return ledger.Apply(ctx, update) })
		}
	}
	for round := 0; round < 6 || deaths.Load() < 4; round++ {
		on := []*chainOf{b, a}[round%2]
		until(ctx, t, func() error { return ledger.SetHead(ctx, on.block(length).Root()) })
		view := new(View)
		until(ctx, t, func() (err error) { view, err = ledger.At(ctx, on.block(length).Root()); return err })
		until(ctx, t, func() error { _, err := view.Account(counter); return err })
	}
	close(stop)
	<-done
	until(ctx, t, func() error { return ledger.SetHead(ctx, a.block(length).Root()) })
	for number := range length + 1 {
		root := a.block(number).Root()
		compare(t, must(ledger.At(ctx, root))(t), tries, root)
	}
	t.Logf("the ledger died %d times", deaths.Load())
}

func TestManyReadersAndAChainThatMoves(t *testing.T) {
	const length, fork = 8, 4
	ledger := openState(t, startLedger(t))
	_, tries := local(t)
	a, b := generate(t, merged(), length, fork, 1), generate(t, merged(), length, fork, 2)
	ctx := limited(t)
	for _, chain := range []*chainOf{a, b} {
		for _, update := range updatesOf(t, chain, tries) {
			if err := ledger.Apply(ctx, update); err != nil {
				t.Fatal(err)
			}
		}
	}
	expected := map[common.Hash]string{}
	for _, chain := range []*chainOf{a, b} {
		for number := range length + 1 {
			root := chain.block(number).Root()
			account := must(must(tries.Reader(root))(t).Account(payerAddr))(t)
			expected[root] = account.Balance.String()
		}
	}
	var readers sync.WaitGroup
	ended, finish := context.WithCancel(ctx)
	for i := range 4 {
		readers.Go(func() {
			for n := i; ended.Err() == nil; n++ {
				root := []*chainOf{a, b}[n%2].block(n % (length + 1)).Root()
				view, err := ledger.At(ctx, root)
				if err != nil {
					continue
				}
				account, err := view.Account(payerAddr)
				if err == nil && account.Balance.String() != expected[root] {
					t.Errorf("%s in %s, not %s", account.Balance, root, expected[root])
				}
			}
		})
	}
	for round := range 12 {
		if err := ledger.SetHead(ctx, []*chainOf{b, a}[round%2].block(length).Root()); err != nil {
			t.Error(err)
		}
	}
	finish()
	readers.Wait()
}

// The first block of the Ethereum that everybody knows has 8,893 accounts.
func TestALargeFirstBlockFits(t *testing.T) {
	ledger := openState(t, startLedger(t))
	genesis := core.DefaultGenesisBlock()
	update := must(UpdateOfGenesis(genesis.Alloc))(t)
	if update.Root != genesis.ToBlock().Root() || genesis.ToBlock().Hash() != params.MainnetGenesisHash {
		t.Fatalf("it has root %s", update.Root)
	}
	if err := ledger.Apply(limited(t), update); err != nil {
		t.Fatal(err)
	}
	fresh := must(Open(limited(t), ledger.client, ledger.options))(t)
	view := must(fresh.At(limited(t), update.Root))(t)
	all := map[common.Address][]common.Hash{}
	for address := range genesis.Alloc {
		all[address] = nil
	}
	if err := view.Prefetch(limited(t), all); err != nil {
		t.Fatal(err)
	}
	for address, account := range genesis.Alloc {
		if told := must(view.Account(address))(t); told.Balance.ToBig().Cmp(account.Balance) != 0 {
			t.Errorf("%s has %s, not %s", address, told.Balance, account.Balance)
		}
	}
}

func TestRecordsThatAreNoneOfAChainAreRefused(t *testing.T) {
	client := startLedger(t)
	ledger := must(Open(limited(t), client, Options{}))(t)
	root, address := common.Hash{1}, common.Address{2}
	code, slot := []byte{1, 2, 3}, common.Hash{3}
	account := &types.StateAccount{Nonce: 1, Balance: common.U2560, Root: types.EmptyRootHash, CodeHash: code}
	hash := crypto.Keccak256Hash(address[:])
	if err := ledger.Apply(limited(t), &Update{
		Parent: types.EmptyRootHash, Root: root, Number: 1,
		Accounts: map[common.Hash]*types.StateAccount{hash: account}, Codes: map[common.Hash][]byte{{4}: code},
	}); err != nil {
		t.Fatal(err)
	}
	view := must(ledger.At(limited(t), root))(t)
	if got := view.Code(address, common.Hash{4}); got != nil {
		t.Errorf("a code of another hash is %x", got)
	}
	keys, second := ledger.keys, common.Hash{5}
	must(client.Commit(limited(t), new(coppice.Batch).
		Put(keys.account(hash), []byte{1}).Put(keys.slot(hash, crypto.Keccak256Hash(slot[:])), make([]byte, 33)).
		Put(keys.root(second), encodeBlock(2, root))))(t)
	view = must(ledger.At(limited(t), second))(t)
	if got, err := view.Account(address); err == nil {
		t.Errorf("%+v", got)
	}
	if got, err := view.Storage(address, slot); err == nil {
		t.Errorf("%s", got)
	}
	must(client.Commit(limited(t), new(coppice.Batch).Put(keys.root(second), []byte{1}).Put(keys.head(), nil)))(t)
	if _, err := ledger.At(limited(t), second); err == nil {
		t.Error("a record of one byte names a version")
	}
	if _, err := Open(limited(t), client, Options{}); err == nil {
		t.Error("an empty record is a head")
	}
}
