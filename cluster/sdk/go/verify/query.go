package verify

import (
	"bytes"
	"errors"
	"sort"
)

// Record is the newest change of a key that a proof shows, with its value if the file has it.
type Record struct {
	Key    []byte
	Stamp  Stamp
	Length uint32
	Hash   Digest
	// Value is nil if the file has no values.
	Value []byte
}

// Answer is what a query proof says of one key. A nil Record means that it has no value.
type Answer struct {
	Key    []byte
	Record *Record
	// UnchangedSince is the version from which on the key did not change, up to that of the proof: the
	// version of the record or, if there is none, that of the last change of the key's shard.
	UnchangedSince uint64
}

// Query is the claim of a query proof, about keys or about a range.
type Query struct {
	// Keys has one answer for each key asked for, in ascending order; nil for a range.
	Keys []Answer
	// IsRange tells a range, Low <= key < High, from keys. A nil High is the end of the key space.
	IsRange   bool
	Low, High []byte
	// Records are all those of a range, in ascending order.
	Records []Record
	// HasValues tells whether the file contains the values.
	HasValues bool
	// Shards are those that the file shows.
	Shards []Shard
}

// checkState recomputes the state root of a header from the shown shards: steps state and tree.
func (q *queryPart) checkState(header *Header) error {
	shown := make([]shownLeaf, len(q.shards))
	for i := range q.shards {
		part := &q.shards[i]
		digests := make([]Digest, len(part.trees))
		for t := range part.trees {
			digest, err := part.trees[t].digest(header.Stamp())
			if err != nil {
				return under(StepTree, err)
			}
			digests[t] = digest
		}
		if part.version > header.Version {
			return fail(StepState, "the version of a shard is above that of the header")
		}
		leaf := stateLeafHash(part.shard.ID, part.shard.Low, part.shard.High, part.version, shardDigest(digests))
		shown[i] = shownLeaf{index: uint64(part.index), hash: leaf}
	}
	root, err := listRoot(uint64(header.StateLeaves), shown, q.hashes)
	if err != nil {
		return under(StepState, err)
	}
	if root != header.StateRoot {
		return fail(StepState, "the shards do not lead to the state root")
	}
	return under(StepState, q.checkMap(header.StateLeaves))
}

// checkMap holds the shown shards to those of one map.
func (q *queryPart) checkMap(leaves uint32) error {
	ids := make(map[uint32]bool, len(q.shards))
	for i := range q.shards {
		part := &q.shards[i]
		if ids[part.shard.ID] {
			return errors.New("two shards have one id")
		}
		ids[part.shard.ID] = true
		if (part.index == 0) != (len(part.shard.Low) == 0) || (part.index == leaves-1) != (part.shard.High == nil) {
			return errors.New("the first shard alone has no beginning, and the last alone no end")
		}
		if i == 0 {
			continue
		}
		before := &q.shards[i-1]
		order := bytes.Compare(before.shard.High, part.shard.Low)
		if before.shard.High == nil || order > 0 || before.index+1 == part.index && order != 0 {
			return errors.New("two shards overlap, or leave a gap")
		}
		if before.index+1 < part.index && order == 0 {
			return errors.New("two shards join, though others lie between them")
		}
	}
	return nil
}

// answer gives what the shown trees say: steps query and value.
func (q *queryPart) answer() (*Query, error) {
	claim := &Query{IsRange: q.keys == nil, Low: q.low, High: q.high, HasValues: q.hasValues}
	for _, part := range q.shards {
		claim.Shards = append(claim.Shards, part.shard)
	}
	var found []*Record
	if claim.IsRange {
		records, err := q.answerRange()
		if err != nil {
			return nil, under(StepQuery, err)
		}
		claim.Records = records
		for i := range records {
			found = append(found, &records[i])
		}
	} else {
		answers, err := q.answerKeys()
		if err != nil {
			return nil, under(StepQuery, err)
		}
		claim.Keys = answers
		for _, answer := range answers {
			if answer.Record != nil {
				found = append(found, answer.Record)
			}
		}
	}
	return claim, q.attachValues(found)
}

