package state

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"

	"coppice.dev/sdk/coppice"
	"coppice.dev/sdk/verify"
)

// model is a ledger in memory, with true journals. Its headers are chained and named by hashes, but
// nothing is signed.
type model struct {
	mutex sync.Mutex
	// versions are those that stand: index v is version v.
	versions []modelVersion
	epoch    uint64
	boundary uint64
	// aliases are the second names of versions, by epoch.
	aliases map[coppice.Stamp]bool
	log     []coppice.Headed
	// shown is how many headers the stream shows. At cut, it breaks.
	shown uint64
	cut   bool
	moved chan struct{}
	// gates hold reads of a key until they are opened.
	gates map[string]*gate
	// behind is how many reads meet a coordinator that does not know the newest version.
	behind int
	// oldHeads and oldCheckpoints are how many of these answers come from a coordinator that does not
	// know the newest header.
	oldHeads, oldCheckpoints int
	// listsGone makes the stream leave out operation lists.
	listsGone map[uint64]bool
	// lie changes what reads say.
	lie     func(*coppice.BatchGot)
	onHeads func(*coppice.Headed)
	// refuseProofs makes reads fail that ask for a proof.
	refuseProofs bool
	// watched is what the newest stream asked for.
	watched coppice.Watch
	reads   int
	// largest is the most keys of one read. More than keysMax are refused, unless that is 0.
	largest, keysMax int
}

type modelVersion struct {
	stamp  coppice.Stamp
	values map[string]string
	// changed is the stamp of the last change of each key with a value.
	changed map[string]coppice.Stamp
}

// gate holds a read: begun is closed when it has its answer, and open lets it go.
type gate struct {
	begun, open chan struct{}
}

var modelShards = []verify.Shard{{ID: 7}}

func newModel() *model {
	m := &model{
		aliases:   map[coppice.Stamp]bool{},
		moved:     make(chan struct{}),
		gates:     map[string]*gate{},
		listsGone: map[uint64]bool{},
	}
	m.versions = []modelVersion{{}}
	m.push(&verify.Header{Kind: verify.KindGenesis}, nil)
	m.show()
	return m
}

func (m *model) head() *modelVersion { return &m.versions[len(m.versions)-1] }

// push adds a header.
func (m *model) push(header *verify.Header, journal *verify.VersionJournal) {
	header.Sequence = uint64(len(m.log))
	header.Epoch, header.Version = m.epoch, m.head().stamp.Version
	if n := len(m.log); n > 0 {
		header.Previous = verify.EntryHash(m.log[n-1].Encoded)
	}
	encoded := fmt.Appendf(
		nil,
		"%d %d %s %x %x",
		header.Sequence,
		header.Kind,
		header.Stamp(),
		header.JournalRoot,
		header.Previous,
	)
	m.log = append(m.log, coppice.Headed{Header: header, Encoded: encoded, Journal: journal})
}

// show lets the stream show all headers.
func (m *model) show() {
	m.shown = uint64(len(m.log))
	close(m.moved)
	m.moved = make(chan struct{})
}

// commit writes values: nil deletes.
func (m *model) commit(writes map[string]*string) coppice.Stamp {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	last := m.head()
	next := modelVersion{
		stamp:  coppice.Stamp{Epoch: m.epoch, Version: last.stamp.Version + 1},
		values: map[string]string{}, changed: map[string]coppice.Stamp{},
	}
	for key, value := range last.values {
		next.values[key], next.changed[key] = value, last.changed[key]
	}
	var operations []verify.Operation
	for key, value := range writes {
		if value == nil {
			operations = append(operations, verify.Delete([]byte(key)))
			delete(next.values, key)
			delete(next.changed, key)
			continue
		}
		operations = append(operations, verify.Put([]byte(key), []byte(*value)))
		next.values[key], next.changed[key] = *value, next.stamp
	}
	m.versions = append(m.versions, next)
	entry, err := verify.BatchEntry(modelShards, nil, 0, operations, nil)
	if err != nil {
		panic(err)
	}
	header := &verify.Header{
		Kind: verify.KindCommit, JournalLeaves: 1,
		JournalRoot: verify.MerkleRoot([]verify.Digest{verify.JournalLeafHash(entry)}),
	}
	lists := map[uint32][][]byte{7: {verify.EncodeOperations(operations)}}
	m.push(header, &verify.VersionJournal{Entries: [][]byte{entry}, Lists: lists})
	for key, value := range writes {
		change := coppice.Changed{
			Record:  coppice.Record{Key: []byte(key), LastChanged: next.stamp},
			Deleted: value == nil,
		}
		if value != nil {
			change.Value = []byte(*value)
		}
		newest := &m.log[len(m.log)-1]
		newest.Changes = append(newest.Changes, change)
	}
	return next.stamp
}

func (m *model) rollback(base uint64) coppice.Stamp {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.versions = m.versions[:base+1]
	m.epoch++
	for alias := range m.aliases {
		if alias.Version >= base {
			delete(m.aliases, alias)
		}
	}
	stamp := coppice.Stamp{Epoch: m.epoch, Version: base}
	m.aliases[stamp] = true
	m.push(
		&verify.Header{Kind: verify.KindRollback, Rollback: &verify.Rollback{Target: m.head().stamp}},
		nil,
	)
	return stamp
}

func (m *model) prune(boundary uint64) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	m.boundary = boundary
	m.push(&verify.Header{Kind: verify.KindPrune, Prune: &verify.Prune{Boundary: boundary}}, nil)
}

