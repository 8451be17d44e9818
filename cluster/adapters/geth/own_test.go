package geth

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/core/vm"
	"github.com/ethereum/go-ethereum/params"
	"github.com/ethereum/go-ethereum/trie"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/coppicetest"
)

// logging makes a contract: it logs a byte, and leaves a code of one byte.
var logging = common.FromHex("602a600053602a60016000a160016000f3")

// logged is a chain whose blocks log, besides what those of generate do. Each 7th block is empty,
// and changes nothing.
func logged(t testing.TB, length int) *chainOf {
	t.Helper()
	config := merged()
	return generateWith(t, config, length, func(i int, b *core.BlockGen) {
		if i%7 == 6 {
			return
		}
		b.AddTx(pay(t, config, b, common.Address{1, byte(i)}, nil))
		b.AddTx(pay(t, config, b, counter, nil))
		if i%3 == 0 {
			b.AddTx(create(t, config, b, logging))
			code := []byte{0x60, byte(i), 0x60, 0x00, 0x53, 0x60, 0x01, 0x60, 0x00, 0xf3}
			b.AddTx(create(t, config, b, code))
		}
	})
}

// owned runs a chain on its own roots.
type owned struct {
	*chainOf
	database *OwnDatabase
	// roots are by the numbers of blocks.
	roots []common.Hash
}

func openOwn(t testing.TB, client *coppice.Client, chain *chainOf) *owned {
	t.Helper()
	return &owned{chainOf: chain, database: must(OpenOwn(limited(t), client, Options{}))(t)}
}

// first commits the first block.
func (o *owned) first(t testing.TB) {
	t.Helper()
	first := must(state.New(types.EmptyRootHash, o.database))(t)
	if err := allocate(first, o.genesis.Alloc); err != nil {
		t.Fatal(err)
	}
	o.roots = append(o.roots, must(first.Commit(params.Rules{}, 0))(t))
}

// execute runs the next block, and gives the state before it is committed.
func (o *owned) execute(t testing.TB) (*state.StateDB, *core.ProcessResult) {
	t.Helper()
	number := len(o.roots)
	on := must(state.New(o.roots[number-1], o.database))(t)
	processor := core.NewStateProcessor(o.chainOf)
	return on, must(processor.Process(limited(t), o.block(number), on, nil, nil, vm.Config{}, nil))(t)
}

func (o *owned) rules(number int) params.Rules {
	block := o.block(number)
	return o.config.Rules(block.Number(), true, block.Time())
}

// next runs and commits a block, and gives its result.
func (o *owned) next(t testing.TB) *core.ProcessResult {
	t.Helper()
	on, result := o.execute(t)
	number := len(o.roots)
	asked := on.IntermediateRoot(o.rules(number))
	root := must(on.Commit(o.rules(number), uint64(number)))(t)
	if head, _ := o.database.Head(); root != asked || root != head {
		t.Fatalf("block %d has root %s, then %s, and head is %s", number, asked, root, head)
	}
	o.roots = append(o.roots, root)
	return result
}

// try runs and commits a block, unless its root is known. An error may be one of a read behind a
// commit that happened: then head has moved.
func (o *owned) try(ctx context.Context, number int) (err error) {
	parent, rules := types.EmptyRootHash, params.Rules{}
	if number > 0 {
		parent, rules = o.roots[number-1], o.rules(number)
	}
	on, err := state.New(parent, o.database)
	if err != nil {
		return err
	}
	if number == 0 {
		err = allocate(on, o.genesis.Alloc)
	} else {
		processor := core.NewStateProcessor(o.chainOf)
		_, err = processor.Process(ctx, o.block(number), on, nil, nil, vm.Config{}, nil)
	}
	if err != nil {
		return err
	}
	root, err := on.Commit(rules, uint64(number))
	if err != nil {
		if root, _ = o.database.Head(); root == parent {
			return err
		}
	}
	o.roots = append(o.roots, root)
	return nil
}

// compareOwn compares a state with that in the tries.
func compareOwn(
	t testing.TB, view *View, tries *state.MPTDatabase, root common.Hash,
) (accounts, slots int) {
	t.Helper()
	reads := map[common.Address][]common.Hash{}
	all := must(must(tries.Iteratee(root))(t).NewAccountIterator(common.Hash{}))(t)
	for all.Next() {
		reads[must(all.Address())(t)] = nil
	}
	all.Release()
	if err := view.Prefetch(limited(t), reads); err != nil {
		t.Fatal(err)
	}
	return compare(t, rooted{view, must(tries.Reader(root))(t)}, tries, root)
}

