package geth

import (
	"context"
	"errors"
	"testing"

	"github.com/ethereum/go-ethereum/common"

	"coppice.dev/sdk/coppice"
)

// startFollower runs a follower with a client of its own until the test ends.
func startFollower(t testing.TB, client *coppice.Client, options Options) *Follower {
	t.Helper()
	follower := must(NewFollower(client, options))(t)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- follower.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Errorf("the follower ended: %v", err)
		}
	})
	return follower
}

// reach waits until a follower has a block.
func reach(t testing.TB, follower *Follower, root common.Hash) *View {
	t.Helper()
	for ctx := limited(t); ; {
		head, view, err := follower.Head(ctx)
		if err != nil {
			t.Fatalf("the follower is not at %s: %v", root, err)
		}
		if head.Root == root {
			if head.Stamp != view.Stamp() {
				t.Fatalf("%+v is the head of a view at %s", head, view.Stamp())
			}
			return view
		}
	}
}

func TestAFollowerHasEachBlockAndReadsOnlyWhatItDoesNotKnow(t *testing.T) {
	const length, fork = 10, 5
	l := startDev(t)
	ledger := openState(t, dial(t, l.Key(t), l.Endpoint))
	follower := startFollower(t, dial(t, l.Key(t), l.Endpoint), ledger.options)
	a, b := generate(t, merged(), length, fork, 1), generate(t, merged(), length, fork, 2)
	database := newDatabase(t, ledger)
	_, tries := local(t)
	a.begin(t, database)
	a.begin(t, tries)
	reach(t, follower, a.first.Root())
	for number := 1; number <= length; number++ {
		a.run(t, database, number)
		a.run(t, tries, number)
		root := a.block(number).Root()
		view := reach(t, follower, root)
		compare(t, view, tries, root)
		// All that a block changes comes with the stream, and stays.
		before := follower.Metrics().Misses
		compare(t, view, tries, root)
		must(view.Account(common.Address{1, byte(number - 1)}))(t)
		if after := follower.Metrics().Misses; after != before {
			t.Errorf("block %d: %d reads were not cached", number, after-before)
		}
	}
	// The first block was cached whole, and later ones were changes of it.
	if m := follower.Metrics(); m.Misses > m.Hits/4 || m.Unknown != 0 {
		t.Errorf("%+v", m)
	}
	for number := fork + 1; number <= length; number++ {
		b.run(t, tries, number)
		b.run(t, database, number)
	}
	stale := must(follower.At(limited(t), a.block(length).Root()))(t)
	compare(t, stale, tries, a.block(length).Root())
	if err := ledger.SetHead(limited(t), b.block(length).Root()); err != nil {
		t.Fatal(err)
	}
	compare(t, reach(t, follower, b.block(length).Root()), tries, b.block(length).Root())
	for number := range length + 1 {
		root := b.block(number).Root()
		compare(t, must(follower.At(limited(t), root))(t), tries, root)
		if number <= fork {
			continue
		}
		if _, err := follower.At(limited(t), a.block(number).Root()); !errors.Is(err, ErrUnknownRoot) {
			t.Errorf("block %d, which was reorganized away: %v", number, err)
		}
	}
	if account, err := stale.Account(payerAddr); !errors.Is(err, coppice.RolledBack) {
		t.Errorf("a dead state has %+v, %v", account, err)
	}
	if m := follower.Metrics(); m.Rollbacks != 1 {
		t.Errorf("%+v", m)
	}
}

func TestAFollowerBeginsBeforeTheChain(t *testing.T) {
	client := startLedger(t)
	follower := startFollower(t, client, Options{})
	head, view, err := follower.Head(limited(t))
	if err != nil || head.Root != must(Open(limited(t), client, Options{}))(t).Head().Root {
		t.Fatalf("%+v: %v", head, err)
	}
	for _, view := range []*View{view, must(follower.At(limited(t), head.Root))(t)} {
		if account, err := view.Account(payerAddr); account != nil || err != nil {
			t.Errorf("%+v before the first block, %v", account, err)
		}
	}
	if _, err := follower.At(limited(t), common.Hash{1}); !errors.Is(err, ErrUnknownRoot) {
		t.Error(err)
	}
	if _, err := NewFollower(client, Options{Window: -1}); err == nil {
		t.Error("a negative limit is taken")
	}
}
