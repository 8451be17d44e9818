package verify

import (
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"
)

type ruleParams struct {
	Encoded hexBytes
}

func (p ruleParams) decode(t *testing.T) *Params {
	t.Helper()
	r := reader{rest: p.Encoded}
	params := decodeParams(&r)
	if err := r.end(); err != nil {
		t.Fatal(err)
	}
	return &params
}

func TestRulesAreThoseOfTheVectors(t *testing.T) {
	var all struct {
		Parameters ruleParams
		Lists      []struct {
			Weights        []uint64
			Split, Packing [][2]int
		}
		Weights []struct {
			Entry  uint64  `json:"inner entry"`
			Key    int     `json:"key length"`
			Value  *uint32 `json:"value length"`
			Record uint64
		}
		Separators []struct{ Left, Right, Separator string }
		Filters    []map[string]json.RawMessage
		Admitted   []string `json:"false positives of a filter of key-0 .. key-59 among key-60 .. key-399"`
		Tiers      []map[string]json.RawMessage
	}
	vectors(t, "rules.json", &all)
	p := all.Parameters.decode(t)
	ranges := func(ends []int) (pieces [][2]int) {
		start := 0
		for _, end := range ends {
			pieces, start = append(pieces, [2]int{start, end}), end
		}
		return pieces
	}
	for _, list := range all.Lists {
		if got := ranges(p.split(list.Weights)); !reflect.DeepEqual(got, list.Split) {
			t.Errorf("split of %v: %v", list.Weights, got)
		}
		if got := ranges(p.pack(list.Weights)); !reflect.DeepEqual(got, list.Packing) {
			t.Errorf("packing of %v: %v", list.Weights, got)
		}
	}
	for _, w := range all.Weights {
		length := uint32(0)
		if w.Value != nil {
			length = *w.Value
		}
		if p.recordWeight(w.Key, w.Value != nil, length) != w.Record || p.entryWeight(w.Key) != w.Entry {
			t.Errorf("weights of %+v", w)
		}
	}
	for _, s := range all.Separators {
		if got := separator([]byte(s.Left), []byte(s.Right)); string(got) != s.Separator {
			t.Errorf("separator of %s and %s: %s", s.Left, s.Right, got)
		}
	}
	checkFilters(t, p, all.Filters, all.Admitted)
	checkTiers(t, p, all.Tiers)
}

func checkFilters(t *testing.T, p *Params, filters []map[string]json.RawMessage, expected []string) {
	t.Helper()
	for _, f := range filters {
		var entries, blocks, block uint64
		var bits []uint16
		for name, into := range map[string]any{
			"entries": &entries, "blocks": &blocks, "block of 'key'": &block, "bits of 'key'": &bits,
		} {
			if err := json.Unmarshal(f[name], into); err != nil {
				t.Fatal(err)
			}
		}
		at, places := filterPlace([]byte("key"), p.filterBlocks(entries))
		if p.filterBlocks(entries) != blocks || at != block || !reflect.DeepEqual(places[:], bits) {
			t.Errorf("filter of %d entries", entries)
		}
	}
	var keys [][]byte
	admitted := []string{}
	for i := range 60 {
		keys = append(keys, fmt.Appendf(nil, "key-%d", i))
	}
	filter := newFilter(p, keys)
	for i := 60; i < 400; i++ {
		if key := fmt.Sprintf("key-%d", i); filter.admits([]byte(key)) {
			admitted = append(admitted, key)
		}
	}
	if !reflect.DeepEqual(admitted, expected) {
		t.Errorf("admitted: %v", admitted)
	}
}

func checkTiers(t *testing.T, p *Params, tiers []map[string]json.RawMessage) {
	t.Helper()
	for _, tier := range tiers {
		var entries []uint64
		var merged int
		if json.Unmarshal(tier["entries, youngest first"], &entries) != nil ||
			json.Unmarshal(tier["merged"], &merged) != nil {
			t.Fatal("the form of the tiers")
		}
		if got := p.tiers(entries); got != merged {
			t.Errorf("of %v, %d are merged", entries, got)
		}
	}
}