// rooted gives accounts of an own state the roots of their storages, which it does not have.
type rooted struct {
	*View
	tries state.Reader
}

func (r rooted) Account(address common.Address) (*types.StateAccount, error) {
	account, err := r.View.Account(address)
	if account == nil || err != nil {
		return nil, err
	}
	if account.Root != types.EmptyRootHash {
		return nil, errors.New("an own state has the root of a storage")
	}
	known, err := r.tries.Account(address)
	if known != nil {
		account.Root = known.Root
	}
	return account, err
}

func TestStateDBRunsOnTheRootsOfTheLedger(t *testing.T) {
	const length = 200
	client := startLedger(t)
	chain := logged(t, length)
	own := openOwn(t, client, chain)
	_, tries := local(t)
	own.first(t)
	chain.begin(t, tries)
	accounts, slots, logs := 0, 0, 0
	for number := 1; number <= length; number++ {
		block := chain.block(number)
		// go-ethereum alone checks that the receipts are those of the block. Logs are in them.
		chain.run(t, tries, number)
		result := own.next(t)
		if types.DeriveSha(result.Receipts, trie.NewStackTrie(nil)) != block.ReceiptHash() {
			t.Fatalf("block %d has other receipts", number)
		}
		logs += len(result.Logs)
		root, at := own.database.Head()
		told := must(client.Head(limited(t)))(t)
		if told.Stamp != at || common.Hash(told.StateRoot) != root || root != own.roots[number] {
			t.Fatalf("block %d has root %s, and the ledger %+v", number, root, told)
		}
		a, s := compareOwn(t, must(own.database.At(limited(t), root))(t), tries, block.Root())
		accounts, slots = accounts+a, slots+s
	}
	// The ledger alone answers, also for old states.
	fresh := openOwn(t, client, chain)
	if root, at := fresh.database.Head(); root != own.roots[length] ||
		at != must(client.Head(limited(t)))(t).Stamp {
		t.Errorf("%s at %s when it is opened again", root, at)
	}
	for number := 0; number <= length; number += 20 {
		view := must(fresh.database.At(limited(t), own.roots[number]))(t)
		a, s := compareOwn(t, view, tries, chain.block(number).Root())
		accounts, slots = accounts+a, slots+s
	}
	if _, err := fresh.database.At(limited(t), common.Hash{1}); !errors.Is(err, ErrUnknownRoot) {
		t.Error(err)
	}
	if logs == 0 || slots == 0 {
		t.Errorf("%d logs and %d slots were compared", logs, slots)
	}
	t.Logf("%d blocks, %d logs, %d accounts, %d slots", length, logs, accounts, slots)
}

func TestAnOwnStateSurvivesLostStages(t *testing.T) {
	client := startLedger(t)
	own := openOwn(t, client, logged(t, 6))
	own.first(t)
	on, _ := own.execute(t)
	root := on.IntermediateRoot(own.rules(1))
	// More roots than the ledger keeps for a caller are asked for, so that the first is discarded.
	for range 2 * ownStagesMax {
		again, _ := own.execute(t)
		if other := again.IntermediateRoot(own.rules(1)); other != root {
			t.Fatalf("%s and %s are roots of one state", root, other)
		}
	}
	own.database.mutex.Lock()
	if count := len(own.database.stages); count != ownStagesMax {
		t.Errorf("%d stages are held", count)
	}
	lost := own.database.stages[0]
	must(client.Discard(limited(t), lost.stage))(t)
	own.database.stages = own.database.stages[:1]
	own.database.mutex.Unlock()
	if committed := must(on.Commit(own.rules(1), 1))(t); committed != root {
		t.Fatalf("%s became %s", root, committed)
	}
	own.roots = append(own.roots, root)
	// An answer is lost: the block is committed, and this process does not know it.
	on, _ = own.execute(t)
	root = on.IntermediateRoot(own.rules(2))
	own.database.mutex.Lock()
	must(client.Finalize(limited(t), own.database.stages[0].stage))(t)
	own.database.stages[0].stage, own.database.doubtful = nil, true
	own.database.mutex.Unlock()
	version := must(client.Head(limited(t)))(t).Stamp
	if committed := must(on.Commit(own.rules(2), 2))(t); committed != root {
		t.Fatalf("%s became %s", root, committed)
	}
	if head := must(client.Head(limited(t)))(t).Stamp; head != version {
		t.Fatalf("the block was written at %s, and again at %s", version, head)
	}
	own.roots = append(own.roots, root)
	own.next(t)
}

