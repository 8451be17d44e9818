package verify

import (
	"encoding/binary"
	"errors"
	"slices"
)

// ledgerAuditMax bounds what a LedgerAuditor keeps of a ledger.
const ledgerAuditMax = 4 << 30

// keptBytes is what a record takes beside key and value.
const keptBytes = 96

// ErrAuditTooLarge says that a ledger has more records than an audit keeps.
var ErrAuditTooLarge = errors.New("verify: the records of the ledger take more than 4 GiB")

// Told is what a coordinator says about an append, besides its entry. It is believed only as far as
// the entry commits to it.
type Told struct {
	// Leaves are those of the append's journals, in canonical bytes.
	Leaves [][]byte
	// Envelope is that of an append of one journal that holds no data.
	Envelope []byte
}

// LedgerNeed is what an auditor has to be given before it can judge a version.
type LedgerNeed struct {
	// Leaves are the numbers of journals whose leaves are for Lend.
	Leaves []uint64
	// Records are keys for Believe, as the version has them behind which the audit begins.
	Records [][]byte
}

// LedgerAuditor judges the requests of one ledger of members again, version by version, and derives
// all that follows from them (section 18). It keeps the records that requests are judged by: those
// of members, clues and orders, and 40 bytes for each journal, but no leaves, envelopes and cells.
type LedgerAuditor struct {
	log    *HeaderLog
	root   func(size uint64) (Digest, bool)
	ledger LedgerID
	// version is the last one that was taken. The next one is judged, with its entries.
	version uint64
	entries []*Entry
	// since is the version behind which the audit begins, if that is not before the founding. Records
	// that have not changed since are believed.
	since *uint64
	first uint64
	// head is the ledger's head, or nil before it is founded.
	head *ledgerHead
	// records have no value if there is none.
	records  map[string][]byte
	kept     int
	max      int
	lent     map[uint64][]byte
	occulted uint64
}

// NewLedgerAuditor begins behind a version in which the ledger is not founded yet. Both logs have
// been read to their end, and their root is that of a signed checkpoint.
func NewLedgerAuditor(log *HeaderLog, roots *LogRoots, ledger LedgerID, behind uint64) *LedgerAuditor {
	return &LedgerAuditor{
		log: log, root: roots.Root, ledger: ledger, version: behind, max: ledgerAuditMax,
		records: make(map[string][]byte), lent: make(map[uint64][]byte),
	}
}

// Begin sets the head that the ledger has in the version behind which the audit begins. The caller
// has verified the record, and verifies what LedgerNeed.Records name.
func (a *LedgerAuditor) Begin(head []byte) error {
	decoded, err := decodeHead(head)
	if err != nil {
		return err
	}
	since := a.version
	a.since, a.first, a.head = &since, decoded.size, decoded
	return a.Believe(a.ledger.HeadKey(), head)
}

// Since is the version behind which the audit began, or nil if that was before the founding.
func (a *LedgerAuditor) Since() *uint64 { return a.since }

// First is the number of journals at the beginning.
func (a *LedgerAuditor) First() uint64 { return a.first }

// Size is the number of journals so far.
func (a *LedgerAuditor) Size() uint64 {
	if a.head == nil {
		return 0
	}
	return a.head.size
}

// Root is the root of the ledger's list so far.
func (a *LedgerAuditor) Root() Digest {
	if a.head == nil {
		return emptyRoot
	}
	return a.head.root()
}

// Occulted is the number of journals that orders have occulted since the beginning.
func (a *LedgerAuditor) Occulted() uint64 { return a.occulted }

// IsOcculted tells whether an order since the beginning has occulted a journal.
func (a *LedgerAuditor) IsOcculted(jsn uint64) bool {
	return a.records[string(a.ledger.MarkKey(jsn))] != nil
}

// Leaf is the LeafHash of a journal that was taken since the beginning.
func (a *LedgerAuditor) Leaf(jsn uint64) (hash Digest, found bool) {
	if jsn < a.first || jsn >= a.Size() {
		return Digest{}, false
	}
	tile, at := jsn/tileHashes, jsn%tileHashes
	if a.head.size/tileHashes == tile {
		return a.head.edge[0][at], true
	}
	full := a.records[string(a.ledger.tileKey(0, tile, tile*tileHashes))]
	if len(full) != tileHashes*len(Digest{}) {
		return Digest{}, false
	}
	return Digest(full[at*uint64(len(Digest{})):]), true
}

// Believe takes a record of the version behind which the audit begins, which the caller has
// verified. Nil is a record that is not there.
func (a *LedgerAuditor) Believe(key, value []byte) error {
	if old, known := a.records[string(key)]; known {
		a.kept -= len(old)
	} else {
		a.kept += len(key) + keptBytes
	}
	if a.kept += len(value); a.kept > a.max {
		return ErrAuditTooLarge
	}
	a.records[string(key)] = value
	return nil
}

