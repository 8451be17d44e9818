package main

import (
	"context"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/state"

	"coppice.dev/sdk/coppicetest"
)

const transactionsOfTest = 20

func small() *world { return &world{accounts: 300, slots: 1200, contracts: 7} }

func TestDrawsAreSkewedAsZipfSays(t *testing.T) {
	const count, draws = 1000, 400_000
	z, random := newZipf(count), rand.New(rand.NewPCG(5, 6))
	drawn := make([]int, count)
	for range draws {
		drawn[z.draw(random)]++
	}
	sum := 0.0
	for _, n := range drawn[:100] {
		sum += float64(n)
	}
	// The first of 1,000 has 1/7.73 of all draws, and the first 100 have 0.68 of them.
	if first := float64(drawn[0]) / draws; first < 0.127 || first > 0.132 {
		t.Errorf("the first has %.4f of the draws", first)
	}
	if hundred := sum / draws; hundred < 0.66 || hundred > 0.70 {
		t.Errorf("the first hundred have %.4f of the draws", hundred)
	}
}

func TestNumbersAreSpreadOverTheirWholeRange(t *testing.T) {
	for _, count := range []int{50_000, 200_000, 1_000_000, 4_000_000} {
		seen := make([]bool, count)
		for number := range count {
			seen[spread(number, count)] = true
		}
		for number, is := range seen {
			if !is {
				t.Fatalf("nothing comes to %d of %d", number, count)
			}
		}
	}
}

func TestTwoChainsHaveTheSameBlocks(t *testing.T) {
	a, b := newBlocks(small(), transactionsOfTest), newBlocks(small(), transactionsOfTest)
	for range 3 {
		if !reflect.DeepEqual(a.next(), b.next()) {
			t.Fatal("the blocks differ")
		}
	}
}

// sides are go-ethereum alone and the chain on a ledger, with the same world.
func sides(t *testing.T, w *world) (*local, *far) {
	t.Helper()
	here, err := openLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = here.close() })
	if err := here.load(w); err != nil {
		t.Fatal(err)
	}
	l := coppicetest.Start(t, t.TempDir(), "--replicas", "1")
	there, err := dial(l.Address(), l.Key(t), 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = there.close() })
	if err := there.load(context.Background(), w); err != nil {
		t.Fatal(err)
	}
	return here, there
}

// compare reads all accounts and slots on both sides.
func compare(t *testing.T, w *world, a, b state.Reader) {
	t.Helper()
	account := func(address common.Address) {
		x, err := a.Account(address)
		if err != nil || x == nil {
			t.Fatal(x, err)
		}
		y, err := b.Account(address)
		if err != nil || y == nil || x.Nonce != y.Nonce || x.Balance.Cmp(y.Balance) != 0 {
			t.Fatalf("%s is %+v, not %+v (%v)", address, y, x, err)
		}
	}
	for i := range w.accounts {
		account(w.account(i))
	}
	for _, address := range []common.Address{coinbase, router} {
		account(address)
	}
	changed := 0
	for i := range w.slots {
		at, key := w.slot(i)
		x, err := a.Storage(w.contract(at), key)
		if err != nil {
			t.Fatal(err)
		}
		y, err := b.Storage(w.contract(at), key)
		if err != nil || x != y {
			t.Fatalf("slot %d is %s, not %s (%v)", i, y, x, err)
		}
		if x != w.value(i) {
			changed++
		}
	}
	if changed == 0 {
		t.Fatal("the blocks write no slots")
	}
}

func TestBlocksLeaveTheSameStateOnBothSidesInAllModes(t *testing.T) {
	ctx, w := context.Background(), small()
	here, there := sides(t, w)
	o, err := there.open(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	chain := newBlocks(w, transactionsOfTest)
	for i, mode := range []string{byNothing, byList, bySpeculation, byNothing} {
		b := chain.next()
		before := o.states.Metrics()
		if _, err := o.run(ctx, b, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := here.run(b, i%2 == 0); err != nil {
			t.Fatal(err)
		}
		after := o.states.Metrics()
		if mode == byList && after.Misses != before.Misses {
			t.Errorf("the access list leaves out %d reads", after.Misses-before.Misses)
		}
		if b.reads == 0 || b.writes == 0 || b.known > b.reads || i == 0 && b.known > 0 || i == 3 && b.known == 0 {
			t.Errorf("block %d has %d reads, %d known ones, and %d writes", i, b.reads, b.known, b.writes)
		}
	}
	theirs, err := here.states.Reader(here.root)
	if err != nil {
		t.Fatal(err)
	}
	root, _ := o.states.Head()
	mine, err := o.states.At(ctx, root)
	if err != nil {
		t.Fatal(err)
	}
	compare(t, w, theirs, mine)
}

func TestAWorldIsLoadedInPartsThatComeOutEven(t *testing.T) {
	here, err := openLocal(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = here.close() })
	w := &world{accounts: 600, slots: 400, contracts: 2}
	here.part = w.accounts + w.slots
	if err := here.load(w); err != nil {
		t.Fatal(err)
	}
	reader, err := here.states.Reader(here.root)
	if err != nil {
		t.Fatal(err)
	}
	at, key := w.slot(w.slots - 1)
	if value, err := reader.Storage(w.contract(at), key); err != nil || value != w.value(w.slots-1) {
		t.Fatalf("the last slot is %s (%v)", value, err)
	}
}

func TestABlockWhoseCallsFailIsRefused(t *testing.T) {
	here, _ := sides(t, small())
	b := newBlocks(small(), 1).next()
	// An account that does not have what it would pay.
	b.messages[0].Data = item(common.Address{1}, common.Hash{}, 0, 1)
	b.messages[0].To = &b.messages[0].From
	b.messages[0].Value = wealth
	on, err := state.New(here.root, here.states)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.run(on); err == nil {
		t.Fatal("a transaction that can't pay is taken")
	}
}