func TestAnOwnStateRefusesOtherWriters(t *testing.T) {
	client := startLedger(t)
	own := openOwn(t, client, logged(t, 3))
	own.first(t)
	own.next(t)
	order := coppice.Order{Principal: "test", Reason: "a test"}
	other := new(coppice.Batch).Put([]byte("other"), nil)
	// What is written before the root is asked for gives no root.
	before := must(client.Head(limited(t)))(t).Stamp
	on, _ := own.execute(t)
	must(client.Commit(limited(t), other))(t)
	if root := on.IntermediateRoot(own.rules(2)); root != (common.Hash{}) {
		t.Errorf("the root %s over something else", root)
	}
	if _, err := on.Commit(own.rules(2), 2); !errors.Is(err, ErrMoved) {
		t.Errorf("a block on another version: %v", err)
	}
	must(client.Rollback(limited(t), before.Version, order))(t)
	// What is written beside the chain moves all roots. The block is refused, and the chain with it.
	on, _ = own.execute(t)
	on.IntermediateRoot(own.rules(2))
	must(client.Commit(limited(t), other))(t)
	if _, err := on.Commit(own.rules(2), 2); !errors.Is(err, ErrMoved) {
		t.Fatalf("a block on another version: %v", err)
	}
	if _, err := OpenOwn(limited(t), client, Options{}); !errors.Is(err, ErrMoved) {
		t.Errorf("a chain with something behind it: %v", err)
	}
	must(client.Rollback(limited(t), before.Version, order))(t)
	own.next(t)
}

func TestARootIsThatOfAllChangesSoFar(t *testing.T) {
	own := openOwn(t, startLedger(t), logged(t, 1))
	own.first(t)
	on, _ := own.execute(t)
	root := on.IntermediateRoot(own.rules(1))
	if again := on.IntermediateRoot(own.rules(1)); again != root || len(own.database.stages) != 1 {
		t.Errorf("%s became %s, with %d stages", root, again, len(own.database.stages))
	}
	late := common.Address{0xab}
	on.SetNonce(late, 7, 0)
	if more := on.IntermediateRoot(own.rules(1)); more == root {
		t.Errorf("%s is the root of two states", root)
	}
	root = must(on.Commit(own.rules(1), 1))(t)
	view := must(own.database.At(limited(t), root))(t)
	if account := must(view.Account(late))(t); account == nil || account.Nonce != 7 {
		t.Errorf("%+v", account)
	}
}

func TestAnOwnStateGoesBackAndOnFromThere(t *testing.T) {
	client := startLedger(t)
	own := openOwn(t, client, logged(t, 6))
	_, tries := local(t)
	own.first(t)
	own.begin(t, tries)
	for number := 1; number <= 5; number++ {
		own.next(t)
		own.run(t, tries, number)
	}
	gone := slices.Clone(own.roots[3:])
	stale := must(own.database.At(limited(t), gone[0]))(t)
	on, _ := own.execute(t)
	for range 2 {
		if err := own.database.SetHead(limited(t), own.roots[2]); err != nil {
			t.Fatal(err)
		}
	}
	// StateDB keeps only the words of an error.
	if _, err := on.Commit(own.rules(6), 6); err == nil ||
		!strings.Contains(err.Error(), ErrNotHead.Error()) {
		t.Errorf("a block on a state that was taken back: %v", err)
	}
	for _, root := range gone {
		if _, err := own.database.At(limited(t), root); !errors.Is(err, ErrUnknownRoot) {
			t.Errorf("a state that was taken back: %v", err)
		}
	}
	if account, err := stale.Account(common.Address{0xee}); !errors.Is(err, coppice.RolledBack) {
		t.Errorf("a dead state has %+v, %v", account, err)
	}
	for _, root := range []common.Hash{{1}, types.EmptyRootHash} {
		if err := own.database.SetHead(limited(t), root); !errors.Is(err, ErrUnknownRoot) {
			t.Error(err)
		}
	}
	own.database = must(OpenOwn(limited(t), client, Options{}))(t)
	own.roots = own.roots[:3]
	for number := 3; number <= 5; number++ {
		own.next(t)
		if own.roots[number] == gone[number-3] {
			t.Errorf("block %d has the root of another version", number)
		}
	}
	for number, root := range own.roots {
		compareOwn(t, must(own.database.At(limited(t), root))(t), tries, own.block(number).Root())
	}
}