// Lend takes a leaf that a LedgerNeed names. It refuses another one than was appended.
func (a *LedgerAuditor) Lend(jsn uint64, leaf []byte) bool {
	hash, found := a.Leaf(jsn)
	if !found || LeafHash(leaf) != hash {
		return false
	}
	a.lent[jsn] = leaf
	return true
}

// Version begins the next version, and gives the appends to the ledger among its entries. It may be
// called again until Take has taken the version. Its error is a *LedgerOffence.
func (a *LedgerAuditor) Version(entries [][]byte) ([]*Entry, error) {
	header := a.log.Header(a.version + 1)
	if header == nil {
		return nil, errors.New("verify: no such version stands")
	}
	if leaves := entryHashes(entries); uint64(len(leaves)) != uint64(header.JournalLeaves) ||
		MerkleRoot(leaves) != header.JournalRoot {
		return nil, a.offence(OffenceAnswer, nil, errors.New("the entries are not those of the header"))
	}
	check := &versionCheck{
		replay: &Replay{log: a.log, shards: a.log.genesis.Shards}, header: header,
		journal: VersionJournal{Entries: entries},
	}
	rules := []func() (*uint32, error){check.checkJournal, check.checkOrder, check.checkShards}
	for i, rule := range rules {
		if shard, err := rule(); err != nil {
			return nil, a.offence(OffenceEntries, nil, &AuditError{
				Rule: 7 + i, Sequence: header.Sequence, Version: header.Version, Shard: shard, Err: err,
			})
		}
	}
	a.entries = check.entries
	return a.own(EntryAppend), nil
}

// own gives the entries of the version that are the ledger's.
func (a *LedgerAuditor) own(kind EntryKind) (own []*Entry) {
	for _, entry := range a.entries {
		if entry.Kind == kind && entry.Ledger == a.ledger {
			own = append(own, entry)
		}
	}
	return own
}

func (a *LedgerAuditor) offence(kind OffenceKind, jsn *uint64, err error) *LedgerOffence {
	return &LedgerOffence{Kind: kind, Stamp: a.log.Header(a.version + 1).Stamp(), JSN: jsn, Err: err}
}

// Take judges the appends of the version that began last, with what was told of each. If it needs
// more, it takes nothing, and is called again with the same. Its error is a *LedgerOffence, after
// which the auditor is of no more use, or ErrAuditTooLarge.
func (a *LedgerAuditor) Take(told []Told) (*LedgerNeed, error) {
	appends, heads := a.own(EntryAppend), a.own(EntryHead)
	if len(appends) == 0 && len(heads) == 0 {
		a.version++
		return nil, nil
	}
	if len(told) != len(appends) {
		return nil, errors.New("verify: other appends than those of the version")
	}
	j := &ledgerJudge{LedgerAuditor: a, header: a.log.Header(a.version + 1), asked: make(map[string]bool)}
	for i, entry := range appends {
		if err := j.read(entry, &told[i]); err != nil {
			return nil, err
		}
	}
	j.want()
	if j.lacks() {
		return &j.need, nil
	}
	err := j.judge(heads)
	if j.lacks() {
		return &j.need, nil
	}
	if err != nil {
		return nil, err
	}
	return nil, j.keep()
}

// CheckEnvelope checks the content of a journal with data, as far as leaves do not show it: its
// clues are those of the leaf, and begin as the agent's have to. The envelope has the leaf's
// commitment.
func (a *LedgerAuditor) CheckEnvelope(leaf *Leaf, encoded []byte) error {
	envelope, err := DecodeEnvelope(encoded)
	if err != nil {
		return RefusedForm
	}
	hashes := make([]Digest, len(envelope.Clues))
	for i, clue := range envelope.Clues {
		hashes[i] = ClueHash(a.ledger, clue)
	}
	if !slices.Equal(hashes, leaf.clueHashes()) {
		return RefusedForm
	}
	if leaf.Agent == nil {
		return nil
	}
	agent, err := DecodeMember(a.records[string(a.ledger.MemberKey(*leaf.Agent))])
	if err != nil {
		return err
	}
	if prefix := agent.Agency.prefix(); len(prefix) > 0 && !envelope.begins(prefix) {
		return RefusedRole
	}
	return nil
}

func (a *Agency) prefix() []byte {
	if a == nil {
		return nil
	}
	return a.Prefix
}

// kindAt is where the kind of a record of a ledger stands in its key.
const kindAt = 18

// leafNumber gives the number of the journal whose leaf has a key.
func leafNumber(key []byte) (jsn uint64, is bool) {
	if len(key) != kindAt+9 || key[kindAt] != 1 {
		return 0, false
	}
	return binary.BigEndian.Uint64(key[kindAt+1:]), true
}

// judges tells whether requests are judged by the record of a key: by all but envelopes and cells.
// A leaf is lent when an order is judged by it, and only its end is kept.
func judges(record *PutRecord) bool {
	if record.Key[1] == 0 {
		return false
	}
	switch record.Key[kindAt] {
	case 1:
		return record.Value == nil
	case 2:
		return false
	case 5:
		return len(record.Key) == kindAt+1+len(Digest{})
	}
	return true
}
