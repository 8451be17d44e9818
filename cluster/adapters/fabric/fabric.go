package fabric

import (
	"github.com/hyperledger/fabric/core/ledger/kvledger/txmgmt/statedb"
)

// Fabric's version.Height is in the signatures of its interfaces, and in an internal package. Types
// with the parameter H have it by inference: providerOf gets it from a field of statedb.

type heightOf interface {
	~struct{ BlockNum, TxNum uint64 }
}

// Provider is a statedb.VersionedDBProvider, made by New.
type Provider[H heightOf] struct{ provider *provider }

func providerOf[H heightOf](_ *H, p *provider) *Provider[H] { return &Provider[H]{provider: p} }

// field is where a value has its version.
func field[H heightOf](v *statedb.VersionedValue) **H {
	var at any = &v.Version
	return at.(**H)
}

// plain gives a height of Fabric, or nil.
func plain[H heightOf](h *H) *height {
	if h == nil {
		return nil
	}
	converted := height(*h)
	return &converted
}

func heightFrom[H heightOf](at *height) *H {
	if at == nil {
		return nil
	}
	h := H(*at)
	return &h
}

func valueFrom[H heightOf](e *entry) *statedb.VersionedValue {
	if e == nil {
		return nil
	}
	v := &statedb.VersionedValue{Value: e.value, Metadata: e.metadata}
	*field[H](v) = heightFrom[H](&e.at)
	return v
}

func pairFrom[H heightOf](f *found) *statedb.VersionedKV {
	if f == nil {
		return nil
	}
	return &statedb.VersionedKV{
		CompositeKey:   &statedb.CompositeKey{Namespace: f.namespace, Key: f.key},
		VersionedValue: valueFrom[H](&f.entry),
	}
}

// GetDBHandle gives the database of a channel. It waits for the ledger, at most for
// Options.StartTimeout.
func (p *Provider[H]) GetDBHandle(
	id string,
	_ statedb.NamespaceProvider,
) (statedb.VersionedDB, error) {
	d, err := p.provider.database(id)
	if err != nil {
		return nil, err
	}
	return any(&DB[H]{database: d}).(statedb.VersionedDB), nil
}

