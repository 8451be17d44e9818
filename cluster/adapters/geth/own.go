package geth

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/state"
	"github.com/ethereum/go-ethereum/core/types"
	"github.com/ethereum/go-ethereum/triedb"

	"coppice.dev/sdk/coppice"
	cached "coppice.dev/sdk/state"
)

// ErrNotHead is found by errors.Is if a block is to be written on a state that is not the newest
// one. Such a state can only be read.
var ErrNotHead = errors.New("geth: only the newest state can be written on")

const (
	// ownStagesMax is how many roots are kept staged. The oldest one beyond that is discarded, and
	// staged again if its block is committed after all.
	ownStagesMax = 4
	// ownTries is how often a root is staged or finalized before its error counts.
	ownTries = 8
)

// OwnDatabase is a state.Database without Ethereum's tries. The root of a state is the state root
// of its version in the ledger, which the ledger computes by Stage. Commit finalizes that stage.
//
// A block is written on the newest state, or not at all. There is no state of a block that is not
// committed, so a block is decided before the next one runs. SetHead goes back to an old state. A
// root depends on the version and the epoch, so a block that runs again after that gets another
// root.
//
// The ledger belongs to the chain alone. Rules from Cancun on are required. StateDB.Copy and
// StateDB.StartPrefetcher are not available: the first panics once a root was asked for, and Commit
// refuses a block of the second. StateDB.IntermediateRoot is zero if the ledger did not answer, and
// Commit has the error.
type OwnDatabase struct {
	client  *coppice.Client
	options Options
	keys    keys
	cache   *cached.Cache
	// mutex is held while the chain moves, and while a root is looked up or staged.
	mutex sync.Mutex
	head  ownHead
	// doubtful tells that the head may have moved, or that the outcome of a write is unknown.
	doubtful bool
	// stages are the roots that are not committed, oldest first.
	stages []*ownStage
	// failed is why the last root could not be staged.
	failed error
}

// ownHead is the newest state.
type ownHead struct {
	// root is types.EmptyRootHash before the first block.
	root common.Hash
	// stamp is the present name of the newest version, and committed the one that it began with.
	stamp, committed coppice.Stamp
}

// ownStage is the state that a block leaves, before it is committed.
type ownStage struct {
	parent, root common.Hash
	// changes are those of the block, and values has the records of the root as well.
	changes, values map[string][]byte
	// stage is nil once the ledger may have lost it.
	stage *coppice.Stage
}

var _ state.Database = (*OwnDatabase)(nil)

// OpenOwn finds the chain in a ledger, or begins it. The client must trust a key. Options.Window
// has no effect. Options.Timeout bounds each root and each commit as well.
func OpenOwn(ctx context.Context, client *coppice.Client, options Options) (*OwnDatabase, error) {
	if err := options.fill(); err != nil {
		return nil, err
	}
	bounds := cached.Options{Bytes: options.CacheBytes, Timeout: options.Timeout}
	cache, err := cached.New(client, bounds)
	if err != nil {
		return nil, err
	}
	d := &OwnDatabase{client: client, options: options, keys: keys(options.Prefix), cache: cache}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d, d.reload(ctx)
}

// Head gives the root of the newest state and its version, as this process knows them. The root is
// types.EmptyRootHash before the first block.
func (d *OwnDatabase) Head() (root common.Hash, at coppice.Stamp) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	return d.head.root, d.head.stamp
}

// reload reads the head, and empties the cache. The lock is held.
func (d *OwnDatabase) reload(ctx context.Context) error {
	d.doubtful = true
	head, err := d.readHead(ctx)
	if err != nil {
		return err
	}
	d.head, d.doubtful = head, false
	d.cache.Begin(head.stamp)
	return nil
}

// readHead reads the newest header, which is under a signed checkpoint, and the record of the head
// in its version, which is proven.
func (d *OwnDatabase) readHead(ctx context.Context) (ownHead, error) {
	for range moveTries {
		grown, err := d.client.Grown(ctx)
		if err != nil {
			return ownHead{}, err
		}
		at := grown.Newest.Stamp()
		got, err := d.client.Get(ctx, d.keys.head(), &coppice.Read{At: &at})
		switch {
		case errors.Is(err, coppice.RolledBack):
			continue
		case err != nil:
			return ownHead{}, err
		case got.Record == nil:
			return ownHead{root: types.EmptyRootHash, stamp: at}, nil
		case len(got.Record.Value) != common.HashLength:
			return ownHead{}, fmt.Errorf("geth: the record of the head has %d bytes", len(got.Record.Value))
		case got.Record.LastChanged.Version != at.Version:
			return ownHead{}, fmt.Errorf("%w: %s is not the version of its newest block", ErrMoved, at)
		}
		root := common.Hash(grown.Newest.StateRoot)
		return ownHead{root: root, stamp: at, committed: got.Record.LastChanged}, nil
	}
	return ownHead{}, fmt.Errorf("%w while its head was read", ErrMoved)
}

// settle reads the head again if it is in doubt. The lock is held.
func (d *OwnDatabase) settle(ctx context.Context) error {
	if !d.doubtful {
		return nil
	}
	return d.reload(ctx)
}

