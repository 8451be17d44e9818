package verify

import (
	"bytes"
	"crypto/ed25519"
	"maps"
	"slices"
	"testing"
)

// modelShards cut the reserved keys in four, as the shards of a cluster may.
var modelShards = []Shard{
	{ID: 0, High: []byte{0, 64}},
	{ID: 1, Low: []byte{0, 64}, High: []byte{0, 160}},
	{ID: 2, Low: []byte{0, 160}, High: []byte{1}},
	{ID: 3, Low: []byte{1}},
}

var (
	modelCluster = ClusterID{7}
	modelRoot    = Digest{9}
)

// modelVersion is a version, as an auditor is told of it.
type modelVersion struct {
	entries []*Entry
	told    map[LedgerID][]Told
	// before has the records of the version before.
	before map[string][]byte
}

// model is a cluster that keeps ledgers, as far as auditors of them see it.
type model struct {
	cluster ClusterID
	// seen is the root of the log at a size that all requests have seen.
	seen     Digest
	seenSize uint64
	log      HeaderLog
	state    map[string][]byte
	versions []*modelVersion
}

func newModel(cluster ClusterID) *model {
	genesis := &Header{Format: format2, Cluster: cluster, Genesis: &Genesis{Shards: modelShards}}
	return &model{
		cluster: cluster, seen: modelRoot, seenSize: 1, state: make(map[string][]byte), versions: make([]*modelVersion, 1),
		log: HeaderLog{genesis: genesis.Genesis, versions: []*Header{genesis}},
	}
}

// close commits a version of these entries, in which some records change.
func (m *model) close(stamp Stamp, now uint64, version *modelVersion, records []PutRecord) {
	version.before = maps.Clone(m.state)
	for _, record := range records {
		m.state[string(record.Key)] = record.Value
	}
	encoded := encodedEntries(version.entries)
	hashes := entryHashes(encoded)
	m.log.versions = append(m.log.versions, &Header{
		Format: format2, Kind: KindCommit, Cluster: m.cluster, Sequence: 9 + stamp.Version, Epoch: stamp.Epoch,
		Version: stamp.Version, TimestampMS: now, JournalRoot: MerkleRoot(hashes), JournalLeaves: uint32(len(hashes)),
	})
	m.versions = append(m.versions, version)
}

func encodedEntries(entries []*Entry) (encoded [][]byte) {
	for _, entry := range entries {
		encoded = append(encoded, entry.encodeOfLedger())
	}
	return encoded
}

// listsOf are the hashes of operation lists, made from the values of all records.
func listsOf(records []PutRecord) (touched []Touched) {
	lists := make(map[uint32][]Operation)
	for _, record := range records {
		operation := Put(record.Key, record.Value)
		if record.Value == nil {
			operation = Delete(record.Key)
		}
		id := modelShards[shardOf(modelShards, record.Key)].ID
		lists[id] = append(lists[id], operation)
	}
	for _, id := range ascending(lists) {
		touched = append(touched, Touched{Shard: id, List: OperationListHash(lists[id])})
	}
	return touched
}

// appendOf is the entry of an applied request, with what a coordinator tells of it.
func appendOf(ledger LedgerID, request Request, first uint64, root Digest, records []PutRecord) (*Entry, Told) {
	entry := &Entry{
		Kind: EntryAppend, Ledger: ledger, Signed: request.Signed, Signature: request.Signature,
		FirstJSN: first, Journals: uint32(len(request.Items)), LeavesRoot: root, Touched: listsOf(records),
	}
	told := Told{}
	for i := range request.Items {
		key := ledger.LeafKey(first + uint64(i))
		at := slices.IndexFunc(records, func(r PutRecord) bool { return bytes.Equal(r.Key, key) })
		told.Leaves = append(told.Leaves, records[at].Value)
	}
	if request.Items[0].Kind != JournalData {
		told.Envelope = request.Items[0].Envelope
	}
	return entry, told
}

