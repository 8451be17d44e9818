package geth

import (
	"context"
	"errors"
	"fmt"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"coppice.dev/sdk/coppice"
	cached "coppice.dev/sdk/state"
)

// Follower reads the chain that a State writes, in another program. Run keeps its cache by the
// ledger's stream of changes, each of which is checked. So a new block costs no round trips for
// what is cached already, and a reorganization takes away what it undid.
type Follower struct {
	client *coppice.Client
	keys   keys
	cache  *cached.Cache
}

// NewFollower makes a follower with an empty cache. Of the options, it uses Prefix, CacheBytes and
// Timeout. The client must trust a key.
func NewFollower(client *coppice.Client, options Options) (*Follower, error) {
	if err := options.fill(); err != nil {
		return nil, err
	}
	bounds := cached.Options{Bytes: options.CacheBytes, Timeout: options.Timeout}
	cache, err := cached.New(client, bounds)
	if err != nil {
		return nil, err
	}
	return &Follower{client: client, keys: keys(options.Prefix), cache: cache}, nil
}

// Run follows the ledger until the context ends, through lost connections and new leaders. If the
// ledger contradicts itself, it ends with a state.Evidence, and reads are refused.
func (f *Follower) Run(ctx context.Context) error { return f.cache.Follow(ctx) }

// Head gives the newest block that the follower knows, and the state behind it. It waits for the
// first one.
func (f *Follower) Head(ctx context.Context) (Head, *View, error) {
	var failed error
	for range moveTries {
		view, err := f.cache.Head(ctx)
		if err != nil {
			return Head{}, nil, err
		}
		value, err := view.Get(ctx, f.keys.head())
		if errors.Is(err, coppice.RolledBack) || errors.Is(err, coppice.Pruned) {
			failed = err
			continue
		}
		if err != nil {
			return Head{}, nil, err
		}
		head := Head{Root: types.EmptyRootHash, Stamp: view.Stamp()}
		if value != nil {
			head.Number, head.Root, err = decodeBlock(value)
		}
		return head, &View{keys: f.keys, view: view}, err
	}
	return Head{}, nil, fmt.Errorf("%w while its head was read: %w", ErrMoved, failed)
}

// At gives the state with a root, which one read at the ledger's head looks up.
func (f *Follower) At(ctx context.Context, root common.Hash) (*View, error) {
	if root == types.EmptyRootHash {
		return &View{keys: f.keys}, nil
	}
	got, err := f.client.Get(ctx, f.keys.root(root), nil)
	if err != nil {
		return nil, err
	}
	if got.Record == nil {
		return nil, fmt.Errorf("%w: %s", ErrUnknownRoot, root)
	}
	return &View{keys: f.keys, view: f.cache.AtProven(got.Record.LastChanged)}, nil
}

// Metrics counts what the cache did.
func (f *Follower) Metrics() cached.Metrics { return f.cache.Metrics() }