// ImportFromSnapshot writes the records of an iterator by pages, and the savepoint with the last of
// them. After an error, drop the channel before another attempt, as Fabric does.
func (p *Provider[H]) ImportFromSnapshot(
	id string,
	savepoint *H,
	records statedb.FullScanIterator,
) error {
	d, err := p.provider.database(id)
	if err != nil {
		return err
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	next := func() (*change, error) { return nil, nil }
	if records != nil {
		next = func() (*change, error) {
			pair, err := records.Next()
			if err != nil || pair == nil {
				return nil, err
			}
			c, err := changeOf[H](d, pair.Namespace, pair.Key, pair.VersionedValue)
			return &c, err
		}
	}
	return d.fill(next, plain(savepoint))
}

// BytesKeySupported is true: keys may have any bytes.
func (p *Provider[H]) BytesKeySupported() bool { return true }

// Close ends all databases, and the calls that are under way.
func (p *Provider[H]) Close() { p.provider.close() }

// Drop deletes the database of a channel by pages. After an error, call it again.
func (p *Provider[H]) Drop(id string) error {
	d, err := p.provider.database(id)
	if err != nil {
		return err
	}
	d.mutex.Lock()
	defer d.mutex.Unlock()
	if err := d.complete(); err != nil {
		return err
	}
	return d.drop()
}

// DB is the statedb.VersionedDB of a channel, and a statedb.BulkOptimizable.
type DB[H heightOf] struct{ database *database }

// GetState reads a key: nil if it has no value.
func (db *DB[H]) GetState(namespace, key string) (*statedb.VersionedValue, error) {
	e, err := db.entry(namespace, key)
	if err != nil {
		return nil, err
	}
	return valueFrom[H](e), nil
}

func (db *DB[H]) entry(namespace, key string) (*entry, error) {
	n := name{namespace, key}
	entries, err := db.database.read([]name{n})
	return entries[n], err
}

// GetVersion gives the height at which a key was written, nil if it has no value. It reads the key
// unless LoadCommittedVersions did.
func (db *DB[H]) GetVersion(namespace, key string) (*H, error) {
	if at, known := db.GetCachedVersion(namespace, key); known {
		return at, nil
	}
	e, err := db.entry(namespace, key)
	if err != nil || e == nil {
		return nil, err
	}
	return heightFrom[H](&e.at), nil
}

// GetStateMultipleKeys reads several keys of one version of the ledger.
func (db *DB[H]) GetStateMultipleKeys(
	namespace string,
	keys []string,
) ([]*statedb.VersionedValue, error) {
	names := make([]name, len(keys))
	for i, key := range keys {
		names[i] = name{namespace, key}
	}
	entries, err := db.database.read(names)
	if err != nil {
		return nil, err
	}
	values := make([]*statedb.VersionedValue, len(keys))
	for i := range names {
		values[i] = valueFrom[H](entries[names[i]])
	}
	return values, nil
}

// LoadCommittedVersions reads the versions of keys at once, for GetCachedVersion and GetVersion. A
// write, or ClearCachedVersions, drops them.
func (db *DB[H]) LoadCommittedVersions(keys []*statedb.CompositeKey) error {
	names := make([]name, len(keys))
	for i, key := range keys {
		names[i] = name{key.Namespace, key.Key}
	}
	return db.database.loadVersions(names)
}

// GetCachedVersion tells whether the version of a key is loaded.
func (db *DB[H]) GetCachedVersion(namespace, key string) (*H, bool) {
	at, known := db.database.cachedVersion(name{namespace, key})
	return heightFrom[H](at), known
}

// ClearCachedVersions drops the versions that were loaded.
func (db *DB[H]) ClearCachedVersions() { db.database.forget() }

// GetStateRangeScanIterator gives the keys of a namespace from start on and below end. An empty end
// is that of the namespace.
func (db *DB[H]) GetStateRangeScanIterator(
	namespace, start, end string,
) (statedb.ResultsIterator, error) {
	return db.GetStateRangeScanIteratorWithPagination(namespace, start, end, 0)
}

// GetStateRangeScanIteratorWithPagination is like GetStateRangeScanIterator, and gives a number of
// records at most, if that is above 0.
func (db *DB[H]) GetStateRangeScanIteratorWithPagination(
	namespace, start, end string, pageSize int32,
) (statedb.QueryResultsIterator, error) {
	low, high, err := db.database.rangeOf(namespace, start, end)
	if err != nil {
		return nil, err
	}
	s, err := db.database.scan(low, high, nil, int(pageSize))
	if err != nil {
		return nil, err
	}
	return &iterator[H]{scan: s}, nil
}

// ExecuteQuery is refused with ErrNoQueries.
func (db *DB[H]) ExecuteQuery(_, _ string) (statedb.ResultsIterator, error) {
	return nil, ErrNoQueries
}

// ExecuteQueryWithPagination is refused with ErrNoQueries.
func (db *DB[H]) ExecuteQueryWithPagination(
	_, _, _ string,
	_ int32,
) (statedb.QueryResultsIterator, error) {
	return nil, ErrNoQueries
}

// ApplyUpdates writes a block: one commit of one batch, with the savepoint if there is one. The
// changes of a block that is too large for a batch become visible at once as well. After an error
// whose outcome is unknown, call it again with the same batch.
func (db *DB[H]) ApplyUpdates(batch *statedb.UpdateBatch, at *H) error {
	var changes []change
	for _, namespace := range batch.GetUpdatedNamespaces() {
		for key, v := range batch.GetUpdates(namespace) {
			c, err := changeOf[H](db.database, namespace, key, v)
			if err != nil {
				return err
			}
			changes = append(changes, c)
		}
	}
	db.database.mutex.Lock()
	defer db.database.mutex.Unlock()
	return db.database.apply(changes, plain(at))
}

// changeOf makes a change of an update.
func changeOf[H heightOf](
	d *database,
	namespace, key string,
	v *statedb.VersionedValue,
) (change, error) {
	if err := checkName(namespace, key); err != nil {
		return change{}, err
	}
	c := change{key: d.keys.data(namespace, key)}
	if v.Value == nil {
		return c, nil
	}
	at := plain(*field[H](v))
	if at == nil {
		at = &height{}
	}
	c.value = (&entry{value: v.Value, metadata: v.Metadata, at: *at}).encode()
	return c, nil
}

// GetLatestSavePoint gives the height up to which the database has blocks, nil before the first.
func (db *DB[H]) GetLatestSavePoint() (*H, error) {
	db.database.mutex.Lock()
	defer db.database.mutex.Unlock()
	if db.database.provider.life.Err() != nil {
		return nil, ErrClosed
	}
	if err := db.database.complete(); err != nil {
		return nil, err
	}
	return heightFrom[H](db.database.state.savepoint), nil
}

// ValidateKeyValue refuses keys of more than 256 bytes and values above Options.ValueBytesMax.
func (db *DB[H]) ValidateKeyValue(key string, value []byte) error {
	return db.database.provider.checkValue(key, value)
}

// BytesKeySupported is true: keys may have any bytes.
func (db *DB[H]) BytesKeySupported() bool { return true }

// GetFullScanIterator gives everything, in the order of namespace and key, without the namespaces
// that are skipped.
func (db *DB[H]) GetFullScanIterator(skip func(string) bool) (statedb.FullScanIterator, error) {
	w, err := db.database.wholeScan(skip)
	if err != nil {
		return nil, err
	}
	return &fullIterator[H]{whole: w}, nil
}

// Open does nothing: GetDBHandle has opened the database.
func (db *DB[H]) Open() error { return nil }

// Close does nothing: the provider closes the database.
func (db *DB[H]) Close() {}

type iterator[H heightOf] struct{ scan *scan }

func (i *iterator[H]) Next() (*statedb.VersionedKV, error) {
	f, err := i.scan.step()
	return pairFrom[H](f), err
}

func (i *iterator[H]) Close() { i.scan.close() }

func (i *iterator[H]) GetBookmarkAndClose() string { return i.scan.bookmark() }

type fullIterator[H heightOf] struct{ whole *whole }

func (i *fullIterator[H]) Next() (*statedb.VersionedKV, error) {
	f, err := i.whole.step()
	return pairFrom[H](f), err
}

func (i *fullIterator[H]) Close() { i.whole.close() }
