package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"coppice.dev/sdk/coppice"
	cached "coppice.dev/sdk/state"
)

const (
	// backMax is how long a follower may take until it is back.
	backMax = time.Minute
	// blockTime is between two blocks. A writer that does nothing else would take the processors from
	// the follower, which may share them.
	blockTime = 100 * time.Millisecond
	// accountsHeld is how many accounts it has read before.
	accountsHeld = 1000
)

// follow cuts the connection of a cache that follows the ledger, while blocks go on. It measures
// the time from the end of the cut until the cache has a version that was head by then.
func (b *bench) follow(ctx context.Context, near *far) error {
	behind, err := dial(b.endpoint, b.trust, 0)
	if err != nil {
		return err
	}
	defer func() { _ = behind.close() }()
	client, err := coppice.New(coppice.Options{Endpoints: []string{behind.wire.Address}, Trust: &b.trust})
	if err != nil {
		return err
	}
	defer func() { _ = client.Close() }()
	cache, err := cached.New(client, cached.Options{})
	if err != nil {
		return err
	}
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	go func() { end(cache.Follow(ctx)) }()
	writer, err := near.open(ctx, 0)
	if err != nil {
		return err
	}
	failed := make(chan error, 1)
	stop := make(chan struct{})
	go func() { failed <- b.writeUntil(ctx, writer, stop) }()
	line, err := b.cut(ctx, cache, writer, behind)
	close(stop)
	if err = errors.Join(err, <-failed); err != nil {
		return err
	}
	return line.print()
}

// writeUntil runs a block from time to time.
func (b *bench) writeUntil(ctx context.Context, o *own, stop chan struct{}) error {
	ticker := time.NewTicker(blockTime)
	defer ticker.Stop()
	for {
		select {
		case <-stop:
			return nil
		case <-ticker.C:
		}
		if _, err := o.run(ctx, b.mine.next(), byList); err != nil {
			return err
		}
	}
}

// frontier gives the newest version of a cache, and how many versions it has followed up to there.
func frontier(ctx context.Context, cache *cached.Cache) (version, followed uint64, err error) {
	for {
		before, err := cache.Head(ctx)
		if err != nil {
			return 0, 0, err
		}
		followed = cache.Metrics().Versions
		after, err := cache.Head(ctx)
		if err != nil || after.Stamp() == before.Stamp() && followed > 0 {
			return before.Stamp().Version, followed, err
		}
	}
}

// cut breaks the connection of a cache that holds some accounts.
func (b *bench) cut(ctx context.Context, cache *cached.Cache, writer *own, behind *far) (*line, error) {
	version, followed, err := frontier(ctx, cache)
	if err != nil {
		return nil, err
	}
	var keys [][]byte
	for i := range accountsHeld {
		keys = append(keys, accountKey(b.world.account(i)))
	}
	view, err := cache.Head(ctx)
	if err == nil {
		err = view.Prefetch(ctx, keys)
	}
	if err != nil {
		return nil, err
	}
	before := cache.Metrics()
	behind.wire.Cut()
	if err := pause(ctx, b.cutFor); err != nil {
		return nil, err
	}
	_, head := writer.states.Head()
	behind.wire.Mend()
	began := time.Now()
	for cache.Metrics().Versions < followed+head.Version-version {
		if time.Since(began) > backMax {
			return nil, fmt.Errorf("the cache is not back in %v", backMax)
		}
		if err := pause(ctx, time.Millisecond); err != nil {
			return nil, err
		}
	}
	took := time.Since(began)
	missed := cache.Metrics().Misses
	now, err := cache.Head(ctx)
	if err != nil {
		return nil, err
	}
	for _, key := range keys {
		if _, err := now.Get(ctx, key); err != nil {
			return nil, err
		}
	}
	after := cache.Metrics()
	drops := after.Drops - before.Drops
	return &line{
		Workload: "C", Side: "coppice", Mode: "cut", Seconds: b.cutFor.Seconds(), BackMs: ms(took),
		Versions: head.Version - version, Drops: &drops,
		HitRatio: 1 - float64(after.Misses-missed)/accountsHeld,
	}, nil
}

func pause(ctx context.Context, length time.Duration) error {
	select {
	case <-time.After(length):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