func TestAnOwnStateIsWrittenOnceIfAnswersAreLost(t *testing.T) {
	const length = 20
	l := startDev(t)
	var after atomic.Int64
	after.Store(6000)
	cut := coppicetest.StartCutter(t, l, func(int64) int64 { return after.Load() })
	own := openOwn(t, dial(t, l.Key(t), cut.Endpoint), logged(t, length))
	_, tries := local(t)
	own.begin(t, tries)
	ctx := limited(t)
	until(ctx, t, func() error { return own.try(ctx, 0) })
	changed := 1
	for number := 1; number <= length; number++ {
		own.run(t, tries, number)
		// Connections break in proofs, in stages and in receipts.
		after.Store(int64(2500 + 400*(number%7)))
		until(ctx, t, func() error { return own.try(ctx, number) })
		if own.roots[number] != own.roots[number-1] {
			changed++
		}
	}
	after.Store(0)
	direct := dial(t, l.Key(t), l.Endpoint)
	if head := must(direct.Head(ctx))(t); head.Stamp.Version != uint64(changed) {
		t.Errorf("%d versions for %d blocks that changed anything", head.Stamp.Version, changed)
	}
	again := must(OpenOwn(ctx, direct, Options{}))(t)
	for number, root := range own.roots {
		compareOwn(t, must(again.At(ctx, root))(t), tries, own.block(number).Root())
	}
	if cuts := cut.Cuts.Load(); cuts < 5 {
		t.Errorf("%d connections were cut", cuts)
	}
}

func TestAnOwnStateRefusesWhatItCantKeep(t *testing.T) {
	client := startLedger(t)
	own := openOwn(t, client, logged(t, 3))
	own.first(t)
	own.next(t)
	// Old rules empty whole storages.
	on, _ := own.execute(t)
	if _, err := on.Commit(worked().Rules(common.Big2, false, 0), 2); err == nil ||
		!strings.Contains(err.Error(), "Cancun") {
		t.Errorf("a block with old rules: %v", err)
	}
	// The prefetcher replaces the trie of accounts, and what was collected of storages is lost.
	on = must(state.New(own.roots[1], own.database))(t)
	on.StartPrefetcher("test", nil)
	on.SetState(counter, common.Hash{1}, common.Hash{2})
	on.AddBalance(payerAddr, common.U2560, 0)
	on.SetNonce(payerAddr, 77, 0)
	_, err := on.Commit(own.rules(2), 2)
	if root, _ := own.database.Head(); err == nil || root != own.roots[1] {
		t.Errorf("a block of a prefetcher: %v, and %s is head", err, root)
	}
	if _, err := own.database.OpenTrie(own.roots[0]); !errors.Is(err, ErrNotHead) {
		t.Error(err)
	}
	if _, err := own.database.Iteratee(own.roots[0]); !errors.Is(err, errOwn) {
		t.Error(err)
	}
	if _, err := Open(limited(t), client, Options{}); err == nil {
		t.Error("an own state is taken for a mirrored one")
	}
	own.next(t)
	// A copy of a state with a root is not possible.
	on, _ = own.execute(t)
	on.IntermediateRoot(own.rules(3))
	func() {
		defer func() {
			if recover() == nil {
				t.Error("a state with a root is copied")
			}
		}()
		on.Copy()
	}()
	// A ledger that is away gives no root.
	on, _ = own.execute(t)
	_ = client.Close()
	if root := on.IntermediateRoot(own.rules(3)); root != (common.Hash{}) {
		t.Errorf("the root %s of a ledger that is away", root)
	}
	if _, err := on.Commit(own.rules(3), 3); err == nil {
		t.Error("a block is committed to a ledger that is away")
	}
}

func TestAnOwnStateSurvivesTheDeathOfTheLedger(t *testing.T) {
	const length = 12
	l := startDev(t)
	own := openOwn(t, dial(t, l.Key(t), l.Endpoint), logged(t, length))
	_, tries := local(t)
	own.first(t)
	own.begin(t, tries)
	for number := 1; number <= length; number++ {
		own.run(t, tries, number)
		on, _ := own.execute(t)
		root := on.IntermediateRoot(own.rules(number))
		if number%4 == 0 {
			// The stage dies with its ledger.
			l.Kill()
			l.Restart(t)
		}
		if committed := must(on.Commit(own.rules(number), uint64(number)))(t); committed != root {
			t.Fatalf("block %d has root %s, and had %s", number, committed, root)
		}
		own.roots = append(own.roots, root)
		compareOwn(t, must(own.database.At(limited(t), root))(t), tries, own.block(number).Root())
	}
}