func TestShardsAreReplayedAsTheVectorsSay(t *testing.T) {
	var all struct {
		Parameters ruleParams
		Prepares   []struct {
			Stamp      Stamp
			Operations [][2]any
			Merges     []struct {
				Inputs []Digest
				Output Digest
			}
			Trees []struct {
				Level   uint8
				Entries uint64
				Digest  Digest
			}
			ShardDigest Digest `json:"shard digest"`
		}
	}
	vectors(t, "replay.json", &all)
	f := newForest(all.Parameters.decode(t))
	for _, prepare := range all.Prepares {
		for _, merge := range prepare.Merges {
			if err := f.merge(merge.Inputs, merge.Output); err != nil {
				t.Fatal(prepare.Stamp, err)
			}
		}
		var operations []Operation
		for _, o := range prepare.Operations {
			key := []byte(o[0].(string))
			if length, put := o[1].(float64); put {
				operations = append(operations, Put(key, []byte(strings.Repeat("v", int(length)))))
			} else {
				operations = append(operations, Delete(key))
			}
		}
		f.write(prepare.Stamp, operations)
		for i, tree := range append([]*liveTree{f.active}, f.frozen...) {
			stored := prepare.Trees[i]
			if tree.root.level != stored.Level || tree.entries != stored.Entries || tree.digest() != stored.Digest {
				t.Fatalf("%s: tree %d is another", prepare.Stamp, i)
			}
		}
		if f.digest() != prepare.ShardDigest {
			t.Fatalf("%s: another digest", prepare.Stamp)
		}
	}
}

func TestLongSeparatorsArePackedAsTheVectorSays(t *testing.T) {
	var stored struct {
		Level  uint8
		Digest Digest `json:"tree digest"`
	}
	vectors(t, "packing.json", &stored)
	// The default parameters of a ledger.
	p := &Params{NodeBytes: 4032, Fanout: 64, InlineBytes: 128}
	var records []liveRecord
	for i := range 400 {
		key := fmt.Sprintf("%s%04d%s", strings.Repeat("p", 300), 7*i, strings.Repeat("q", 100))
		records = append(records, liveRecord{
			key: []byte(key), stamp: Stamp{Version: 1}, put: true, length: 1, value: sha([]byte("x")),
		})
	}
	tree := p.packTree(records)
	if tree.root.level != stored.Level || tree.digest() != stored.Digest {
		t.Errorf("level %d, digest %s", tree.root.level, tree.digest())
	}
}

// auditLog reads all headers of a log, then replays each version that stands.
func auditLog(log []auditEntry) error {
	headers := &HeaderLog{}
	for _, entry := range log {
		if err := headers.Append(entry.Header); err != nil {
			return err
		}
	}
	replay, err := NewReplay(headers)
	if err != nil {
		return err
	}
	for version := uint64(1); version <= headers.Head(); version++ {
		entry := log[headers.Header(version).Sequence]
		journal := VersionJournal{Lists: make(map[uint32][][]byte)}
		for _, e := range entry.Journal {
			journal.Entries = append(journal.Entries, e)
		}
		for id, lists := range entry.Lists {
			number, err := strconv.ParseUint(id, 10, 32)
			if err != nil {
				return err
			}
			for _, list := range lists {
				journal.Lists[uint32(number)] = append(journal.Lists[uint32(number)], list)
			}
		}
		if err := replay.Version(journal); err != nil {
			return err
		}
	}
	return nil
}

type auditEntry struct {
	Header  hexBytes
	Journal []hexBytes
	Lists   map[string][]hexBytes
}

func TestLogsAreAuditedAsTheVectorsSay(t *testing.T) {
	for _, name := range []string{"audits.json", "ledger-audits.json"} {
		var all struct {
			Cases []struct {
				Name     string
				Log      []auditEntry
				Sound    bool
				Sequence *uint64
				Rule     *int
			}
		}
		vectors(t, name, &all)
		if len(all.Cases) < 40 {
			t.Fatalf("%d cases", len(all.Cases))
		}
		for _, c := range all.Cases {
			err := auditLog(c.Log)
			var broken *AuditError
			if c.Sound {
				if err != nil {
					t.Errorf("%s: %v", c.Name, err)
				}
			} else if !errors.As(err, &broken) || broken.Rule != *c.Rule || broken.Sequence != *c.Sequence {
				t.Errorf("%s: rule %d of entry %d: %v", c.Name, *c.Rule, *c.Sequence, err)
			}
		}
	}
}

func TestTheRootOfReadHeadersIsThatOfTheirHashes(t *testing.T) {
	var all struct {
		Entries []struct{ Bytes hexBytes }
	}
	vectors(t, "log.json", &all)
	log := &HeaderLog{}
	var hashes []Digest
	for _, entry := range all.Entries {
		if err := log.Append(entry.Bytes); err != nil {
			t.Fatal(err)
		}
		hashes = append(hashes, EntryHash(entry.Bytes))
		if got := log.Checkpoint(); got.Root != MerkleRoot(hashes) || got.Size != uint64(len(hashes)) {
			t.Fatalf("after %d headers", len(hashes))
		}
	}
}