// commit applies requests, which must not be refused. Records of overlay are believed instead of
// the true ones, as a coordinator does that breaks the rules.
func (m *model) commit(t *testing.T, overlay map[string][]byte, requests ...Request) *modelVersion {
	t.Helper()
	stamp := Stamp{Version: uint64(len(m.versions))}
	now := 1000 * stamp.Version
	round := NewRound(m.cluster, stamp, func(key []byte) []byte {
		if value, lies := overlay[string(key)]; lies {
			return value
		}
		return m.state[string(key)]
	}, nil)
	round.At(now, func(version uint64) (uint64, bool) { return 1000 * version, true })
	version := &modelVersion{told: make(map[LedgerID][]Told)}
	var records []PutRecord
	for _, request := range requests {
		appended, err := round.Append(request)
		if err != nil {
			t.Fatal(err)
		}
		entry, told := appendOf(appended.Ledger, request, appended.FirstJSN, appended.LeavesRoot, appended.Records)
		version.entries = append(version.entries, entry)
		version.told[appended.Ledger] = append(version.told[appended.Ledger], told)
		records = append(records, appended.Records...)
	}
	for _, head := range round.Close() {
		version.entries = append(version.entries, &Entry{
			Kind: EntryHead, Ledger: head.Ledger, SizeBefore: head.SizeBefore, Size: head.Size, Root: head.Root,
			Touched: listsOf(head.Records),
		})
		records = append(records, head.Records...)
	}
	m.close(stamp, now, version, records)
	return version
}

// auditor begins behind a version. Version 0 is before all foundings.
func (m *model) auditor(t *testing.T, ledger LedgerID, behind uint64) *LedgerAuditor {
	t.Helper()
	a := NewLedgerAuditor(&m.log, &LogRoots{}, ledger, behind)
	a.root = func(size uint64) (Digest, bool) { return m.seen, size == m.seenSize }
	if behind > 0 {
		if err := a.Begin(m.stateAt(behind)[string(ledger.HeadKey())]); err != nil {
			t.Fatal(err)
		}
	}
	return a
}

// stateAt has the records of a version.
func (m *model) stateAt(version uint64) map[string][]byte {
	if version+1 < uint64(len(m.versions)) {
		return m.versions[version+1].before
	}
	return m.state
}

// take lets an auditor take the next version, and gives it what it needs.
func (m *model) take(t *testing.T, a *LedgerAuditor, ledger LedgerID) error {
	t.Helper()
	version := m.versions[a.version+1]
	if _, err := a.Version(encodedEntries(version.entries)); err != nil {
		return err
	}
	for range 100 {
		need, err := a.Take(version.told[ledger])
		if err != nil || need == nil {
			return err
		}
		for _, jsn := range need.Leaves {
			if !a.Lend(jsn, version.before[string(ledger.LeafKey(jsn))]) {
				t.Fatalf("the leaf %d is not taken", jsn)
			}
		}
		for _, key := range need.Records {
			if err := a.Believe(key, m.stateAt(*a.since)[string(key)]); err != nil {
				return err
			}
		}
	}
	t.Fatal("the auditor is never content")
	return nil
}

// audited lets an auditor take all versions up to one.
func (m *model) audited(t *testing.T, ledger LedgerID, behind, until uint64) *LedgerAuditor {
	t.Helper()
	a := m.auditor(t, ledger, behind)
	for a.version < until {
		if err := m.take(t, a, ledger); err != nil {
			t.Fatalf("behind version %d: %v", behind, err)
		}
	}
	return a
}

func (m *model) head() uint64 { return uint64(len(m.versions) - 1) }

// modelHand is the key of a member of a model.
func modelHand(name string) ed25519.PrivateKey {
	seed := sha([]byte(name))
	return ed25519.NewKeyFromSeed(seed[:])
}

func modelKey(name string) PublicKey {
	return PublicKey(modelHand(name).Public().(ed25519.PublicKey))
}

// modelItem is a journal with this payload and these clues.
func modelItem(t *testing.T, kind uint8, payload []byte, clues ...string) Item {
	t.Helper()
	envelope := &Envelope{Nonce: sha(payload), Payload: payload}
	for _, clue := range clues {
		envelope.Clues = append(envelope.Clues, []byte(clue))
	}
	encoded, err := envelope.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return Item{Kind: kind, Envelope: encoded}
}

// modelRequest is a request of a member in lane 0, which a change may alter before it is signed.
func modelRequest(
	t *testing.T, ledger LedgerID, member string, number uint64, change func(*SignedRequest), items ...Item,
) Request {
	t.Helper()
	signed := &SignedRequest{
		Cluster: modelCluster, Ledger: ledger, Member: MemberIDOf(member), Number: number, SeenSize: 1,
		SeenRoot: modelRoot,
	}
	if change != nil {
		change(signed)
	}
	message, err := signed.Over(items)
	if err != nil {
		t.Fatal(err)
	}
	request := Request{Signed: message, Items: items}
	copy(request.Signature[:], ed25519.Sign(modelHand(member), message))
	return request
}