func (d *OwnDatabase) limited() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), d.options.Timeout)
}

// records gives what a block on the head leaves: its changes, and two records. One has the root of
// its parent. The other names the version of the parent by that root, which is not known before.
func (d *OwnDatabase) records(changes map[string][]byte) map[string][]byte {
	values := maps.Clone(changes)
	values[string(d.keys.head())] = d.head.root[:]
	if d.head.root != types.EmptyRootHash {
		values[string(d.keys.root(d.head.root))] = encodeStamp(d.head.committed)
	}
	return values
}

// root stages what a block changes, and gives the root; zero if that failed.
func (d *OwnDatabase) root(parent common.Hash, changes map[string][]byte) common.Hash {
	ctx, cancel := d.limited()
	defer cancel()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	s := &ownStage{parent: parent, changes: maps.Clone(changes)}
	if d.failed = d.prepare(ctx, s); d.failed != nil {
		return common.Hash{}
	}
	d.stages = append(d.stages, s)
	if len(d.stages) > ownStagesMax {
		d.discard(ctx, d.stages[0])
		d.stages = d.stages[1:]
	}
	return s.root
}

// discard frees a stage. The ledger does so by itself after a while, so an error does not matter.
func (d *OwnDatabase) discard(ctx context.Context, s *ownStage) {
	if s.stage != nil {
		_, _ = d.client.Discard(ctx, s.stage)
		s.stage = nil
	}
}

// prepare stages a state on the head, again and again if answers are lost. The lock is held.
func (d *OwnDatabase) prepare(ctx context.Context, s *ownStage) (err error) {
	for range ownTries {
		if err := d.settle(ctx); err != nil {
			return err
		}
		if d.head.root != s.parent {
			return fmt.Errorf("%w: its head is %s, and the block is on %s", ErrMoved, d.head.root, s.parent)
		}
		s.values = d.records(s.changes)
		s.stage, err = d.client.Stage(ctx, batchOf(s.values).Exclusive().ExpectHead(d.head.stamp), nil)
		switch {
		case err == nil:
			root := common.Hash(s.stage.StateRoot)
			if s.root != (common.Hash{}) && s.root != root {
				d.discard(ctx, s)
				return fmt.Errorf("%w: the block leads to %s now, and led to %s", ErrMoved, root, s.root)
			}
			s.root = root
			return nil
		case errors.Is(err, coppice.PreconditionFailed):
			d.doubtful = true
		case !repeated(err):
			return err
		}
	}
	return err
}

// repeated tells whether a call is made again after an error: the ledger has lost the stage, or it
// was away.
func repeated(err error) bool {
	final := errors.Is(err, coppice.ErrUntrusted) || errors.Is(err, context.Canceled) ||
		errors.Is(err, context.DeadlineExceeded)
	return errors.Is(err, coppice.StageLost) || coppice.OutcomeUnknown(err) && !final
}

// finalize commits a stage. Only a stage on head is committed, and a state is never written twice:
// if the outcome is unknown, the head has either its root or that of its parent. The lock is held.
func (d *OwnDatabase) finalize(ctx context.Context, s *ownStage) (err error) {
	for range ownTries {
		if err := d.settle(ctx); err != nil {
			return err
		}
		if d.head.root == s.root {
			return nil
		}
		if s.stage == nil {
			if err := d.prepare(ctx, s); err != nil {
				return err
			}
		}
		var committed *coppice.Committed
		if committed, err = d.client.Finalize(ctx, s.stage); err == nil {
			d.head = ownHead{root: s.root, stamp: committed.Stamp, committed: committed.Stamp}
			return d.cache.Apply(committed.Stamp, s.values)
		}
		d.doubtful, s.stage = true, nil
		if !repeated(err) && !errors.Is(err, coppice.PreconditionFailed) {
			return err
		}
	}
	return err
}

// Commit finalizes the stage of a block's root. If the ledger has lost it, the state is staged
// again. It is an error if the root is another one then: run the block again.
func (d *OwnDatabase) Commit(update *state.StateUpdate) error {
	if update.Empty() {
		return nil
	}
	if update.OriginRoot != types.EmptyRootHash && update.StorageKeyType != state.StorageKeyPlain {
		return errors.New("geth: the rules are older than Cancun, and could empty a whole storage")
	}
	ctx, cancel := d.limited()
	defer cancel()
	d.mutex.Lock()
	defer d.mutex.Unlock()
	at := slices.IndexFunc(d.stages, func(s *ownStage) bool {
		return s.root == update.Root && s.parent == update.OriginRoot
	})
	if at < 0 {
		missing := fmt.Errorf("geth: block %d has no staged root %s", update.BlockNumber, update.Root)
		return errors.Join(missing, d.failed)
	}
	staged := d.stages[at]
	for key, value := range UpdateOf(update).changes(d.keys) {
		if held, is := staged.changes[key]; !is || string(held) != string(value) {
			return fmt.Errorf("geth: block %d has not staged %x", update.BlockNumber, key)
		}
	}
	if err := d.finalize(ctx, staged); err != nil {
		return fmt.Errorf("geth: block %d: %w", update.BlockNumber, err)
	}
	// A commit ends all other stages.
	d.stages = nil
	return nil
}

