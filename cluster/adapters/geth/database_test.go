package geth

import (
	"context"
	"errors"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/rawdb"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/crypto"
	"github.com/ethereum/go-ethereum/triedb"

	"coppice.dev/sdk/coppice"
)

// compare compares the ledger's state of a root with the state in the tries: each account, slot and
// code, and absent ones.
func compare(t testing.TB, view state.Reader, tries *state.MPTDatabase, root common.Hash) (accounts, slots int) {
	t.Helper()
	own := must(tries.Reader(root))(t)
	all := must(must(tries.Iteratee(root))(t).NewAccountIterator(common.Hash{}))(t)
	defer all.Release()
	for all.Next() {
		accounts++
		address := must(all.Address())(t)
		account, told := must(own.Account(address))(t), must(view.Account(address))(t)
		if told == nil || told.Nonce != account.Nonce || told.Balance.Cmp(account.Balance) != 0 ||
			told.Root != account.Root || string(told.CodeHash) != string(account.CodeHash) {
			t.Fatalf("%s in %s is %+v, not %+v", address, root, told, account)
		}
		hash := common.BytesToHash(account.CodeHash)
		if string(view.Code(address, hash)) != string(own.Code(address, hash)) ||
			view.CodeSize(address, hash) != own.CodeSize(address, hash) {
			t.Fatalf("the code of %s in %s differs", address, root)
		}
		stored := must(must(tries.Iteratee(root))(t).NewStorageIterator(crypto.Keccak256Hash(address[:]), common.Hash{}))(t)
		for stored.Next() {
			slots++
			slot := must(stored.Key())(t)
			if told := must(view.Storage(address, slot))(t); told != stored.Slot() {
				t.Fatalf("slot %s of %s in %s is %s, not %s", slot, address, root, told, stored.Slot())
			}
		}
		stored.Release()
		for n := range 40 {
			if address != counter {
				break
			}
			slot := common.BigToHash(common.Big256)
			slot[31] = byte(n)
			if told, expected := must(view.Storage(address, slot))(t), must(own.Storage(address, slot))(t); told != expected {
				t.Fatalf("slot %s of %s in %s is %s, not %s", slot, address, root, told, expected)
			}
		}
	}
	for i := range 20 {
		address := common.Address{1, byte(i)}
		told, expected := must(view.Account(address))(t), must(own.Account(address))(t)
		if (told == nil) != (expected == nil) {
			t.Fatalf("%s in %s is %+v, not %+v", address, root, told, expected)
		}
	}
	return accounts, slots
}

func newDatabase(t testing.TB, ledger *State) *Database {
	t.Helper()
	tries := triedb.NewDatabase(rawdb.NewMemoryDatabase(), triedb.HashDefaults)
	t.Cleanup(func() { _ = tries.Close() })
	return NewDatabase(tries, ledger)
}

func TestBlocksRunOnTheLedgerAndItsStateIsThatOfEachHeight(t *testing.T) {
	const length = 12
	ledger := openState(t, startLedger(t))
	chain := generate(t, merged(), length, length, 0)
	database := newDatabase(t, ledger)
	_, tries := local(t)
	chain.begin(t, database)
	chain.begin(t, tries)
	for number := 1; number <= length; number++ {
		chain.run(t, database, number)
		chain.run(t, tries, number)
		if head := ledger.Head(); head.Root != chain.block(number).Root() || head.Number != uint64(number) {
			t.Fatalf("%+v is head behind block %d", head, number)
		}
	}
	// A slot that was emptied leaves nothing behind.
	emptied := common.Hash{30: 1, 31: 1}
	record := ledger.keys.slot(crypto.Keccak256Hash(counter[:]), crypto.Keccak256Hash(emptied[:]))
	if got := must(ledger.client.Get(limited(t), record, nil))(t); got.Record != nil {
		t.Errorf("an empty slot has a record: %+v", got.Record)
	}
	if m := ledger.Metrics(); m.Hits < 2*m.Misses {
		t.Errorf("the blocks ran with %d hits and %d misses", m.Hits, m.Misses)
	}
	// The ledger alone answers, also for a state of which nothing is cached.
	fresh := must(Open(limited(t), ledger.client, ledger.options))(t)
	if fresh.Head() != ledger.Head() {
		t.Errorf("%+v, and %+v when it is opened again", ledger.Head(), fresh.Head())
	}
	for _, from := range []*State{ledger, fresh} {
		for number := range length + 1 {
			root := chain.block(number).Root()
			view := must(from.At(limited(t), root))(t)
			accounts, slots := compare(t, view, tries, root)
			if accounts < number || slots == 0 {
				t.Errorf("block %d: %d accounts and %d slots were compared", number, accounts, slots)
			}
		}
	}
	if _, err := ledger.At(limited(t), common.Hash{1}); !errors.Is(err, ErrUnknownRoot) {
		t.Error(err)
	}
	view := must(fresh.At(limited(t), types.EmptyRootHash))(t)
	if account := must(view.Account(payerAddr))(t); account != nil {
		t.Errorf("%+v before the first block", account)
	}
}

