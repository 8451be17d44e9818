package main

import (
	"context"
	"math/rand/v2"
	"time"

	"coppice.dev/sdk/coppice"
)

// lookBack reads an account and four of its slots with a proof, many blocks back and at head.
func (b *bench) lookBack(ctx context.Context, near *far) error {
	writer, err := near.open(ctx, 0)
	if err != nil {
		return err
	}
	_, old := writer.states.Head()
	light := *b.mine
	light.transactions = 1
	for range b.back {
		if _, err := writer.run(ctx, light.next(), byList); err != nil {
			return err
		}
	}
	_, head := writer.states.Head()
	b.say("%d blocks of one transaction are behind the old state", b.back)
	lines := []*line{{Workload: "H", Side: "old"}, {Workload: "H", Side: "head"}}
	random := rand.New(rand.NewPCG(3, 4))
	stamps := []coppice.Stamp{old, head}
	for n := range b.reads {
		at := random.IntN(b.world.contracts)
		address := b.world.contract(at)
		keys := [][]byte{accountKey(address)}
		for range 4 {
			_, slot := b.world.slot(at + b.world.contracts*random.IntN(b.world.slots/b.world.contracts))
			keys = append(keys, slotKey(address, slot))
		}
		// The second read of the two finds more in caches.
		for _, i := range []int{n % 2, 1 - n%2} {
			began := time.Now()
			if _, err := near.client.BatchGet(ctx, keys, &coppice.Read{At: &stamps[i]}); err != nil {
				return err
			}
			lines[i].ReadMs = append(lines[i].ReadMs, ms(time.Since(began)))
		}
	}
	for _, l := range lines {
		l.Versions = head.Version - old.Version
		if err := l.print(); err != nil {
			return err
		}
	}
	return nil
}
