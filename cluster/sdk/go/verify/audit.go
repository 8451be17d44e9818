package verify

import (
	"errors"
	"fmt"
	"slices"
)

// AuditError says which rule of section 8 a log breaks, and where.
type AuditError struct {
	// Rule is the number of the rule, from 1 to 15.
	Rule int
	// Sequence is the entry of the log, and Version is the version that it names, if its header
	// decodes.
	Sequence uint64
	Version  uint64
	// Shard is the shard at fault, or nil if no single shard is.
	Shard *uint32
	Err   error
}

func (e *AuditError) Error() string {
	shard := ""
	if e.Shard != nil {
		shard = fmt.Sprintf(", shard %d", *e.Shard)
	}
	return fmt.Sprintf("verify: audit: rule %d: entry %d, version %d%s: %v", e.Rule, e.Sequence, e.Version, shard, e.Err)
}

// Unwrap gives the broken rule in words.
func (e *AuditError) Unwrap() error { return e.Err }

// HeaderLog reads the headers of a root log in order, and checks rules 1 to 6 of an audit. It keeps
// the headers of the versions that stand.
type HeaderLog struct {
	newest   *Header
	hash     Digest
	size     uint64
	frontier []Digest
	genesis  *Genesis
	origin   string
	// versions are the headers of standing versions: index v is version v.
	versions []*Header
	boundary uint64
	// stamped is the size that the newest anchor stamps.
	stamped uint64
	keys    []PublicKey
	changes []KeyChange
	pairs   []Pair
	epochs  Digest
}

// Append takes the next header. Its error is an *AuditError, after which the log is of no more use.
func (l *HeaderLog) Append(encoded []byte) error {
	header, err := DecodeHeader(encoded)
	if err != nil {
		return &AuditError{Rule: 1, Sequence: l.size, Err: err}
	}
	if rule, err := l.check(header); err != nil {
		return &AuditError{Rule: rule, Sequence: l.size, Version: header.Version, Err: err}
	}
	l.newest, l.hash = header, logEntryHash(encoded)
	l.push(l.hash)
	return nil
}

func (l *HeaderLog) check(header *Header) (int, error) {
	if l.newest == nil {
		if header.Genesis == nil {
			return 1, errors.New("the first header is not genesis")
		}
		l.genesis, l.origin = header.Genesis, header.origin()
		l.versions, l.keys, l.pairs = []*Header{header}, []PublicKey{header.Genesis.Key}, []Pair{{}}
		l.epochs = header.EpochsRoot
		return 0, nil
	}
	if err := header.checkAfter(l.newest, l.hash); err != nil {
		return 2, err
	}
	switch header.Kind {
	case KindCommit:
		l.versions = append(l.versions, header)
	case KindRollback:
		if rule, err := l.rollBack(header); err != nil {
			return rule, err
		}
	case KindPrune:
		if header.Prune.Boundary <= l.boundary {
			return 4, errors.New("the boundary of a prune is not above the one before")
		}
		l.boundary = header.Prune.Boundary
	case KindKey:
		if err := l.changeKey(header.KeyChange); err != nil {
			return 5, err
		}
	case KindAnchor:
		if stamps := header.Anchor.Stamps; stamps != nil {
			if stamps.Size <= l.stamped {
				return 2, errors.New("an anchor stamps a log that is no larger than the one before")
			}
			l.stamped = stamps.Size
		}
	}
	if header.EpochsRoot != l.epochs || uint64(header.EpochPairs) != uint64(len(l.pairs)) {
		return 6, errors.New("the epochs are not those that the rollbacks leave")
	}
	return 0, nil
}