func TestAPrefetchIsAnsweredFromTheCache(t *testing.T) {
	ledger := openState(t, startLedger(t))
	chain := generate(t, merged(), 4, 4, 0)
	database := newDatabase(t, ledger)
	chain.begin(t, database)
	for number := 1; number <= 4; number++ {
		chain.run(t, database, number)
	}
	fresh := must(Open(limited(t), ledger.client, ledger.options))(t)
	for _, number := range []int{4, 2} {
		view := must(fresh.At(limited(t), chain.block(number).Root()))(t)
		slots := make([]common.Hash, 300)
		for i := range slots {
			slots[i] = common.Hash{30: 1, 31: byte(i)}
		}
		accesses := map[common.Address][]common.Hash{payerAddr: nil, counter: slots, {0xdd}: {{}}}
		if err := view.Prefetch(limited(t), accesses); err != nil {
			t.Fatal(err)
		}
		before := fresh.Metrics().Misses
		for address, slots := range accesses {
			must(view.Account(address))(t)
			for _, slot := range slots {
				must(view.Storage(address, slot))(t)
			}
		}
		if after := fresh.Metrics().Misses; after != before {
			t.Errorf("block %d: %d reads were not cached", number, after-before)
		}
	}
}

func TestABlockThatIsPrefetchedReadsAlmostNothing(t *testing.T) {
	ledger := openState(t, startLedger(t))
	chain := generate(t, merged(), 6, 6, 0)
	database := newDatabase(t, ledger)
	chain.begin(t, database)
	for number := 1; number <= 6; number++ {
		block := chain.block(number)
		view := must(ledger.At(limited(t), chain.block(number-1).Root()))(t)
		signer := types.MakeSigner(chain.config, block.Number(), block.Time())
		accesses := AccessesOf(block, signer)
		if _, sender := accesses[payerAddr]; !sender || len(accesses) < 4 {
			t.Fatalf("%v", accesses)
		}
		if err := view.Prefetch(limited(t), accesses); err != nil {
			t.Fatal(err)
		}
		before := ledger.Metrics().Misses
		chain.run(t, database, number)
		// Up to 8 reads are of slots and of a new contract's account, which no transaction here names.
		if after := ledger.Metrics().Misses; after-before > 8 {
			t.Errorf("block %d has read the ledger %d times", number, after-before)
		}
	}
}

func TestAReorganizationIsARollbackAndNothingOfItStays(t *testing.T) {
	const length, fork = 10, 5
	client := startLedger(t)
	ledger := openState(t, client)
	a, b := generate(t, merged(), length, fork, 1), generate(t, merged(), length, fork, 2)
	if a.block(fork).Hash() != b.block(fork).Hash() || a.block(fork+1).Hash() == b.block(fork+1).Hash() {
		t.Fatal("the chains do not fork where they should")
	}
	database := newDatabase(t, ledger)
	_, tries := local(t)
	a.begin(t, database)
	a.begin(t, tries)
	for number := 1; number <= length; number++ {
		a.run(t, database, number)
		a.run(t, tries, number)
	}
	for number := fork + 1; number <= length; number++ {
		b.run(t, tries, number)
	}
	of := func(chain *chainOf, number int) common.Hash { return chain.block(number).Root() }
	stale := must(ledger.At(limited(t), of(a, length)))(t)
	compare(t, stale, tries, of(a, length))
	// Blocks of the other chain run on the states of their parents, which the ledger may lack.
	for number := fork + 1; number <= length; number++ {
		b.run(t, database, number)
		if head := ledger.Head(); head.Root != of(a, length) {
			t.Fatalf("a block of a side chain became head: %+v", head)
		}
	}
	check := func(on, off *chainOf) {
		t.Helper()
		for number := range length + 1 {
			view := must(ledger.At(limited(t), of(on, number)))(t)
			compare(t, view, tries, of(on, number))
			if number <= fork {
				continue
			}
			if _, err := ledger.At(limited(t), of(off, number)); !errors.Is(err, ErrUnknownRoot) {
				t.Errorf("block %d, which was reorganized away: %v", number, err)
			}
		}
	}
	for round := range 3 {
		on, off := b, a
		if round == 1 {
			on, off = a, b
		}
		if err := ledger.SetHead(limited(t), of(on, length)); err != nil {
			t.Fatal(err)
		}
		if head := ledger.Head(); head.Root != of(on, length) || head.Stamp.Epoch != uint64(round+1) {
			t.Errorf("%+v", head)
		}
		check(on, off)
		if round == 0 {
			// The ledger refuses what the cache does not have, and the cache serves no dead version.
			if account, err := stale.Account(common.Address{0xaa, 1}); !errors.Is(err, coppice.RolledBack) {
				t.Errorf("a dead state has %+v, %v", account, err)
			}
		}
	}
	// Back to an old block, and on from there.
	if err := ledger.SetHead(limited(t), of(b, 2)); err != nil {
		t.Fatal(err)
	}
	for number := 3; number <= 4; number++ {
		b.run(t, database, number)
	}
	if head := ledger.Head(); head.Number != 4 || head.Root != of(b, 4) {
		t.Errorf("%+v", head)
	}
	if err := ledger.SetHead(limited(t), common.Hash{1}); !errors.Is(err, ErrUnknownRoot) {
		t.Error(err)
	}
	// A process that begins now can go on as well.
	again := must(Open(limited(t), client, ledger.options))(t)
	b.run(t, NewDatabase(database.TrieDB(), again), 5)
	if head := again.Head(); head.Number != 5 {
		t.Errorf("%+v", head)
	}
}

