package geth

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/ethereum/go-ethereum/ethdb"

	"coppice.dev/sdk/coppice"
)

// ErrNotFound is the error of Store.Get for a key without a value.
var ErrNotFound = errors.New("geth: there is no such key")

var errClosed = errors.New("geth: the store is closed")

// rangeKeysMax is how many keys one deletion of a range takes.
const rangeKeysMax = 10_000

// Store is an ethdb.KeyValueStore in a ledger, for tools and for data besides the state. Each
// write, and each batch, is one commit, which is durable when the call returns. Reads are proven.
//
// Much of go-ethereum takes an error of a read for a missing key. So a node must not use this store
// if its ledger may be unreachable. The store is for programs that end at the first error.
type Store struct {
	client  *coppice.Client
	prefix  []byte
	timeout time.Duration
	// mutex is held by one write at a time.
	mutex   sync.Mutex
	session *coppice.Session
	closed  chan struct{}
}

var _ ethdb.KeyValueStore = (*Store)(nil)

// NewStore makes a store of the keys with a prefix (Options.Prefix). Options.Timeout bounds each
// call.
func NewStore(client *coppice.Client, options Options) (*Store, error) {
	if err := options.fill(); err != nil {
		return nil, err
	}
	return &Store{
		client: client, prefix: []byte(options.Prefix), timeout: options.Timeout, closed: make(chan struct{}),
	}, nil
}