func (l *HeaderLog) rollBack(header *Header) (int, error) {
	target := header.Rollback.Target
	if target.Version >= uint64(len(l.versions)) {
		return 3, errors.New("the target of a rollback does not stand")
	}
	commit := l.versions[target.Version]
	if commit.Stamp() != target || commit.StateRoot != header.StateRoot {
		return 3, errors.New("a rollback names its target by another stamp or state root")
	}
	if target.Version < l.boundary {
		return 4, errors.New("a rollback goes below what was pruned")
	}
	clear(l.versions[target.Version+1:])
	l.versions = l.versions[:target.Version+1]
	l.pairs = rollBack(l.pairs, header.Epoch, target.Version)
	leaves := make([]Digest, len(l.pairs))
	for i, pair := range l.pairs {
		leaves[i] = epochLeafHash(pair)
	}
	l.epochs = MerkleRoot(leaves)
	return 0, nil
}

func (l *HeaderLog) changeKey(change *KeyChange) error {
	switch {
	case uint64(change.Number) != uint64(len(l.keys)):
		return errors.New("a key change is numbered out of turn")
	case change.Old != l.keys[len(l.keys)-1]:
		return errors.New("a key change is not from the current key")
	case slices.Contains(l.keys, change.New):
		return errors.New("a key change is to a key that the ledger had before")
	}
	l.keys = append(l.keys, change.New)
	l.changes = append(l.changes, *change)
	return nil
}

// push adds a hash to the frontier: the roots of whole subtrees, largest first.
func (l *HeaderLog) push(hash Digest) {
	for at := l.size; at&1 == 1; at >>= 1 {
		last := len(l.frontier) - 1
		hash = nodeHash(&l.frontier[last], &hash)
		l.frontier = l.frontier[:last]
	}
	l.frontier = append(l.frontier, hash)
	l.size++
}

// Checkpoint is the size and the root of all headers so far. Compare it with a signed checkpoint,
// without which an audit proves nothing.
func (l *HeaderLog) Checkpoint() Checkpoint {
	root := emptyRoot
	for i := len(l.frontier) - 1; i >= 0; i-- {
		if i == len(l.frontier)-1 {
			root = l.frontier[i]
		} else {
			root = nodeHash(&l.frontier[i], &root)
		}
	}
	return Checkpoint{Origin: l.origin, Size: l.size, Root: root}
}

// Genesis is the body of the first header, or nil before it was read.
func (l *HeaderLog) Genesis() *Genesis { return l.genesis }

// KeyChanges gives the key changes of the log so far.
func (l *HeaderLog) KeyChanges() []KeyChange { return slices.Clone(l.changes) }

// Header gives the header of a standing version, or nil.
func (l *HeaderLog) Header(version uint64) *Header {
	if version >= uint64(len(l.versions)) {
		return nil
	}
	return l.versions[version]
}

// Boundary is the oldest version that prunes have kept.
func (l *HeaderLog) Boundary() uint64 { return l.boundary }

// Head is the newest standing version.
func (l *HeaderLog) Head() uint64 { return uint64(max(len(l.versions), 1) - 1) }

// Replay recomputes the state root of each standing version from the journals: rules 7 to 15. It
// keeps all records of the newest version in memory, without their values.
type Replay struct {
	log     *HeaderLog
	shards  []Shard
	forests []*forest
	next    uint64
}

// NewReplay begins behind genesis. The log has been read to its end.
func NewReplay(log *HeaderLog) (*Replay, error) {
	if log.genesis == nil {
		return nil, errors.New("verify: a log without genesis")
	}
	replay := &Replay{log: log, shards: log.genesis.Shards, next: 1}
	for range replay.shards {
		replay.forests = append(replay.forests, newForest(&log.genesis.Params))
	}
	return replay, nil
}

// VersionJournal is the journal of a version, with the operation lists of each shard in their
// order.
type VersionJournal struct {
	Entries [][]byte
	Lists   map[uint32][][]byte
}

// Version takes the next standing version. Its error is an *AuditError, after which the replay is
// of no more use.
func (r *Replay) Version(journal VersionJournal) error {
	header := r.log.Header(r.next)
	if header == nil {
		return fmt.Errorf("verify: no version %d stands", r.next)
	}
	check := &versionCheck{replay: r, header: header, journal: journal, writes: make(map[uint32][]Operation)}
	if rule, shard, err := check.run(); err != nil {
		return &AuditError{Rule: rule, Sequence: header.Sequence, Version: header.Version, Shard: shard, Err: err}
	}
	r.next++
	return nil
}

