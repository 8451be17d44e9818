package main

import (
	"context"
	"fmt"
	"time"
)

// runLocal measures blocks on go-ethereum's own tries.
func (b *bench) runLocal(delay float64, mode string, keepsState bool) error {
	l := &line{Workload: "E", Side: "geth", Mode: mode, DelayMs: delay}
	for range b.blocks {
		made := b.theirs.next()
		took, err := b.here.run(made, keepsState)
		if err != nil {
			return err
		}
		l.add(made, took)
	}
	return l.print()
}

// runLedger measures blocks on the ledger.
func (b *bench) runLedger(ctx context.Context, o *own, count int, mode string, l *line) error {
	before, reads := o.states.Metrics(), 0
	for range count {
		made := b.mine.next()
		took, err := o.run(ctx, made, mode)
		if err != nil {
			return err
		}
		l.add(made, took)
		reads += made.reads
	}
	after := o.states.Metrics()
	l.HitRatio = max(0, 1-float64(after.ProofsChecked-before.ProofsChecked)/float64(reads))
	hits, misses := after.Hits-before.Hits, after.Misses-before.Misses
	l.ServedRatio = float64(hits) / float64(max(1, hits+misses))
	return nil
}

// measure runs blocks of all kinds with the ledger at a distance. Blocks on the ledger first fill
// the cache for a while.
func (b *bench) measure(ctx context.Context, delay float64) error {
	far, err := dial(b.endpoint, b.trust, time.Duration(delay*float64(time.Millisecond)))
	if err != nil {
		return err
	}
	defer func() { _ = far.close() }()
	o, err := far.open(ctx, 0)
	if err != nil {
		return err
	}
	clear(b.mine.seen)
	warmed := 0
	for began := time.Now(); time.Since(began) < b.warm; warmed++ {
		if _, err := o.run(ctx, b.mine.next(), byList); err != nil {
			return err
		}
	}
	b.say("%d blocks with a round trip of %g ms have filled the cache", warmed, delay)
	if err := b.runLocal(delay, "state on disk", true); err != nil {
		return err
	}
	for _, mode := range []string{byList, bySpeculation, byNothing} {
		l := &line{Workload: "E", Side: "coppice", Mode: mode, DelayMs: delay}
		if err := b.runLedger(ctx, o, b.blocks, mode, l); err != nil {
			return fmt.Errorf("%s: %w", mode, err)
		}
		if err := l.print(); err != nil {
			return err
		}
	}
	// The cache began once, when the chain was opened.
	drops := o.states.Metrics().Drops - 1
	kept := &line{
		Workload: "C", Side: "coppice", Mode: "drops", DelayMs: delay, Seconds: b.warm.Seconds(), Drops: &drops,
	}
	if err := kept.print(); err != nil {
		return err
	}
	bare, err := far.open(ctx, 1)
	if err != nil {
		return err
	}
	l := &line{Workload: "E", Side: "coppice", Mode: "none", DelayMs: delay}
	if err := b.runLedger(ctx, bare, b.uncached, byNothing, l); err != nil {
		return err
	}
	if err := l.print(); err != nil {
		return err
	}
	return b.runLocal(delay, "block on disk", false)
}
