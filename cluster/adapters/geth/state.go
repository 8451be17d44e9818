package geth

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/common"
	"github.com/ethereum/go-ethereum/core/types"

	"coppice.dev/sdk/coppice"
	cached "coppice.dev/sdk/state"
)

// ErrUnknownRoot is found by errors.Is if the ledger has no state of a root: it was never written,
// is one of a side chain, or was reorganized away.
var ErrUnknownRoot = errors.New("geth: the ledger has no state of this root")

// ErrMoved is found by errors.Is if another writer has changed the head of the chain in the ledger.
// Head then tells where the ledger is.
var ErrMoved = errors.New("geth: another writer has moved the chain")

const (
	defaultCache   = 256 << 20
	defaultWindow  = 128
	defaultTimeout = 30 * time.Second
	prefixMax      = 128
	// moveTries is how often the ledger is read while others move it.
	moveTries = 5
)

// Options are the settings of a State.
type Options struct {
	// Prefix begins all keys of the chain: 1 to 128 bytes, the first of them above 0. By default it is
	// "eth/".
	Prefix string
	// CacheBytes bounds the memory for cached state: 256 MiB by default.
	CacheBytes int
	// Window is how many blocks are held that may become the chain: 128 by default. A reorganization
	// can't reach further back.
	Window int
	// Timeout bounds each read of a view, which has no context: 30 s by default.
	Timeout time.Duration
	// Principal stands in the root log behind each rollback: "geth" by default.
	Principal string
}

func (o *Options) fill() error {
	if o.Prefix == "" {
		o.Prefix = "eth/"
	}
	if o.CacheBytes == 0 {
		o.CacheBytes = defaultCache
	}
	if o.Window == 0 {
		o.Window = defaultWindow
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Principal == "" {
		o.Principal = "geth"
	}
	if len(o.Prefix) > prefixMax || o.Prefix[0] == 0 || after([]byte(o.Prefix)) == nil {
		return errors.New("geth: a prefix has 1 to 128 bytes, does not begin with 0, and is not 255 alone")
	}
	if o.CacheBytes < 0 || o.Window < 0 || o.Timeout < 0 {
		return errors.New("geth: a limit is negative")
	}
	return nil
}

// Head is the newest block of the chain in the ledger, of those that changed anything.
type Head struct {
	// Root is types.EmptyRootHash before the first block.
	Root   common.Hash
	Number uint64
	// Stamp is the ledger's version.
	Stamp coppice.Stamp
}

// State is the state of a chain in a ledger. Its methods may be called from several goroutines.
type State struct {
	client  *coppice.Client
	options Options
	keys    keys
	cache   *cached.Cache
	// mutex is held while the chain moves, and while a root is looked up.
	mutex   sync.Mutex
	head    Head
	session *coppice.Session
	// doubtful tells that the outcome of a write is unknown.
	doubtful bool
	// window has the newest updates by their roots, oldest first in order.
	window map[common.Hash]*block
	order  []common.Hash
}

// block is an update, as it is written.
type block struct {
	parent, root common.Hash
	number       uint64
	values       map[string][]byte
}

// Open finds the chain in a ledger, or begins it.
func Open(ctx context.Context, client *coppice.Client, options Options) (*State, error) {
	if err := options.fill(); err != nil {
		return nil, err
	}
	cache, err := cached.New(client, cached.Options{Bytes: options.CacheBytes, Timeout: options.Timeout})
	if err != nil {
		return nil, err
	}
	s := &State{
		client: client, options: options, keys: keys(options.Prefix), cache: cache,
		window: make(map[common.Hash]*block),
	}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s, s.reload(ctx)
}

// Head is the newest block of the chain in the ledger, as this process knows it.
func (s *State) Head() Head {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.head
}

// reload reads the head, and empties the cache. The lock is held.
func (s *State) reload(ctx context.Context) error {
	s.doubtful = true
	head, err := s.readHead(ctx)
	if err != nil {
		return err
	}
	if s.session, err = s.client.OpenSession(ctx, coppice.NewSessionID()); err != nil {
		return err
	}
	s.head, s.doubtful = head, false
	s.cache.Begin(head.Stamp)
	return nil
}

// readHead reads the record of the head, which is proven. A proof names a version by the epoch in
// which it was committed. A commit has to expect the present epoch, which is a coordinator's word.
// If it is wrong, commits are refused.
func (s *State) readHead(ctx context.Context) (Head, error) {
	for range moveTries {
		got, err := s.client.Get(ctx, s.keys.head(), nil)
		if err != nil {
			return Head{}, err
		}
		now, err := s.client.Head(ctx)
		if err != nil {
			return Head{}, err
		}
		if now.Stamp.Version != got.ReadAt.Version || now.Stamp.Epoch < got.ReadAt.Epoch {
			continue
		}
		head := Head{Root: types.EmptyRootHash, Stamp: now.Stamp}
		if got.Record != nil {
			head.Number, head.Root, err = decodeBlock(got.Record.Value)
		}
		return head, err
	}
	return Head{}, fmt.Errorf("%w while its head was read", ErrMoved)
}

// settle reads the head again if the outcome of a write is unknown. The lock is held.
func (s *State) settle(ctx context.Context) error {
	if !s.doubtful {
		return nil
	}
	return s.reload(ctx)
}

// Apply takes a block. If the block continues the head, the ledger has it when Apply returns.
// Otherwise it is a block of a side chain, and is held until Follow or SetHead makes that side
// chain the chain.
func (s *State) Apply(ctx context.Context, update *Update) error {
	if update.Parent == update.Root {
		return nil
	}
	b := &block{parent: update.Parent, root: update.Root, number: update.Number, values: update.values(s.keys)}
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.settle(ctx); err != nil {
		return err
	}
	s.hold(b)
	if b.parent != s.head.Root {
		return nil
	}
	err := s.commit(ctx, b)
	if !errors.Is(err, coppice.PreconditionFailed) {
		return err
	}
	// Something else was written. If the chain stands where it stood, that does not matter.
	if err := s.reload(ctx); err != nil {
		return err
	}
	switch s.head.Root {
	case b.root:
		return nil
	case b.parent:
		return s.commit(ctx, b)
	}
	return fmt.Errorf("%w: its head is block %d, %s", ErrMoved, s.head.Number, s.head.Root)
}

// hold keeps a block for a reorganization.
func (s *State) hold(b *block) {
	if s.window[b.root] != nil {
		s.order = slices.DeleteFunc(s.order, func(root common.Hash) bool { return root == b.root })
	}
	s.window[b.root], s.order = b, append(s.order, b.root)
	for len(s.order) > s.options.Window {
		delete(s.window, s.order[0])
		s.order = s.order[1:]
	}
}

// commit writes a block that continues the head, as a version of its own. After an error, the head
// is read again before it is used.
func (s *State) commit(ctx context.Context, b *block) error {
	batch := batchOf(b.values).Exclusive().ExpectHead(s.head.Stamp)
	committed, err := s.session.Commit(ctx, batch)
	if err != nil {
		s.doubtful = true
		return err
	}
	s.head = Head{Root: b.root, Number: b.number, Stamp: committed.Stamp}
	return s.cache.Apply(committed.Stamp, b.values)
}

// Follow makes sure that the chain in the ledger has the block with a state root, which is the head
// of a node. It does nothing if the ledger has the block, at the head or below it: a node's notice
// may be late, and a node may run blocks before it chooses them. Otherwise it does what SetHead
// does.
func (s *State) Follow(ctx context.Context, root common.Hash) error {
	return s.move(ctx, root, true)
}

// SetHead makes the block with a state root the head of the chain. Blocks that are not below it are
// rolled back, and those on the way to it are written.
func (s *State) SetHead(ctx context.Context, root common.Hash) error {
	return s.move(ctx, root, false)
}

func (s *State) move(ctx context.Context, root common.Hash, onlyForward bool) error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.settle(ctx); err != nil {
		return err
	}
	if root == s.head.Root {
		return nil
	}
	base, path, err := s.path(ctx, root)
	if err != nil || onlyForward && len(path) == 0 {
		return err
	}
	if base.Root != s.head.Root {
		if err := s.rollback(ctx, base); err != nil {
			return err
		}
	}
	for i := len(path) - 1; i >= 0; i-- {
		if err := s.commit(ctx, path[i]); err != nil {
			return err
		}
	}
	return nil
}