// versionCheck checks rules 7 to 15 for one version.
type versionCheck struct {
	replay  *Replay
	header  *Header
	journal VersionJournal
	entries []*Entry
	lists   []entryList
	writes  map[uint32][]Operation
}

// entryList is the operation list of an entry on a shard.
type entryList struct {
	entry      *Entry
	shard      *Shard
	operations []Operation
}

func (c *versionCheck) run() (rule int, shard *uint32, err error) {
	steps := []func() (*uint32, error){
		7: c.checkJournal, 8: c.checkOrder, 9: c.checkShards, 10: c.checkLists, 11: c.checkPlaces, 12: c.checkSizes,
		13: c.prepare, 14: c.checkTrees, 15: c.checkState,
	}
	for rule, step := range steps {
		if step == nil {
			continue
		}
		if shard, err := step(); err != nil {
			return rule, shard, err
		}
	}
	return 0, nil, nil
}

func entryHashes(entries [][]byte) []Digest {
	hashes := make([]Digest, len(entries))
	for i, entry := range entries {
		hashes[i] = JournalLeafHash(entry)
	}
	return hashes
}

func (c *versionCheck) checkJournal() (*uint32, error) {
	leaves := entryHashes(c.journal.Entries)
	if uint64(len(leaves)) != uint64(c.header.JournalLeaves) || MerkleRoot(leaves) != c.header.JournalRoot {
		return nil, errors.New("the entries are not those of the header")
	}
	for _, encoded := range c.journal.Entries {
		entry, err := DecodeEntry(encoded)
		if err != nil {
			return nil, err
		}
		c.entries = append(c.entries, entry)
	}
	return nil, nil
}

func (c *versionCheck) checkOrder() (*uint32, error) {
	type request struct {
		session SessionID
		number  uint64
	}
	place := map[EntryKind]int{EntryBatch: 0, EntryAppend: 0, EntryHead: 1, EntryMerge: 2}
	seen := make(map[request]bool)
	var head *Entry
	for i, entry := range c.entries {
		ofLedger := entry.Kind == EntryAppend || entry.Kind == EntryHead
		switch {
		case ofLedger && c.header.Format == format1:
			return nil, errors.New("an entry of a ledger in a log of version 2")
		case i > 0 && place[entry.Kind] < place[c.entries[i-1].Kind]:
			return nil, errors.New("the kinds of entries are out of order")
		case entry.Kind == EntryHead && head != nil && slices.Compare(head.Ledger[:], entry.Ledger[:]) >= 0:
			return nil, errors.New("the ledgers of heads do not ascend")
		}
		if entry.Kind == EntryHead {
			head = entry
		}
		if entry.Session != nil {
			key := request{*entry.Session, entry.Number}
			if entry.Number == 0 || seen[key] {
				return nil, errors.New("a number of a session is 0, or is used twice")
			}
			seen[key] = true
		}
	}
	return nil, nil
}

func (c *versionCheck) checkShards() (*uint32, error) {
	known := make(map[uint32]*Shard, len(c.replay.shards))
	for i := range c.replay.shards {
		known[c.replay.shards[i].ID] = &c.replay.shards[i]
	}
	for _, entry := range c.entries {
		if entry.Kind == EntryMerge && known[entry.Shard] == nil {
			return &entry.Shard, errors.New("a merge on an unknown shard")
		}
		for _, touched := range entry.Touched {
			shard := known[touched.Shard]
			if shard == nil {
				return &touched.Shard, errors.New("an entry names an unknown shard")
			}
			c.lists = append(c.lists, entryList{entry: entry, shard: shard})
		}
	}
	return nil, nil
}

