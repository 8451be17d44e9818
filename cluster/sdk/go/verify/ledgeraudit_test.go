package verify

import (
	"bytes"
	"errors"
	"maps"
	"slices"
	"testing"
)

// encodeOfLedger spells an append or a head.
func (e *Entry) encodeOfLedger() []byte {
	w := writer{}
	w.u8(uint8(e.Kind))
	w.bytes(e.Ledger[:])
	if e.Kind == EntryAppend {
		w.str16(e.Signed)
		w.bytes(e.Signature[:])
		w.u64(e.FirstJSN)
		w.u32(e.Journals)
		w.digest(e.LeavesRoot)
	} else {
		w.u64(e.SizeBefore)
		w.u64(e.Size)
		w.digest(e.Root)
	}
	w.u32(uint32(len(e.Touched)))
	for _, touched := range e.Touched {
		w.u32(touched.Shard)
		w.digest(touched.List)
	}
	return w
}

// storedModel is the cluster of a file of vectors: what another implementation has applied.
func storedModel(t *testing.T, name string) (*model, []LedgerID) {
	t.Helper()
	var all struct {
		Cluster hexBytes
		Rounds  []storedRound
	}
	vectors(t, name, &all)
	m := newModel(ClusterID(all.Cluster))
	ledgers := map[LedgerID]bool{}
	recordsOf := func(stored [][2]*hexBytes) (records []PutRecord) {
		for _, pair := range stored {
			record := PutRecord{Key: *pair[0]}
			if pair[1] != nil {
				record.Value = *pair[1]
			}
			records = append(records, record)
		}
		return records
	}
	for _, round := range all.Rounds {
		version := &modelVersion{told: make(map[LedgerID][]Told)}
		var records []PutRecord
		for _, stored := range round.Requests {
			if stored.Append == nil {
				continue
			}
			request := Request{Signed: stored.Signed, Signature: [64]byte(stored.Signature)}
			for _, item := range stored.Items {
				request.Items = append(request.Items, Item{Kind: item.Kind, Envelope: item.Envelope})
			}
			ledger, own := LedgerID(stored.Append.Ledger), recordsOf(stored.Append.Operations)
			signed, err := DecodeSigned(request.Signed)
			if err != nil {
				t.Fatal(err)
			}
			m.seen, m.seenSize = signed.SeenRoot, signed.SeenSize
			entry, told := appendOf(ledger, request, stored.Append.FirstJSN, stored.Append.LeavesRoot, own)
			version.entries = append(version.entries, entry)
			version.told[ledger] = append(version.told[ledger], told)
			records = append(records, own...)
			ledgers[ledger] = true
		}
		for _, head := range round.Heads {
			own := recordsOf(head.Operations)
			version.entries = append(version.entries, &Entry{
				Kind: EntryHead, Ledger: LedgerID(head.Ledger), SizeBefore: head.Before, Size: head.Size,
				Root: head.Root, Touched: listsOf(own),
			})
			records = append(records, own...)
		}
		if len(version.entries) == 0 {
			continue
		}
		for m.head()+1 < round.Stamp.Version {
			// Versions in which all is refused are not committed.
			m.close(Stamp{Epoch: round.Stamp.Epoch, Version: m.head() + 1}, round.NowMS, &modelVersion{}, nil)
		}
		m.close(round.Stamp, round.NowMS, version, records)
	}
	return m, ordered(ledgers, func(id *LedgerID) []byte { return id[:] })
}

func TestHonestLedgersAreSoundWhereverTheAuditBegins(t *testing.T) {
	swept := 0
	for _, name := range []string{"ledgers.json", "appends.json"} {
		m, ledgers := storedModel(t, name)
		for _, ledger := range ledgers {
			state, err := decodeHead(m.state[string(ledger.HeadKey())])
			if err != nil {
				t.Fatal(err)
			}
			marks := uint64(0)
			for jsn := range state.size {
				if m.state[string(ledger.MarkKey(jsn))] != nil {
					marks++
				}
			}
			if state.purged > 0 {
				swept++
			}
			for behind := range m.head() {
				begun := m.stateAt(behind)[string(ledger.HeadKey())]
				if behind > 0 && begun == nil {
					continue
				}
				a := m.audited(t, ledger, behind, m.head())
				if a.Size() != state.size || a.Root() != state.root() || (a.Since() == nil) != (behind == 0) {
					t.Errorf("%s, %s behind %d: %d journals", name, ledger, behind, a.Size())
				}
				if behind == 0 && a.Occulted() != marks {
					t.Errorf("%s, %s: %d occulted, not %d", name, ledger, a.Occulted(), marks)
				}
				for jsn := a.First(); jsn < a.Size(); jsn++ {
					leaf := m.state[string(ledger.LeafKey(jsn))]
					hash, found := a.Leaf(jsn)
					if !found || leaf != nil && hash != LeafHash(leaf) {
						t.Errorf("%s, %s behind %d: leaf %d is another", name, ledger, behind, jsn)
					}
				}
			}
		}
	}
	if swept == 0 {
		t.Error("no ledger was purged")
	}
}