func TestAChainBehindTheWindowIsNotGuessed(t *testing.T) {
	client := startLedger(t)
	ledger := must(Open(limited(t), client, Options{Window: 2}))(t)
	a, b := generate(t, merged(), 5, 1, 1), generate(t, merged(), 5, 1, 2)
	database := newDatabase(t, ledger)
	a.begin(t, database)
	for number := 1; number <= 5; number++ {
		a.run(t, database, number)
	}
	for number := 2; number <= 5; number++ {
		b.run(t, database, number)
	}
	before := ledger.Head()
	if err := ledger.SetHead(limited(t), b.block(5).Root()); !errors.Is(err, ErrUnknownRoot) {
		t.Error(err)
	}
	if ledger.Head() != before {
		t.Errorf("%+v became %+v", before, ledger.Head())
	}
}

func TestAnotherWriterIsFound(t *testing.T) {
	client := startLedger(t)
	ledger := openState(t, client)
	chain := generate(t, merged(), 6, 6, 0)
	database := newDatabase(t, ledger)
	_, tries := local(t)
	chain.begin(t, database)
	chain.begin(t, tries)
	for number := 1; number <= 6; number++ {
		chain.run(t, tries, number)
	}
	for number := 1; number <= 3; number++ {
		chain.run(t, database, number)
	}
	ctx := limited(t)
	// Keys of others do not matter.
	must(client.Commit(ctx, new(coppice.Batch).Put([]byte("other"), []byte("1"))))(t)
	chain.run(t, database, 4)
	view := must(ledger.At(ctx, chain.block(4).Root()))(t)
	compare(t, view, tries, chain.block(4).Root())
	// An operator rolls the ledger back under the process, to block 2.
	old := must(ledger.At(ctx, chain.block(2).Root()))(t)
	order := coppice.Order{Principal: "operator", Reason: "a test"}
	must(client.Rollback(ctx, old.Stamp().Version, order))(t)
	if _, err := ledger.At(ctx, chain.block(4).Root()); !errors.Is(err, ErrUnknownRoot) {
		t.Error(err)
	}
	if head := ledger.Head(); head.Number != 2 {
		t.Errorf("%+v", head)
	}
	compare(t, must(ledger.At(ctx, chain.block(2).Root()))(t), tries, chain.block(2).Root())
	if err := ledger.SetHead(ctx, chain.block(4).Root()); err != nil {
		t.Fatal(err)
	}
	compare(t, must(ledger.At(ctx, chain.block(4).Root()))(t), tries, chain.block(4).Root())
	// The operator rolls back again, and this time a block comes before the process has read the head.
	must(client.Rollback(ctx, old.Stamp().Version, order))(t)
	update := &Update{Parent: chain.block(4).Root(), Root: common.Hash{5}, Number: 5}
	if err := ledger.Apply(ctx, update); !errors.Is(err, ErrMoved) {
		t.Error(err)
	}
	// Another process has written the same block.
	second := must(Open(ctx, client, ledger.options))(t)
	third := &Update{Parent: second.Head().Root, Root: common.Hash{3}, Number: 3}
	for _, writer := range []*State{second, ledger} {
		if err := writer.Apply(ctx, third); err != nil {
			t.Error(err)
		}
	}
	if second.Head().Root != third.Root || ledger.Head().Root != third.Root {
		t.Errorf("%+v, %+v", second.Head(), ledger.Head())
	}
}

func TestALedgerThatIsAwayStopsTheBlock(t *testing.T) {
	client := startLedger(t)
	ledger := must(Open(limited(t), client, Options{CacheBytes: 1}))(t)
	chain := generate(t, merged(), 2, 2, 0)
	database := newDatabase(t, ledger)
	chain.begin(t, database)
	chain.run(t, database, 1)
	on := must(state.New(chain.block(1).Root(), database))(t)
	_ = client.Close()
	if on.GetBalance(payerAddr).Sign() != 0 || on.Error() == nil {
		t.Error("a read of a ledger that is away is no error")
	}
	if code := on.GetCode(counter); code != nil {
		t.Errorf("%x", code)
	}
	ctx, cancel := context.WithCancel(limited(t))
	cancel()
	if _, err := ledger.At(ctx, chain.block(1).Root()); err == nil {
		t.Error("a state is given without the ledger")
	}
	if _, err := Open(ctx, client, Options{Prefix: "\x00"}); err == nil {
		t.Error("reserved keys are taken for a chain")
	}
	for _, options := range []Options{
		{CacheBytes: -1}, {Window: -1}, {Timeout: -1}, {Prefix: string(make([]byte, 129))}, {Prefix: "\xff\xff"},
	} {
		if err := options.fill(); err == nil {
			t.Errorf("%+v is taken", options)
		}
	}
}
