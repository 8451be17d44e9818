package verify

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
)

const vectorsDirectory = "../../../verify/vectors"

// vectors reads a file of test vectors.
func vectors(t testing.TB, name string, into any) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(vectorsDirectory, name))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(content, into); err != nil {
		t.Fatal(err)
	}
}

// hexBytes are bytes that JSON has in hex; nil for null.
type hexBytes []byte

func (h *hexBytes) UnmarshalJSON(encoded []byte) error {
	var text *string
	if err := json.Unmarshal(encoded, &text); err != nil || text == nil {
		return err
	}
	var err error
	*h, err = hex.DecodeString(*text)
	return err
}

func (d *Digest) UnmarshalJSON(encoded []byte) error {
	var bytes hexBytes
	if err := bytes.UnmarshalJSON(encoded); err != nil {
		return err
	}
	if copy(d[:], bytes) != len(d) || len(bytes) != len(d) {
		return errors.New("a digest has 32 bytes")
	}
	return nil
}

func (s *Stamp) UnmarshalJSON(encoded []byte) error {
	var pair [2]uint64
	err := json.Unmarshal(encoded, &pair)
	*s = Stamp{Epoch: pair[0], Version: pair[1]}
	return err
}

func mustKey(t testing.TB, text string) VKey {
	t.Helper()
	key, err := ParseVKey(text)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

// stepOf gives the name of the step that refused, or nothing.
func stepOf(err error) string {
	var refused *Error
	if errors.As(err, &refused) {
		return string(refused.Step)
	}
	if err != nil {
		return "not an *Error: " + err.Error()
	}
	return ""
}

type proofCase struct {
	Name   string
	File   hexBytes
	Newer  hexBytes
	Vkey   string
	Policy *string
	Valid  bool
	Step   *string `json:"failed step"`
	Claim  json.RawMessage
}

func (c *proofCase) step() string {
	if c.Step == nil {
		return ""
	}
	return *c.Step
}

func TestProofsAreJudgedAsTheVectorsSay(t *testing.T) {
	var all struct {
		Vkey  string
		Cases []proofCase
	}
	vectors(t, "proofs.json", &all)
	if len(all.Cases) < 90 {
		t.Fatalf("%d cases", len(all.Cases))
	}
	key := mustKey(t, all.Vkey)
	for _, c := range all.Cases {
		verified, err := Verify(c.File, key, &Options{Newer: c.Newer})
		if got := stepOf(err); got != c.step() || (err == nil) != c.Valid {
			t.Errorf("%s: refused by %q, not by %q: %v", c.Name, got, c.step(), err)
		}
		if err == nil {
			compareClaim(t, c.Name, claim(verified), c.Claim)
		}
	}
}

func compareClaim(t *testing.T, name string, got any, stored json.RawMessage) {
	t.Helper()
	encoded, err := json.Marshal(got)
	if err != nil {
		t.Fatal(err)
	}
	var a, b any
	if json.Unmarshal(encoded, &a) != nil || json.Unmarshal(stored, &b) != nil {
		t.Fatalf("%s: no JSON", name)
	}
	if !reflect.DeepEqual(a, b) {
		t.Errorf("%s: the claim is %.300s and not %.300s", name, encoded, stored)
	}
}

type object = map[string]any

func pairOf(s Stamp) []uint64 { return []uint64{s.Epoch, s.Version} }

func hexOrNull(b []byte) any {
	if b == nil {
		return nil
	}
	return hex.EncodeToString(b)
}

// claim is what a reader of a valid file is to find in it, in the form of the vectors.
func claim(v *Verified) object {
	found := func(r *Record) any {
		return object{
			"stamp": pairOf(r.Stamp), "value_sha256": r.Hash.String(), "length": r.Length, "value": hexOrNull(r.Value),
		}
	}
	var what object
	switch {
	case v.Query != nil && v.Query.IsRange:
		records := []any{}
		for _, r := range v.Query.Records {
			records = append(records, object{"key": hex.EncodeToString(r.Key), "found": found(&r)})
		}
		what = object{
			"kind": "range", "version": pairOf(v.Header.Stamp()), "low": hex.EncodeToString(v.Query.Low),
			"high": hexOrNull(v.Query.High), "records": records,
		}
	case v.Query != nil:
		keys := []any{}
		for _, a := range v.Query.Keys {
			answer := object{"key": hex.EncodeToString(a.Key), "found": nil}
			if a.Record != nil {
				answer["found"] = found(a.Record)
			}
			keys = append(keys, answer)
		}
		what = object{"kind": "keys", "version": pairOf(v.Header.Stamp()), "keys": keys}
	case v.Receipt != nil:
		what = object{
			"kind": "receipt", "version": pairOf(v.Header.Stamp()), "index": v.Receipt.Index,
			"entry": hex.EncodeToString(v.Receipt.Batch.encode()),
		}
	case v.Standing != nil:
		pairs := [][]uint64{}
		for _, p := range v.Standing.Pairs {
			pairs = append(pairs, []uint64{p.Epoch, p.Base})
		}
		what = object{
			"kind": "standing", "old size": v.Standing.OldSize, "old root": v.Standing.OldRoot.String(), "pairs": pairs,
		}
	}
	return object{
		"cluster": v.Cluster.String(), "size": v.Checkpoint.Size, "root": v.Checkpoint.Root.String(),
		"head": pairOf(v.Newest.Stamp()), "what": what,
	}
}

// encode spells a batch again, to show that nothing of it was lost.
func (e *Entry) encode() []byte {
	w := writer{}
	w.u8(uint8(e.Kind))
	w.flag(e.Session != nil)
	if e.Session != nil {
		w.bytes(e.Session[:])
		w.u64(e.Number)
	}
	w.digest(e.Metadata)
	w.u16(0)
	w.u32(uint32(len(e.Touched)))
	for _, touched := range e.Touched {
		w.u32(touched.Shard)
		w.digest(touched.List)
	}
	return w
}

func TestCasesOfThePageAreJudgedAsTheVectorsSay(t *testing.T) {
	var all struct{ Cases []proofCase }
	vectors(t, "cases.json", &all)
	if len(all.Cases) < 60 {
		t.Fatalf("%d cases", len(all.Cases))
	}
	for _, c := range all.Cases {
		var err error
		if c.Policy != nil {
			policy, parseErr := ParsePolicy([]byte(*c.Policy))
			if parseErr != nil {
				t.Fatal(parseErr)
			}
			_, err = VerifyUnder(c.File, policy, nil)
		} else {
			_, err = Verify(c.File, mustKey(t, c.Vkey), nil)
		}
		if got := stepOf(err); got != c.step() || (err == nil) != c.Valid {
			t.Errorf("%s: refused by %q, not by %q: %v", c.Name, got, c.step(), err)
		}
	}
}

func TestKeyChangesAreFollowedAsTheVectorsSay(t *testing.T) {
	var all struct {
		Cases []struct {
			Name    string
			File    hexBytes
			Newer   hexBytes
			Results []struct {
				Key    string
				Valid  bool
				Signer *string `json:"signed by"`
				Step   *string `json:"failed step"`
			}
		}
	}
	vectors(t, "rotation.json", &all)
	for _, c := range all.Cases {
		for i, result := range c.Results {
			verified, err := Verify(c.File, mustKey(t, result.Key), &Options{Newer: c.Newer})
			step := ""
			if result.Step != nil {
				step = *result.Step
			}
			if got := stepOf(err); got != step || (err == nil) != result.Valid {
				t.Errorf("%s, key %d: refused by %q, not by %q: %v", c.Name, i, got, step, err)
			}
			if err == nil && verified.SignedBy.String() != *result.Signer {
				t.Errorf("%s, key %d: signed by %s", c.Name, i, verified.SignedBy)
			}
		}
	}
}

func TestProofsOfTimesAreJudgedAsTheVectorsSay(t *testing.T) {
	var all struct {
		Vkey  string
		Cases []proofCase
	}
	vectors(t, "times.json", &all)
	if len(all.Cases) < 40 {
		t.Fatalf("%d cases", len(all.Cases))
	}
	key := mustKey(t, all.Vkey)
	for _, c := range all.Cases {
		verified, err := Verify(c.File, key, &Options{Newer: c.Newer})
		if got := stepOf(err); got != c.step() {
			t.Errorf("%s: refused by %q, not by %q: %v", c.Name, got, c.step(), err)
		}
		if err != nil {
			continue
		}
		var next any
		if v := verified.Time.Next; v != nil {
			next = []any{pairOf(v.Stamp()), v.TimestampMS}
		}
		compareClaim(t, c.Name, object{
			"kind": "time", "version": pairOf(verified.Header.Stamp()), "time": verified.Time.TimeMS,
			"committed": verified.Header.TimestampMS, "next": next, "final": verified.Time.Final,
		}, c.Claim)
	}
}

func TestProofsOfLedgersAreJudgedAsTheVectorsSay(t *testing.T) {
	var all struct {
		Vkey  string
		Cases []proofCase
	}
	vectors(t, "ledgers.json", &all)
	key := mustKey(t, all.Vkey)
	for _, c := range all.Cases {
		verified, err := Verify(c.File, key, nil)
		if got := stepOf(err); got != c.step() {
			t.Errorf("%s: refused by %q, not by %q: %v", c.Name, got, c.step(), err)
		}
		if err == nil {
			compareClaim(t, c.Name, ledgerClaim(verified), c.Claim)
		}
	}
}

func ledgerClaim(v *Verified) object {
	journals := func(shown []ProvenJournal) []any {
		list := []any{}
		for _, j := range shown {
			var payload any
			if j.Envelope != nil {
				payload = hex.EncodeToString(j.Envelope.Payload)
			}
			list = append(list, object{
				"jsn": j.Leaf.JSN, "leaf": hex.EncodeToString(j.Leaf.encode()), "payload": payload, "signed": j.Signed != nil,
			})
		}
		return list
	}
	if l := v.Lineage; l != nil {
		return object{
			"kind": "lineage", "version": pairOf(v.Header.Stamp()), "ledger": l.Ledger.String(), "clue": l.Clue.String(),
			"count": l.Count, "after": l.After, "gone": l.Gone, "journals": journals(l.Journals),
		}
	}
	var known any
	if v.Journals.KnownSize > 0 {
		known = []any{v.Journals.KnownSize, v.Journals.KnownRoot.String()}
	}
	return object{
		"kind": "journals", "version": pairOf(v.Header.Stamp()), "ledger": v.Journals.Ledger.String(),
		"size": v.Journals.Size, "root": v.Journals.Root.String(), "known": known, "journals": journals(v.Journals.Journals),
	}
}

func TestHashesAreThoseOfTheVectors(t *testing.T) {
	var all map[string]any
	vectors(t, "hashes.json", &all)
	a, b, c := sha([]byte("a")), sha([]byte("b")), sha([]byte("c"))
	stamp := Stamp{Epoch: 1, Version: 258}
	value := sha([]byte("value"))
	operations := []Operation{Put([]byte("key"), []byte("value")), Delete([]byte("other"))}
	preconditions := []Precondition{
		{Key: []byte("key")}, {Key: []byte("x"), LastChanged: &stamp}, {Key: []byte("y"), ValueHash: &a},
	}
	x, y := filterHash([]byte("key"))
	node := func(hashes ...Digest) Digest { return leafNodeHash(len(hashes), MerkleRoot(hashes)) }
	computed := map[string]any{
		"a": a, "b": b, "c": c,
		"root of no leaves":                                 emptyRoot,
		"log entry 'entry'":                                 logEntryHash([]byte("entry")),
		"list node of a, b":                                 nodeHash(&a, &b),
		"list of a, b, c":                                   MerkleRoot([]Digest{a, b, c}),
		"put of 'key' = 'value' at the stamp":               recordHash([]byte("key"), stamp, true, 5, &value),
		"tombstone of 'key' at the stamp":                   recordHash([]byte("key"), stamp, false, 0, nil),
		"leaf node without records":                         emptyLeafHash,
		"leaf node of records with hashes a, b, c":          node(a, b, c),
		"inner entry 'key' with child a":                    entryHash([]byte("key"), a),
		"inner node at level 2 of entries with hashes a, b": innerNodeHash(2, 2, MerkleRoot([]Digest{a, b})),
		"empty tree":                                        emptyTreeDigest,
		"tree with root a at level 2 of 1000 entries":       treeDigest(2, 1000, a),
		"forest of an empty tree":                           emptyShard,
		"forest of trees a, b":                              shardDigest([]Digest{a, b}),
		"filter hash of 'key': first and second u64":        []any{fmt.Sprint(x), fmt.Sprint(y)},
		"state leaf of shard 3, 'low' to 'top', version 77, digest a": stateLeafHash(
			3,
			[]byte("low"),
			[]byte("top"),
			77,
			a,
		),
		"state leaf of shard 3, 'low' to the end, version 77, digest a": stateLeafHash(3, []byte("low"), nil, 77, a),
		"epoch leaf of epoch 2, base 7":                                 epochLeafHash(Pair{Epoch: 2, Base: 7}),
		"journal leaf of 'entry'":                                       JournalLeafHash([]byte("entry")),
		"operation list: put of 'key' = 'value', delete of 'other'":     OperationListHash(operations),
		"metadata 'metadata'":                                           MetadataHash([]byte("metadata")),
		"batch: these operations; 'key' absent, 'x' last changed at the stamp, " +
			"'y' has value hash a; this metadata": BatchHash(
			operations,
			preconditions,
			[]byte("metadata"),
		),
		"checksum of 'file' as u64": fmt.Sprint(checksum([]byte("file"))),
	}
	for name, stored := range all {
		if name == "about" {
			continue
		}
		got, known := computed[name]
		if digest, ok := got.(Digest); ok {
			got = digest.String()
		}
		if !known || !reflect.DeepEqual(got, stored) {
			t.Errorf("%s: %v, not %v", name, got, stored)
		}
	}
}

func TestListProofsAreThoseOfTheVectors(t *testing.T) {
	type listCase struct {
		Why      string
		Size     uint64
		Revealed []uint64
		Hashes   []Digest
		Root     Digest
	}
	var all struct {
		Leaves         []Digest
		Valid, Invalid []listCase
	}
	vectors(t, "list-proofs.json", &all)
	compute := func(c listCase) (Digest, error) {
		var shown []shownLeaf
		var hashes hashList
		for _, index := range c.Revealed {
			shown = append(shown, shownLeaf{index: index, hash: all.Leaves[index%7]})
		}
		for _, hash := range c.Hashes {
			hashes = append(hashes, hash[:]...)
		}
		return listRoot(c.Size, shown, hashes)
	}
	for _, c := range all.Valid {
		if root, err := compute(c); err != nil || root != c.Root {
			t.Errorf("%d of %d: %v", c.Revealed, c.Size, err)
		}
	}
	for _, c := range all.Invalid {
		if _, err := compute(c); err == nil {
			t.Errorf("accepted: %s", c.Why)
		}
	}
	if len(all.Valid) < 50 || len(all.Invalid) < 8 {
		t.Error("vectors are missing")
	}
}

func TestNotesAndKeysAreJudgedAsTheVectorsSay(t *testing.T) {
	var all struct {
		Vkey  string
		Notes []struct {
			Name, Note string
			Valid      bool
		}
		Keys []struct {
			Name, Vkey string
			Valid      bool
		}
	}
	vectors(t, "notes.json", &all)
	key := mustKey(t, all.Vkey)
	for _, c := range all.Notes {
		if _, err := OpenCheckpoint([]byte(c.Note), key); (err == nil) != c.Valid {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
	for _, c := range all.Keys {
		key, err := ParseVKey(c.Vkey)
		if (err == nil) != c.Valid || c.Valid && key.String() != c.Vkey {
			t.Errorf("%s: %v", c.Name, err)
		}
	}
}

// storedLog is log.json.
type storedLog struct {
	Entries []struct {
		Kind      string
		Bytes     hexBytes
		Sequence  uint64
		Stamp     Stamp
		EntryHash Digest `json:"entry hash"`
		StateRoot Digest `json:"state root"`
	}
	Versions []struct {
		Stamp   Stamp
		Journal []hexBytes
		Leaves  []Digest `json:"state leaves"`
	}
	Checkpoints []struct {
		Root Digest
		Size int
	}
	Epochs []struct {
		Epoch, Target uint64
		Pairs         [][2]uint64
		Root          Digest
	}
	ShardMap     hexBytes `json:"shard map"`
	ShardMapHash Digest   `json:"shard map hash"`
	Invalid      []struct {
		Why   string
		Bytes hexBytes
	} `json:"invalid headers"`
}

func TestTheLogIsReadAsTheVectorsSay(t *testing.T) {
	var all storedLog
	vectors(t, "log.json", &all)
	headers := map[Stamp]*Header{}
	var hashes []Digest
	for i, entry := range all.Entries {
		header, err := DecodeHeader(entry.Bytes)
		if err != nil {
			t.Fatalf("entry %d: %v", i, err)
		}
		if header.Sequence != entry.Sequence || header.Stamp() != entry.Stamp || header.StateRoot != entry.StateRoot ||
			EntryHash(entry.Bytes) != entry.EntryHash {
			t.Errorf("entry %d is read otherwise", i)
		}
		if header.Kind == KindCommit || header.Kind == KindGenesis {
			headers[header.Stamp()] = header
		}
		hashes = append(hashes, entry.EntryHash)
	}
	for _, version := range all.Versions {
		header := headers[version.Stamp]
		var leaves []Digest
		for _, entry := range version.Journal {
			if _, err := DecodeEntry(entry); err != nil {
				t.Errorf("version %s: %v", version.Stamp, err)
			}
			leaves = append(leaves, JournalLeafHash(entry))
		}
		if MerkleRoot(leaves) != header.JournalRoot || MerkleRoot(version.Leaves) != header.StateRoot {
			t.Errorf("version %s has other roots", version.Stamp)
		}
	}
	for _, checkpoint := range all.Checkpoints {
		if MerkleRoot(hashes[:checkpoint.Size]) != checkpoint.Root {
			t.Errorf("another root of %d entries", checkpoint.Size)
		}
	}
	checkEpochSteps(t, &all)
	if hashOf(tagShardMap, all.ShardMap) != all.ShardMapHash {
		t.Error("another hash of the shard map")
	}
	for _, invalid := range all.Invalid {
		if _, err := DecodeHeader(invalid.Bytes); err == nil {
			t.Errorf("accepted: %s", invalid.Why)
		}
	}
}

func checkEpochSteps(t *testing.T, all *storedLog) {
	t.Helper()
	pairs := []Pair{{}}
	for _, step := range all.Epochs {
		pairs = rollBack(pairs, step.Epoch, step.Target)
		var leaves []Digest
		var spelt [][2]uint64
		for _, pair := range pairs {
			leaves = append(leaves, epochLeafHash(pair))
			spelt = append(spelt, [2]uint64{pair.Epoch, pair.Base})
		}
		if !reflect.DeepEqual(spelt, step.Pairs) || MerkleRoot(leaves) != step.Root {
			t.Errorf("after the rollback to %d: %v", step.Target, pairs)
		}
	}
}

// flip judges a valid file with each bit flipped in turn, also under a checksum that fits again.
func flip(t *testing.T, name string, file []byte, key VKey) {
	t.Helper()
	content := len(file) - checksumBytes
	damaged := make([]byte, len(file))
	for bit := range len(file) * 8 {
		copy(damaged, file)
		damaged[bit/8] ^= 1 << (bit % 8)
		if _, err := Verify(damaged, key, nil); stepOf(err) != "format" {
			t.Fatalf("%s: bit %d is flipped: %v", name, bit, err)
		}
	}
	honest, err := Verify(file, key, nil)
	if err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	for bit := range content * 8 {
		copy(damaged, file)
		damaged[bit/8] ^= 1 << (bit % 8)
		binary.LittleEndian.PutUint64(damaged[content:], checksum(damaged[:content]))
		if other, err := Verify(damaged, key, nil); err == nil {
			if !saysTheSame(other, honest) {
				t.Fatalf("%s: with bit %d flipped, something else is proven", name, bit)
			}
		}
	}
}

// saysTheSame compares claims. A damaged question may be another question that the file answers as
// well, so questions that are equal must have equal answers.
func saysTheSame(a, b *Verified) bool {
	if a.Time != nil && b.Time != nil {
		// Another time between the two versions has the same answer.
		a.Time.TimeMS = b.Time.TimeMS
	}
	if a.Query == nil || b.Query == nil {
		return reflect.DeepEqual(a, b)
	}
	if a.Header.Sequence != b.Header.Sequence || a.Query.IsRange != b.Query.IsRange {
		return false
	}
	answers := map[string]Answer{}
	for _, answer := range b.Query.Keys {
		answers[string(answer.Key)] = answer
	}
	for _, answer := range a.Query.Keys {
		if honest, asked := answers[string(answer.Key)]; asked && !reflect.DeepEqual(answer, honest) {
			return false
		}
	}
	return !a.Query.IsRange || sameRecords(a.Query, b.Query)
}

// sameRecords tells whether two ranges agree about the records that both have.
func sameRecords(a, b *Query) bool {
	inA := func(key []byte) bool { return (&Shard{Low: a.Low, High: a.High}).holds(key) }
	inB := func(key []byte) bool { return (&Shard{Low: b.Low, High: b.High}).holds(key) }
	shared := func(records []Record) (kept []Record) {
		for _, r := range records {
			if inA(r.Key) && inB(r.Key) {
				kept = append(kept, r)
			}
		}
		return kept
	}
	return reflect.DeepEqual(shared(a.Records), shared(b.Records))
}

func TestEachFlippedBitIsRefused(t *testing.T) {
	kinds := map[FileKind]int{}
	for _, name := range []string{"proofs.json", "ledgers.json", "times.json", "anchors.json"} {
		var all struct {
			Vkey          string
			Cases, Proofs []proofCase
		}
		vectors(t, name, &all)
		key := mustKey(t, all.Vkey)
		for _, c := range slices.Concat(all.Cases, all.Proofs) {
			// The shortest files of each kind: each bit of a file is a verification.
			if c.Step != nil || len(c.File) > 1_850 {
				continue
			}
			parsed, err := decodeFile(c.File)
			if err != nil {
				t.Fatal(err)
			}
			if kinds[parsed.kind]++; kinds[parsed.kind] > 2 {
				continue
			}
			t.Run(c.Name, func(t *testing.T) {
				t.Parallel()
				flip(t, c.Name, c.File, key)
			})
		}
	}
	if len(kinds) != 7 {
		t.Errorf("bits were flipped in files of the kinds %v", kinds)
	}
}