// isOffence checks what an audit has found.
func isOffence(t *testing.T, what string, err error, kind OffenceKind) *LedgerOffence {
	t.Helper()
	var offence *LedgerOffence
	if !errors.As(err, &offence) {
		t.Errorf("%s: %v", what, err)
		return &LedgerOffence{}
	}
	if offence.Kind != kind {
		t.Errorf("%s: %v, not %s", what, err, kind)
	}
	return offence
}

// altered gives a copy of a model whose version is changed. Its header commits to the change.
func (m *model) altered(at uint64, change func(*modelVersion)) *model {
	copied := *m
	other := &copied
	other.versions = slices.Clone(m.versions)
	version := &modelVersion{before: m.versions[at].before, told: make(map[LedgerID][]Told)}
	for _, entry := range m.versions[at].entries {
		clone := *entry
		clone.Touched = slices.Clone(entry.Touched)
		clone.Signed = slices.Clone(entry.Signed)
		version.entries = append(version.entries, &clone)
	}
	for ledger, told := range m.versions[at].told {
		for _, one := range told {
			version.told[ledger] = append(version.told[ledger], Told{
				Leaves: slices.Clone(one.Leaves), Envelope: slices.Clone(one.Envelope),
			})
		}
	}
	change(version)
	hashes := entryHashes(encodedEntries(version.entries))
	header := *m.log.versions[at]
	header.JournalRoot, header.JournalLeaves = MerkleRoot(hashes), uint32(len(hashes))
	other.log.versions = slices.Clone(m.log.versions)
	other.log.versions[at], other.versions[at] = &header, version
	return other
}

func TestWhateverACoordinatorChangesIsFound(t *testing.T) {
	m, ledgers := storedModel(t, "ledgers.json")
	for _, ledger := range ledgers {
		own := func(version *modelVersion, kind EntryKind) *Entry {
			at := slices.IndexFunc(version.entries, func(e *Entry) bool { return e.Kind == kind && e.Ledger == ledger })
			return version.entries[at]
		}
		first := func(version *modelVersion) *Entry { return own(version, EntryAppend) }
		head := func(version *modelVersion) *Entry { return own(version, EntryHead) }
		lies := map[string]struct {
			kind OffenceKind
			lie  func(*modelVersion)
		}{
			"a record left out":   {OffenceRecords, func(v *modelVersion) { first(v).Touched[0].List[0] ^= 1 }},
			"records in no shard": {OffenceRecords, func(v *modelVersion) { first(v).Touched = nil }},
			"another signature":   {OffenceRequest, func(v *modelVersion) { first(v).Signature[5] ^= 1 }},
			"a request of another log": {OffenceRequest, func(v *modelVersion) {
				first(v).Signed[bytes.Index(first(v).Signed, m.seen[:])] ^= 1
			}},
			"another first number":      {OffenceLeaf, func(v *modelVersion) { first(v).FirstJSN++ }},
			"other leaves":              {OffenceAnswer, func(v *modelVersion) { first(v).LeavesRoot[0] ^= 1 }},
			"an unknown shard":          {OffenceEntries, func(v *modelVersion) { first(v).Touched[0].Shard = 77 }},
			"a head before the appends": {OffenceEntries, func(v *modelVersion) { slices.Reverse(v.entries) }},
			"an append twice": {OffenceRequest, func(v *modelVersion) {
				v.entries = slices.Insert(v.entries, 0, first(v))
				v.told[ledger] = slices.Insert(v.told[ledger], 0, v.told[ledger][0])
			}},
			"a head of another root":  {OffenceHead, func(v *modelVersion) { head(v).Root[0] ^= 1 }},
			"a head of another size":  {OffenceHead, func(v *modelVersion) { head(v).Size++ }},
			"a head of another start": {OffenceHead, func(v *modelVersion) { head(v).SizeBefore-- }},
			"a tile left out":         {OffenceHead, func(v *modelVersion) { head(v).Touched[0].List[0] ^= 1 }},
			"no head": {OffenceHead, func(v *modelVersion) {
				at := slices.Index(v.entries, head(v))
				v.entries = slices.Delete(v.entries, at, at+1)
			}},
			"an append left out": {OffenceHead, func(v *modelVersion) {
				v.entries = slices.DeleteFunc(v.entries, func(e *Entry) bool {
					return e.Kind == EntryAppend && e.Ledger == ledger
				})
				v.told[ledger] = nil
			}},
			"a leaf of another journal": {OffenceAnswer, func(v *modelVersion) {
				v.told[ledger][0].Leaves[0] = slices.Clone(v.told[ledger][0].Leaves[0])
				v.told[ledger][0].Leaves[0][30] ^= 1
			}},
			// The coordinator commits to a leaf that does not follow, and tells of this one.
			"a leaf of another version": {OffenceLeaf, func(v *modelVersion) {
				leaves := v.told[ledger][0].Leaves
				hashes := make([]Digest, len(leaves))
				for i, encoded := range leaves {
					leaf, err := DecodeLeaf(encoded)
					if err != nil {
						t.Fatal(err)
					}
					leaf.Stamp.Version++
					leaves[i] = leaf.encode()
					hashes[i] = LeafHash(leaves[i])
				}
				first(v).LeavesRoot = MerkleRoot(hashes)
			}},
			"fewer leaves": {OffenceAnswer, func(v *modelVersion) { v.told[ledger][0].Leaves = nil }},
		}
		orders := map[string]struct {
			kind OffenceKind
			lie  func(*modelVersion)
		}{
			"no envelope of an order":      {OffenceWithheld, func(v *modelVersion) { v.told[ledger][0].Envelope = nil }},
			"another envelope of an order": {OffenceAnswer, func(v *modelVersion) { v.told[ledger][0].Envelope[0] ^= 1 }},
		}
		versions := map[uint64]bool{}
		for version := uint64(2); version <= m.head(); version++ {
			told := m.versions[version].told[ledger]
			if len(told) == 0 || m.versions[version].before[string(ledger.HeadKey())] == nil {
				continue
			}
			leaf, err := DecodeLeaf(told[0].Leaves[0])
			if err != nil {
				t.Fatal(err)
			}
			all := maps.Clone(lies)
			if leaf.Kind == JournalOrder {
				maps.Copy(all, orders)
			}
			versions[version] = leaf.Kind == JournalOrder
			for what, lie := range all {
				changed := m.altered(version, lie.lie)
				a := m.audited(t, ledger, 0, version-1)
				a.log = &changed.log
				offence := isOffence(t, what, changed.take(t, a, ledger), lie.kind)
				said := lie.kind == OffenceAnswer || lie.kind == OffenceWithheld
				if offence.Stamp != m.log.versions[version].Stamp() || offence.InLog() == said {
					t.Errorf("%s: %+v", what, offence)
				}
			}
		}
		if len(versions) < 10 || !slices.Contains(slices.Collect(maps.Values(versions)), true) {
			t.Errorf("%s: %v", ledger, versions)
		}
	}
}