// context gives a context with a time limit. It fails if the store is closed.
func (s *Store) context() (context.Context, context.CancelFunc, error) {
	select {
	case <-s.closed:
		return nil, nil, errClosed
	default:
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	return ctx, cancel, nil
}

func (s *Store) key(key []byte) []byte { return append(bytes.Clone(s.prefix), key...) }

// record reads a key; nil if it has no value.
func (s *Store) record(key []byte) (*coppice.Record, error) {
	ctx, cancel, err := s.context()
	if err != nil {
		return nil, err
	}
	defer cancel()
	got, err := s.client.Get(ctx, s.key(key), nil)
	if err != nil {
		return nil, err
	}
	return got.Record, nil
}

// Has tells whether a key has a value.
func (s *Store) Has(key []byte) (bool, error) {
	record, err := s.record(key)
	return record != nil, err
}

// Get reads a key. The error is ErrNotFound if it has no value.
func (s *Store) Get(key []byte) ([]byte, error) {
	record, err := s.record(key)
	if err != nil {
		return nil, err
	}
	if record == nil {
		return nil, ErrNotFound
	}
	return append([]byte{}, record.Value...), nil
}

// Put gives a key a value.
func (s *Store) Put(key, value []byte) error {
	return s.write([]operation{{key: key, value: append([]byte{}, value...)}})
}

// Delete takes the value of a key away.
func (s *Store) Delete(key []byte) error { return s.write([]operation{{key: key}}) }

// DeleteRange deletes the keys from start on that are below end. It deletes all at once, or none
// with the error ethdb.ErrTooManyKeys if there are more than 10,000. Nil is no bound.
func (s *Store) DeleteRange(start, end []byte) error {
	return s.write([]operation{{isRange: true, key: start, value: end}})
}

// operation is a put, a delete (a nil value), or the deletion of a range: from key, and below
// value.
type operation struct {
	isRange    bool
	key, value []byte
}

// write commits operations as if they were done one after the other.
func (s *Store) write(operations []operation) error {
	ctx, cancel, err := s.context()
	if err != nil {
		return err
	}
	defer cancel()
	s.mutex.Lock()
	defer s.mutex.Unlock()
	values := make(map[string][]byte, len(operations))
	for _, o := range operations {
		if o.isRange {
			if err := s.clear(ctx, o.key, o.value, values); err != nil {
				return err
			}
			continue
		}
		values[string(s.key(o.key))] = o.value
	}
	if len(values) == 0 {
		return nil
	}
	return s.commit(ctx, values)
}

// clear deletes the keys of a range: those of the ledger, and those that earlier operations have
// put.
func (s *Store) clear(ctx context.Context, start, end []byte, values map[string][]byte) error {
	low, high := s.bounds(start, end)
	if bytes.Compare(low, high) >= 0 {
		return nil
	}
	for key := range values {
		if key >= string(low) && key < string(high) {
			values[key] = nil
		}
	}
	count := 0
	for record, err := range s.client.Range(ctx, low, high, nil) {
		if err != nil {
			return err
		}
		if count++; count > rangeKeysMax {
			return fmt.Errorf("geth: %w: there are more than %d", ethdb.ErrTooManyKeys, rangeKeysMax)
		}
		values[string(record.Key)] = nil
	}
	return nil
}

// bounds gives the range of the ledger's keys.
func (s *Store) bounds(start, end []byte) (low, high []byte) {
	if end == nil {
		return s.key(start), after(s.prefix)
	}
	return s.key(start), s.key(end)
}

// after is the smallest key above all that begin with a prefix; nil if there is none.
func after(prefix []byte) []byte {
	for at := len(prefix) - 1; at >= 0; at-- {
		if prefix[at] < 0xff {
			end := bytes.Clone(prefix[:at+1])
			end[at]++
			return end
		}
	}
	return nil
}

// commit writes values in one batch, which is sent again until its outcome is known. The lock is
// held.
func (s *Store) commit(ctx context.Context, values map[string][]byte) (err error) {
	if s.session == nil {
		if s.session, err = s.client.OpenSession(ctx, coppice.NewSessionID()); err != nil {
			return err
		}
	}
	if _, err = s.session.Commit(ctx, batchOf(values)); err != nil {
		// The batch may still be applied under its number, so another batch must not get that number.
		s.session = nil
	}
	return err
}

// Stat gives nothing. Use `coppice status`.
func (s *Store) Stat() (string, error) { return "", nil }

// SyncKeyValue does nothing: what was written is durable.
func (s *Store) SyncKeyValue() error { return nil }

// Compact does nothing: the ledger merges by itself.
func (s *Store) Compact(_, _ []byte) error { return nil }

// Close ends the store. The client stays open.
func (s *Store) Close() error {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	select {
	case <-s.closed:
	default:
		close(s.closed)
	}
	return nil
}

// NewBatch makes a batch, which is written as a whole.
func (s *Store) NewBatch() ethdb.Batch { return &storeBatch{store: s} }

// NewBatchWithSize makes a batch.
func (s *Store) NewBatchWithSize(int) ethdb.Batch { return s.NewBatch() }

type storeBatch struct {
	store      *Store
	operations []operation
	size       int
}

func (b *storeBatch) add(o operation) error {
	b.operations = append(b.operations, o)
	b.size += len(o.key) + len(o.value)
	return nil
}

func (b *storeBatch) Put(key, value []byte) error {
	return b.add(operation{key: bytes.Clone(key), value: append([]byte{}, value...)})
}

func (b *storeBatch) Delete(key []byte) error { return b.add(operation{key: bytes.Clone(key)}) }

func (b *storeBatch) DeleteRange(start, end []byte) error {
	return b.add(operation{isRange: true, key: bytes.Clone(start), value: bytes.Clone(end)})
}

func (b *storeBatch) ValueSize() int { return b.size }

func (b *storeBatch) Write() error { return b.store.write(b.operations) }

func (b *storeBatch) Reset() { b.operations, b.size = nil, 0 }

func (b *storeBatch) Close() { b.Reset() }

func (b *storeBatch) Replay(to ethdb.KeyValueWriter) error {
	for _, o := range b.operations {
		if err := o.replay(to); err != nil {
			return err
		}
	}
	return nil
}

func (o *operation) replay(to ethdb.KeyValueWriter) error {
	switch {
	case !o.isRange && o.value != nil:
		return to.Put(o.key, o.value)
	case !o.isRange:
		return to.Delete(o.key)
	}
	ranges, can := to.(ethdb.KeyValueRangeDeleter)
	if !can {
		return errors.New("geth: the batch deletes a range, and its target can't")
	}
	return ranges.DeleteRange(o.key, o.value)
}

// NewIterator gives the keys of the present head that begin with a prefix, from prefix + start on.
func (s *Store) NewIterator(prefix, start []byte) ethdb.Iterator {
	// The iterator lives as long as it is used, so each page has its time limit from the client.
	ctx, cancel := context.WithCancel(context.Background())
	select {
	case <-s.closed:
		return &storeIterator{err: errClosed, release: cancel}
	default:
	}
	low := append(s.key(prefix), start...)
	next, stop := iter.Pull2(s.client.Range(ctx, low, after(s.key(prefix)), nil))
	i := &storeIterator{next: next, cut: len(s.prefix), release: func() { stop(); cancel() }}
	// The first page fixes the version.
	i.ahead()
	return i
}

type storeIterator struct {
	next func() (coppice.Record, error, bool)
	// at is the record at which Next arrived, and waiting is the record after it.
	at, waiting *coppice.Record
	cut         int
	err         error
	release     func()
}

// ahead reads the record after the current one.
func (i *storeIterator) ahead() {
	i.waiting = nil
	record, err, more := i.next()
	if err != nil {
		i.err = err
	} else if more {
		i.waiting = &record
	}
}

func (i *storeIterator) Next() bool {
	i.at = i.waiting
	if i.at == nil {
		return false
	}
	i.ahead()
	return true
}

func (i *storeIterator) Error() error {
	if i.waiting != nil {
		return nil
	}
	return i.err
}

func (i *storeIterator) Key() []byte {
	if i.at == nil {
		return nil
	}
	return i.at.Key[i.cut:]
}

func (i *storeIterator) Value() []byte {
	if i.at == nil {
		return nil
	}
	return i.at.Value
}

func (i *storeIterator) Release() {
	i.at, i.waiting = nil, nil
	i.release()
}