// present is the name of head.
func (m *model) present() coppice.Stamp {
	return coppice.Stamp{Epoch: m.epoch, Version: m.head().stamp.Version}
}

// find gives a version, or the ledger's refusal. The lock is held.
func (m *model) find(at coppice.Stamp) (*modelVersion, coppice.Reason) {
	switch {
	case at.Epoch > m.epoch || at.Version > m.head().stamp.Version && at.Epoch == m.epoch:
		return nil, coppice.NotYet
	case at.Version > m.head().stamp.Version:
		return nil, coppice.RolledBack
	case m.versions[at.Version].stamp != at && !m.aliases[at]:
		return nil, coppice.RolledBack
	case at.Version < m.boundary:
		return nil, coppice.Pruned
	}
	return &m.versions[at.Version], ""
}

// known is the size of the log, as one of the coordinators knows it. The lock is held.
func (m *model) known(old *int) uint64 {
	size := uint64(len(m.log))
	if *old > 0 && size > 1 {
		*old--
		size--
	}
	return size
}

// Head waits while the connection is cut.
func (m *model) Head(ctx context.Context) (*coppice.Head, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	for m.cut {
		moved := m.moved
		m.mutex.Unlock()
		select {
		case <-moved:
		case <-ctx.Done():
		}
		m.mutex.Lock()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
	return &coppice.Head{
		Stamp:          m.present(),
		LogSize:        m.known(&m.oldHeads),
		PrunedBoundary: m.boundary,
	}, nil
}

func (m *model) Grown(context.Context) (*coppice.Grown, error) {
	m.mutex.Lock()
	defer m.mutex.Unlock()
	size := m.known(&m.oldCheckpoints)
	newest := m.log[size-1]
	return &coppice.Grown{
		Size: size, Newest: newest.Header, NewestEntry: verify.EntryHash(newest.Encoded),
		Proof: []byte("a signed checkpoint"),
	}, nil
}

func (m *model) BatchGet(
	ctx context.Context, keys [][]byte, read *coppice.Read,
) (*coppice.BatchGot, error) {
	m.mutex.Lock()
	m.reads++
	m.largest = max(m.largest, len(keys))
	version, reason := m.find(*read.At)
	if m.behind > 0 {
		m.behind--
		reason = coppice.NotYet
	}
	if m.refuseProofs && !read.Unproven {
		reason = coppice.Unavailable
	}
	if m.keysMax > 0 && len(keys) > m.keysMax {
		reason = coppice.LimitExceeded
	}
	gate := m.gates[string(keys[0])]
	got := &coppice.BatchGot{ReadAt: *read.At, Records: make([]*coppice.Record, len(keys))}
	if reason == "" {
		for i, key := range keys {
			if value, has := version.values[string(key)]; has {
				got.Records[i] = &coppice.Record{
					Key:         key,
					Value:       []byte(value),
					LastChanged: version.changed[string(key)],
				}
			}
		}
	}
	if m.lie != nil && read.Unproven {
		m.lie(got)
	}
	m.mutex.Unlock()
	if gate != nil {
		close(gate.begun)
		select {
		case <-gate.open:
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	if reason != "" {
		return nil, &coppice.Error{Call: "BatchGet", Reason: reason}
	}
	return got, nil
}

var errCut = errors.New("the connection broke")

func (m *model) WatchHeads(
	ctx context.Context,
	watch coppice.Watch,
) iter.Seq2[coppice.Headed, error] {
	return func(yield func(coppice.Headed, error) bool) {
		for next := watch.From; ; {
			m.mutex.Lock()
			m.watched = watch
			moved, cut := m.moved, m.cut
			var headed *coppice.Headed
			var refused error
			if next < m.shown && !cut {
				headed, refused = m.see(next, watch)
			}
			if cut {
				refused = errCut
			}
			m.mutex.Unlock()
			switch {
			case refused != nil:
				yield(coppice.Headed{}, refused)
				return
			case headed != nil:
				if !yield(*headed, nil) {
					return
				}
				next++
				continue
			}
			select {
			case <-moved:
			case <-ctx.Done():
				yield(coppice.Headed{}, ctx.Err())
				return
			}
		}
	}
}

// see gives a header as the stream shows it now. The lock is held.
func (m *model) see(sequence uint64, watch coppice.Watch) (*coppice.Headed, error) {
	headed := m.log[sequence]
	if headed.Header.Kind == verify.KindCommit && (watch.ChangedKeys || watch.Journal) {
		if _, reason := m.find(headed.Header.Stamp()); reason == coppice.RolledBack ||
			reason == coppice.NotYet {
			headed.RolledBack, headed.Journal, headed.Changes = true, nil, nil
		} else if m.listsGone[sequence] && headed.Journal != nil {
			headed.Journal, headed.ListsGone = &verify.VersionJournal{Entries: headed.Journal.Entries}, true
		}
		if !headed.RolledBack && headed.Header.Version-1 < m.boundary {
			return nil, &coppice.Error{Call: "WatchHeads", Reason: coppice.Pruned}
		}
	}
	if !watch.ChangedKeys {
		headed.Changes = nil
	}
	if !watch.ChangedValues {
		headed.Changes = slices.Clone(headed.Changes)
		for i := range headed.Changes {
			headed.Changes[i].Value = nil
		}
	}
	if !watch.Journal {
		headed.Journal, headed.ListsGone = nil, false
	}
	if m.onHeads != nil {
		m.onHeads(&headed)
	}
	return &headed, nil
}