func TestEntriesThatAreNotThoseOfTheHeaderAreAnAnswerOnly(t *testing.T) {
	m, ledgers := storedModel(t, "ledgers.json")
	a := m.auditor(t, ledgers[0], 0)
	entries := encodedEntries(m.versions[1].entries)
	_, err := a.Version(entries[1:])
	if offence := isOffence(t, "an entry left out", err, OffenceAnswer); offence.InLog() {
		t.Error("the log is blamed for an answer")
	}
	altered := encodedEntries(m.versions[1].entries)
	altered[0][20] ^= 1
	_, err = a.Version(altered)
	isOffence(t, "an entry altered", err, OffenceAnswer)
	if _, err := a.Version(entries); err != nil {
		t.Errorf("the true entries come too late: %v", err)
	}
	a = m.auditor(t, ledgers[0], m.head())
	if _, err := a.Version(nil); err == nil {
		t.Error("there is a version above head")
	}
}

func TestAnAuditKeepsNoMoreThanItsLimit(t *testing.T) {
	m, ledger := grain(t)
	whole := m.audited(t, ledger, 0, m.head())
	sum := 0
	for key, value := range whole.records {
		sum += len(key) + len(value) + keptBytes
	}
	if whole.kept != sum {
		t.Errorf("%d bytes are counted of %d", whole.kept, sum)
	}
	for key := range whole.records {
		if jsn, is := leafNumber([]byte(key)); is || key[kindAt] == 2 {
			t.Errorf("leaf or envelope %d is kept", jsn)
		}
	}
	a := m.auditor(t, ledger, 0)
	a.max = sum - 1
	var err error
	for a.version < m.head() && err == nil {
		err = m.take(t, a, ledger)
	}
	if !errors.Is(err, ErrAuditTooLarge) {
		t.Error(err)
	}
	late := m.audited(t, ledger, 1, m.head())
	if _, found := late.Leaf(0); found || late.Lend(0, m.state[string(ledger.LeafKey(0))]) {
		t.Error("a leaf before the beginning is lent")
	}
	if _, found := late.Leaf(late.Size()); found {
		t.Error("there is a leaf above the size")
	}
	if late.Lend(1, m.state[string(ledger.LeafKey(2))]) || !late.Lend(1, m.state[string(ledger.LeafKey(1))]) {
		t.Error("another leaf is lent")
	}
}

func TestTheRootsOfALogAreThoseOfAllItsSizes(t *testing.T) {
	roots, hashes := &LogRoots{}, []Digest{}
	for i := range 70 {
		entry := []byte{byte(i)}
		roots.Push(entry)
		hashes = append(hashes, EntryHash(entry))
	}
	for size := range hashes {
		if root, found := roots.Root(uint64(size)); !found || root != MerkleRoot(hashes[:size]) {
			t.Errorf("another root at %d", size)
		}
		if entry, found := roots.Entry(uint64(size)); !found || entry != hashes[size] {
			t.Errorf("another entry %d", size)
		}
	}
	if _, found := roots.Root(71); found || roots.Size() != 70 {
		t.Error("a root above the size")
	}
	if _, found := roots.Entry(70); found {
		t.Error("an entry above the size")
	}
}