// At gives the state with a root. It stays readable as long as it stands, and is not pruned.
func (d *OwnDatabase) At(ctx context.Context, root common.Hash) (*View, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	at, err := d.find(ctx, root)
	if err != nil {
		return nil, err
	}
	if root == types.EmptyRootHash {
		return &View{keys: d.keys}, nil
	}
	// A proof at head has shown that the version stands.
	return &View{keys: d.keys, view: d.cache.AtProven(at)}, nil
}

// find gives the version of a root, by a read at head. The lock is held.
func (d *OwnDatabase) find(ctx context.Context, root common.Hash) (coppice.Stamp, error) {
	if err := d.settle(ctx); err != nil {
		return coppice.Stamp{}, err
	}
	if root == types.EmptyRootHash {
		return coppice.Stamp{}, nil
	}
	for range moveTries {
		got, err := d.client.Get(ctx, d.keys.root(root), nil)
		if err != nil {
			return coppice.Stamp{}, err
		}
		if got.ReadAt.Version != d.head.stamp.Version || got.ReadAt.Epoch > d.head.stamp.Epoch {
			if err := d.reload(ctx); err != nil {
				return coppice.Stamp{}, err
			}
			continue
		}
		if root == d.head.root {
			return d.head.committed, nil
		}
		if got.Record == nil {
			return coppice.Stamp{}, fmt.Errorf("%w: %s", ErrUnknownRoot, root)
		}
		return decodeStamp(got.Record.Value)
	}
	return coppice.Stamp{}, fmt.Errorf("%w while a root was looked up", ErrMoved)
}

// SetHead makes an older state the newest one again. The blocks above it are rolled back, which the
// root log tells for good.
func (d *OwnDatabase) SetHead(ctx context.Context, root common.Hash) error {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	at, err := d.find(ctx, root)
	if err != nil || root == d.head.root {
		return err
	}
	if root == types.EmptyRootHash {
		return fmt.Errorf("%w: %s is the state before the first block", ErrUnknownRoot, root)
	}
	expected := d.head.stamp
	order := coppice.Order{
		Principal: d.options.Principal, Reason: fmt.Sprintf("back to the state %s", root),
		ExpectedHead: &expected,
	}
	done, err := d.client.Rollback(ctx, at.Version, order)
	if err != nil {
		d.doubtful = true
		// The head shows whether the rollback happened.
		if coppice.OutcomeUnknown(err) && d.settle(ctx) == nil && d.head.root == root {
			return nil
		}
		return err
	}
	d.cache.RolledBack(done.Head)
	d.head, d.stages = ownHead{root: root, stamp: done.Head, committed: at}, nil
	return nil
}

// Metrics are those of the cache.
func (d *OwnDatabase) Metrics() cached.Metrics { return d.cache.Metrics() }

// Type is that of a database whose accounts have storages of their own: the other one needs rules
// of binary tries.
func (d *OwnDatabase) Type() state.DatabaseType { return state.TypeMPT }

// Reader gives the state of a root.
func (d *OwnDatabase) Reader(root common.Hash) (state.Reader, error) {
	ctx, cancel := d.limited()
	defer cancel()
	view, err := d.At(ctx, root)
	if err != nil {
		return nil, err
	}
	return view, nil
}

// Iteratee is not available: the ledger has no addresses, but hashes of them.
func (d *OwnDatabase) Iteratee(common.Hash) (state.Iteratee, error) { return nil, errOwn }

// TrieDB is nil: there are no tries.
func (d *OwnDatabase) TrieDB() *triedb.Database { return nil }

// OpenTrie gives what collects the changes of a block on the newest state.
func (d *OwnDatabase) OpenTrie(root common.Hash) (state.Trie, error) {
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if root != d.head.root {
		return nil, fmt.Errorf("%w: that is %s, and not %s", ErrNotHead, d.head.root, root)
	}
	return &ownTrie{database: d, parent: root, changes: make(map[string][]byte)}, nil
}

// OpenStorageTrie gives what collects the changes of an account's storage.
func (d *OwnDatabase) OpenStorageTrie(
	_ common.Hash, _ common.Address, _ common.Hash, accounts state.Trie,
) (state.Trie, error) {
	on, is := accounts.(*ownTrie)
	if !is {
		return nil, errOwn
	}
	return ownStorage{on}, nil
}

// encodeStamp makes the value of the record of a root.
func encodeStamp(at coppice.Stamp) []byte {
	return binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, at.Epoch), at.Version)
}

func decodeStamp(value []byte) (coppice.Stamp, error) {
	if len(value) != 16 {
		return coppice.Stamp{}, fmt.Errorf("geth: the record of a root has %d bytes", len(value))
	}
	return coppice.Stamp{
		Epoch: binary.BigEndian.Uint64(value), Version: binary.BigEndian.Uint64(value[8:]),
	}, nil
}