func (c *versionCheck) checkLists() (*uint32, error) {
	used := make(map[uint32]int)
	at := 0
	for _, entry := range c.entries {
		for _, touched := range entry.Touched {
			kept := c.journal.Lists[touched.Shard]
			place := used[touched.Shard]
			if place == len(kept) || hashOf(tagOperations, kept[place]) != touched.List {
				return &touched.Shard, errors.New("the operation list of an entry is missing, or is another")
			}
			operations, err := DecodeOperations(kept[place])
			if err != nil {
				return &touched.Shard, err
			}
			c.lists[at].operations = operations
			used[touched.Shard], at = place+1, at+1
		}
	}
	for id, kept := range c.journal.Lists {
		if used[id] != len(kept) {
			return &id, errors.New("a shard has an operation list that no entry names")
		}
	}
	return nil, nil
}

func (c *versionCheck) checkPlaces() (*uint32, error) {
	for _, list := range c.lists {
		id := &list.shard.ID
		if len(list.operations) == 0 {
			return id, errors.New("an operation list is empty")
		}
		for _, operation := range list.operations {
			if !list.shard.holds(operation.Key) {
				return id, errors.New("a key lies outside of the shard's range")
			}
			// Reserved keys are those below 01.
			reserved := len(operation.Key) == 0 || operation.Key[0] == 0
			if c.header.Format == format2 && reserved != (list.entry.Kind != EntryBatch) {
				return id, errors.New("a batch writes a reserved key, or a ledger a free one")
			}
		}
	}
	return nil, nil
}

func (c *versionCheck) checkSizes() (*uint32, error) {
	params := &c.replay.log.genesis.Params
	sums := make(map[*Entry]uint64)
	for _, list := range c.lists {
		for _, operation := range list.operations {
			if len(operation.Key) == 0 || uint64(len(operation.Key)) > uint64(params.KeyBytesMax) ||
				operation.Length > params.ValueBytesMax {
				return &list.shard.ID, errors.New("a key or a value is too short or too long")
			}
			sums[list.entry] += uint64(len(operation.Key)) + uint64(operation.Length)
		}
		if list.entry.Kind == EntryBatch && sums[list.entry] > uint64(params.BatchBytesMax) {
			return &list.shard.ID, errors.New("a batch is too large")
		}
	}
	return nil, nil
}

func (c *versionCheck) forestOf(id uint32) *forest {
	at := slices.IndexFunc(c.replay.shards, func(s Shard) bool { return s.ID == id })
	return c.replay.forests[at]
}

// prepare takes the version's events, then its writes, on each shard that has any.
func (c *versionCheck) prepare() (*uint32, error) {
	for _, list := range c.lists {
		c.writes[list.shard.ID] = append(c.writes[list.shard.ID], list.operations...)
	}
	for _, entry := range c.entries {
		if entry.Kind != EntryMerge {
			continue
		}
		if err := c.forestOf(entry.Shard).merge(entry.Inputs, entry.Output); err != nil {
			return &entry.Shard, err
		}
		if _, written := c.writes[entry.Shard]; !written {
			c.writes[entry.Shard] = nil
		}
	}
	for id, operations := range c.writes {
		c.forestOf(id).write(c.header.Stamp(), operations)
	}
	return nil, nil
}

func (c *versionCheck) checkTrees() (*uint32, error) {
	for i, forest := range c.replay.forests {
		if 1+len(forest.frozen) > int(c.replay.log.genesis.Params.TreeLimit) {
			return &c.replay.shards[i].ID, errors.New("a shard has too many trees")
		}
	}
	return nil, nil
}

// stateRoot is the state root of all shards.
func (r *Replay) stateRoot() Digest {
	leaves := make([]Digest, len(r.forests))
	for i, forest := range r.forests {
		shard := &r.shards[i]
		leaves[i] = stateLeafHash(shard.ID, shard.Low, shard.High, forest.version, forest.digest())
	}
	return MerkleRoot(leaves)
}

func (c *versionCheck) checkState() (*uint32, error) {
	if c.replay.stateRoot() != c.header.StateRoot {
		return nil, errors.New("the state root does not follow from the journal")
	}
	return nil, nil
}