func (q *queryPart) attachValues(found []*Record) error {
	if !q.hasValues {
		return nil
	}
	if len(found) != len(q.values) {
		return fail(StepValue, "there are %d values of %d records", len(q.values), len(found))
	}
	for i, record := range found {
		value := q.values[i]
		if uint64(len(value)) != uint64(record.Length) || sha(value) != record.Hash {
			return fail(StepValue, "a value is not that of its record")
		}
		record.Value = value
	}
	return nil
}

func (e *partEntry) record() Record {
	return Record{Key: e.key, Stamp: e.stamp, Length: e.length, Hash: *e.hash}
}

func (q *queryPart) answerKeys() ([]Answer, error) {
	answers := make([]Answer, 0, len(q.keys))
	needed := 0
	at, used := 0, false
	for _, key := range q.keys {
		for at < len(q.shards) && !q.shards[at].shard.holds(key) {
			at, used = at+1, false
		}
		if at == len(q.shards) {
			return nil, errors.New("no shown shard holds a key that was asked for")
		}
		if !used {
			needed, used = needed+1, true
		}
		entry, err := q.shards[at].find(key)
		if err != nil {
			return nil, err
		}
		answer := Answer{Key: key, UnchangedSince: q.shards[at].version}
		if entry != nil && entry.put {
			record := entry.record()
			answer.Record, answer.UnchangedSince = &record, record.Stamp.Version
		}
		answers = append(answers, answer)
	}
	if needed != len(q.shards) {
		return nil, errors.New("a shard is shown that the query does not need")
	}
	return answers, nil
}

// find asks the trees of a shard, youngest first.
func (p *shardPart) find(key []byte) (*partEntry, error) {
	for i := range p.trees {
		entry, err := p.trees[i].find(key)
		if entry != nil || err != nil {
			return entry, err
		}
	}
	return nil, nil
}

func (q *queryPart) answerRange() ([]Record, error) {
	if err := q.checkCover(); err != nil {
		return nil, err
	}
	var records []Record
	for i := range q.shards {
		var err error
		if records, err = q.shards[i].scan(q.low, q.high, records); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// checkCover refuses shards that do not cover the range without a gap, or that go beyond it.
func (q *queryPart) checkCover() error {
	beyond := func(key []byte) bool { return q.high != nil && bytes.Compare(key, q.high) >= 0 }
	for i := range q.shards {
		shard := &q.shards[i].shard
		switch {
		case i == 0 && !shard.holds(q.low):
			return errors.New("the first shard does not hold the low bound")
		case i > 0 && !equalBytes(q.shards[i-1].shard.High, shard.Low):
			return errors.New("the shown shards leave a gap")
		case i > 0 && beyond(shard.Low):
			return errors.New("a shard is shown that the query does not need")
		}
	}
	last := &q.shards[len(q.shards)-1].shard
	if last.High != nil && !beyond(last.High) {
		return errors.New("the shown shards end below the range")
	}
	return nil
}

// scan appends the records of the shard's part of a range: of each key the youngest, without
// tombstones. Records of a tree outside of its shard's range are no part of any answer.
func (p *shardPart) scan(low, high []byte, records []Record) ([]Record, error) {
	if bytes.Compare(low, p.shard.Low) < 0 {
		low = p.shard.Low
	}
	if high == nil || p.shard.High != nil && bytes.Compare(p.shard.High, high) < 0 {
		high = p.shard.High
	}
	type aged struct {
		entry *partEntry
		tree  int
	}
	var all []aged
	for tree := range p.trees {
		entries, err := p.trees[tree].scan(low, high, nil)
		if err != nil {
			return nil, err
		}
		for _, entry := range entries {
			all = append(all, aged{entry, tree})
		}
	}
	sort.Slice(all, func(i, j int) bool {
		order := bytes.Compare(all[i].entry.key, all[j].entry.key)
		return order < 0 || order == 0 && all[i].tree < all[j].tree
	})
	for i := range all {
		if i > 0 && bytes.Equal(all[i].entry.key, all[i-1].entry.key) {
			continue
		}
		if all[i].entry.put {
			records = append(records, all[i].entry.record())
		}
	}
	return records, nil
}