// path gives the newest block of the ledger below a root, and the blocks from there, newest first.
func (s *State) path(ctx context.Context, root common.Hash) (base Head, path []*block, err error) {
	for at := root; ; {
		base, err := s.find(ctx, at)
		if !errors.Is(err, ErrUnknownRoot) {
			return base, path, err
		}
		held := s.window[at]
		if held == nil || len(path) > len(s.order) {
			return Head{}, nil, fmt.Errorf("%w: %s, and no way to it is held", ErrUnknownRoot, root)
		}
		path = append(path, held)
		at = held.parent
	}
}

// find looks a root up at head.
func (s *State) find(ctx context.Context, root common.Hash) (Head, error) {
	if root == types.EmptyRootHash {
		return Head{}, fmt.Errorf("%w: %s is the state before the first block", ErrUnknownRoot, root)
	}
	for range moveTries {
		got, err := s.client.Get(ctx, s.keys.root(root), nil)
		if err != nil {
			return Head{}, err
		}
		if got.ReadAt.Version != s.head.Stamp.Version || got.ReadAt.Epoch > s.head.Stamp.Epoch {
			// Something else was written, or rolled back: nothing that was held is sure to stand.
			if err := s.reload(ctx); err != nil {
				return Head{}, err
			}
			continue
		}
		if got.Record == nil {
			return Head{}, fmt.Errorf("%w: %s", ErrUnknownRoot, root)
		}
		number, _, err := decodeBlock(got.Record.Value)
		return Head{Root: root, Number: number, Stamp: got.Record.LastChanged}, err
	}
	return Head{}, fmt.Errorf("%w while a root was looked up", ErrMoved)
}

// rollback makes an older block of the ledger head again.
func (s *State) rollback(ctx context.Context, base Head) error {
	expected := s.head.Stamp
	order := coppice.Order{
		Principal: s.options.Principal, Reason: fmt.Sprintf("reorganization to block %d, state %s", base.Number, base.Root),
		ExpectedHead: &expected,
	}
	done, err := s.client.Rollback(ctx, base.Stamp.Version, order)
	if err != nil {
		s.doubtful = true
		if !coppice.OutcomeUnknown(err) {
			return err
		}
		// The head shows whether the rollback happened.
		if failed := s.reload(ctx); failed != nil || s.head.Root == base.Root {
			return failed
		}
		return err
	}
	s.cache.RolledBack(done.Head)
	s.head = Head{Root: base.Root, Number: base.Number, Stamp: done.Head}
	return nil
}

// At gives the state with a root. It stays readable as long as its block stands, and is not pruned.
func (s *State) At(ctx context.Context, root common.Hash) (*View, error) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	if root == types.EmptyRootHash {
		return &View{keys: s.keys}, nil
	}
	found, err := s.find(ctx, root)
	if err != nil {
		return nil, err
	}
	// A proof at head has shown that the version stands.
	return &View{keys: s.keys, view: s.cache.AtProven(found.Stamp)}, nil
}

// Metrics are those of the cache.
func (s *State) Metrics() cached.Metrics { return s.cache.Metrics() }
