package verify

import (
	"crypto/ed25519"
	"slices"
	"testing"
)

// keyHeader makes a header of format 1 that changes the key of one seed to that of another.
func keyHeader(sequence uint64, number uint32, old, next uint16) []byte {
	change := writer{}
	change.u8(tagKeyChange)
	change.bytes([]byte("coppice-key-change"))
	change.bytes(make([]byte, 16))
	change.u32(number)
	change.bytes(publicOf(old))
	change.bytes(publicOf(next))
	body := writer{}
	body.u32(number)
	body.bytes(publicOf(old))
	body.bytes(publicOf(next))
	body.bytes(ed25519.Sign(seeded(old), change))
	body.bytes(ed25519.Sign(seeded(next), change))
	body.str16([]byte("nobody"))
	body.str16([]byte("no reason"))
	w := writer{}
	w.u8(format1)
	w.u8(uint8(KindKey))
	w.bytes(make([]byte, 16))
	w.u64(sequence)
	w.bytes(make([]byte, 3*8+32))
	w.u32(1)
	w.digest(Digest{})
	w.digest(emptyRoot)
	w.u32(0)
	w.digest(Digest{})
	w.u32(1)
	w.u64(0)
	w.digest(Digest{})
	w.str16(body)
	return w
}

func TestKeyChangesFollowEachOther(t *testing.T) {
	for name, c := range map[string]struct {
		headers [][]byte
		sound   bool
	}{
		"two changes":                  {[][]byte{keyHeader(4, 1, 1, 2), keyHeader(6, 2, 2, 3)}, true},
		"places that do not ascend":    {[][]byte{keyHeader(6, 1, 1, 2), keyHeader(4, 2, 2, 3)}, false},
		"two changes at one place":     {[][]byte{keyHeader(4, 1, 1, 2), keyHeader(4, 2, 2, 3)}, false},
		"a number left out":            {[][]byte{keyHeader(4, 1, 1, 2), keyHeader(6, 3, 2, 3)}, false},
		"a change from another key":    {[][]byte{keyHeader(4, 1, 1, 2), keyHeader(6, 2, 4, 3)}, false},
		"a change back to the first":   {[][]byte{keyHeader(4, 1, 1, 2), keyHeader(6, 2, 2, 1)}, false},
		"a change to the same key":     {[][]byte{keyHeader(4, 1, 1, 1)}, false},
		"number 257":                   {[][]byte{keyHeader(4, 257, 1, 2)}, false},
		"a change at the first place":  {[][]byte{keyHeader(0, 1, 1, 2)}, false},
		"what is no header":            {[][]byte{{1}}, false},
		"a first change with number 2": {[][]byte{keyHeader(4, 2, 1, 2)}, false},
		"a change back to the second": {
			[][]byte{keyHeader(4, 1, 1, 2), keyHeader(6, 2, 2, 3), keyHeader(8, 3, 3, 2)}, false,
		},
	} {
		var parts []headerPart
		for _, header := range c.headers {
			parts = append(parts, headerPart{header: header})
		}
		if _, err := decodeChanges(parts, ClusterID{}); (err == nil) != c.sound {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := decodeChanges(parts, ClusterID{1}); err == nil {
			t.Errorf("%s: accepted for another cluster", name)
		}
	}
}

// shownShard is a shard of one empty tree.
func shownShard(index, id uint32, low, high string, version uint64) shardPart {
	part := shardPart{index: index, version: version, trees: []treePart{{hash: emptyLeafHash}}}
	part.shard = Shard{ID: id, Low: []byte(low)}
	if high != "" {
		part.shard.High = []byte(high)
	}
	return part
}

// A ledger signed a header over a state that fits no map.
func TestShownShardsAreThoseOfOneMap(t *testing.T) {
	for name, c := range map[string]struct {
		shards []shardPart
		leaves uint32
		sound  bool
	}{
		"one shard":                    {[]shardPart{shownShard(0, 0, "", "", 5)}, 1, true},
		"two shards":                   {[]shardPart{shownShard(0, 0, "", "m", 0), shownShard(1, 1, "m", "", 5)}, 2, true},
		"a version above the header's": {[]shardPart{shownShard(0, 0, "", "", 6)}, 1, false},
		"a gap":                        {[]shardPart{shownShard(0, 0, "", "m", 5), shownShard(1, 1, "n", "", 5)}, 2, false},
		"an overlap":                   {[]shardPart{shownShard(0, 0, "", "m", 5), shownShard(1, 1, "l", "", 5)}, 2, false},
		"two shards of one id":         {[]shardPart{shownShard(0, 3, "", "m", 5), shownShard(1, 3, "m", "", 5)}, 2, false},
		"a first one with a beginning": {[]shardPart{shownShard(0, 0, "a", "", 5)}, 1, false},
		"a last one with an end":       {[]shardPart{shownShard(0, 0, "", "m", 5)}, 1, false},
		"an end before the last":       {[]shardPart{shownShard(0, 0, "", "", 5), shownShard(1, 1, "m", "", 5)}, 2, false},
		"places that do not ascend":    {[]shardPart{shownShard(1, 1, "m", "", 5), shownShard(0, 0, "", "m", 5)}, 2, false},
		"a second one without a bound": {[]shardPart{shownShard(0, 0, "", "m", 5), shownShard(1, 1, "", "", 5)}, 2, false},
		"none":                         {nil, 1, false},
		"a place beyond the header's":  {[]shardPart{shownShard(1, 0, "", "", 5)}, 1, false},
	} {
		header := &Header{Version: 5, StateLeaves: c.leaves}
		query := &queryPart{shards: c.shards}
		var leaves []Digest
		for _, s := range c.shards {
			leaves = append(leaves, stateLeafHash(s.shard.ID, s.shard.Low, s.shard.High, s.version, emptyShard))
		}
		header.StateRoot = MerkleRoot(leaves)
		if err := query.checkState(header); (err == nil) != c.sound || err != nil && stepOf(err) != "state" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestARangeIsCoveredByWhatIsShown(t *testing.T) {
	left, middle, right := shownShard(0, 0, "", "h", 5), shownShard(1, 1, "h", "p", 5), shownShard(2, 2, "p", "", 5)
	for name, c := range map[string]struct {
		shards    []shardPart
		low, high string
		sound     bool
	}{
		"all":                       {[]shardPart{left, middle, right}, "", "", true},
		"without its end":           {[]shardPart{left, middle}, "", "", false},
		"without its beginning":     {[]shardPart{middle, right}, "", "", false},
		"without its middle":        {[]shardPart{left, right}, "", "", false},
		"up to a bound":             {[]shardPart{left, middle}, "a", "p", true},
		"up to behind a bound":      {[]shardPart{left, middle}, "a", "pa", false},
		"one shard too many":        {[]shardPart{left, middle, right}, "a", "p", false},
		"one shard too many before": {[]shardPart{left, middle}, "h", "p", false},
	} {
		query := &queryPart{shards: c.shards, low: []byte(c.low)}
		if c.high != "" {
			query.high = []byte(c.high)
		}
		if _, err := query.answer(); (err == nil) != c.sound {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, bounds := range [][2]string{{"a", "a"}, {"b", "a"}, {"", ""}, {"a", ""}} {
		w := writer{}
		w.u8(1)
		w.str16([]byte(bounds[0]))
		w.optStr16([]byte(bounds[1]))
		r := reader{rest: w}
		if decodeQuery(&r); r.err == nil || r.err == errShort {
			t.Errorf("%q is taken for a range: %v", bounds, r.err)
		}
	}
}

// A ledger can sign a state with a record in the shard of another range. It is in no answer: only
// an audit finds it.
func TestARecordInAnotherShardsTreesIsInNoAnswer(t *testing.T) {
	left, right := shownShard(0, 0, "", "m", 5), shownShard(1, 1, "m", "", 5)
	left.trees = []treePart{{entries: 2, root: leafOf(2, recordAt(0, "a"), recordAt(1, "x"))}}
	right.trees = []treePart{{entries: 2, root: leafOf(2, recordAt(0, "b"), recordAt(1, "n"))}}
	ranged := &queryPart{shards: []shardPart{left, right}, low: []byte("a")}
	answer, err := ranged.answer()
	var shown []string
	for _, record := range answer.Records {
		shown = append(shown, string(record.Key))
	}
	if err != nil || !slices.Equal(shown, []string{"a", "n"}) {
		t.Errorf("%v, %v", shown, err)
	}
	keys := &queryPart{shards: []shardPart{left, right}, keys: [][]byte{[]byte("b"), []byte("x")}}
	answer, err = keys.answer()
	if err != nil || answer.Keys[0].Record != nil || answer.Keys[1].Record != nil {
		t.Errorf("%+v, %v", answer, err)
	}
}

// lineageOf makes what a file shows of a clue with journals of these numbers, oldest first. Of
// those that are gone, only some are kept, by their ordinals.
func lineageOf(
	clue Digest, from, gone uint64, kept []uint64, change func(*Leaf, uint64), numbers ...uint64,
) (*lineagePart, []Record, []*Leaf) {
	part := &lineagePart{clue: clue}
	var leaves []*Leaf
	var cells []Record
	record := clueRecord{}
	for i, jsn := range numbers {
		ordinal := uint64(i) + 1
		leaf := &Leaf{JSN: jsn, Of: 1, Number: 1, EnvelopeBytes: envelopeBytesMin, Clues: []LeafClue{{clue, ordinal}}}
		change(leaf, ordinal)
		encoded := leaf.encode()
		hash := LeafHash(encoded)
		record.count, record.lastJSN, record.chain = ordinal, jsn, chained(record.chain, jsn, hash)
		if ordinal <= gone {
			record.gone, record.chainGone = ordinal, record.chain
		}
		if ordinal <= from || ordinal <= gone && !slices.Contains(kept, ordinal) {
			continue
		}
		at := cell{jsn: jsn, leaf: hash}
		cells = append([]Record{{Key: part.ledger.cellKey(clue, ordinal), Value: at.encode()}}, cells...)
		part.journals = append([]journalPart{{leaf: encoded}}, part.journals...)
		leaves = append([]*Leaf{leaf}, leaves...)
	}
	return part, append([]Record{{Key: part.ledger.clueKey(clue), Value: record.encode()}}, cells...), leaves
}

func TestALineageIsOneChain(t *testing.T) {
	clue := sha([]byte("clue"))
	honest := func(*Leaf, uint64) {}
	for name, c := range map[string]struct {
		from    uint64
		change  func(*Leaf, uint64)
		numbers []uint64
		sound   bool
	}{
		"three journals":               {0, honest, []uint64{2, 5, 9}, true},
		"the newest of them":           {1, honest, []uint64{2, 5, 9}, true},
		"none of them":                 {3, honest, []uint64{2, 5, 9}, true},
		"numbers that fall":            {0, honest, []uint64{2, 9, 5}, false},
		"a number twice":               {0, honest, []uint64{2, 5, 5}, false},
		"a leaf without the clue":      {0, func(l *Leaf, n uint64) { l.Clues = nil }, []uint64{2}, false},
		"a leaf with another clue":     {0, func(l *Leaf, n uint64) { l.Clues[0].Clue = Digest{} }, []uint64{2}, false},
		"a leaf with another ordinal":  {0, func(l *Leaf, n uint64) { l.Clues[0].Ordinal = n + 1 }, []uint64{2, 5}, false},
		"more left out than there are": {4, honest, []uint64{2, 5, 9}, false},
	} {
		part, records, leaves := lineageOf(clue, c.from, 0, nil, c.change, c.numbers...)
		count, err := checkCells(part, records, leaves, c.from)
		if (err == nil) != c.sound || err == nil && count.count != uint64(len(c.numbers)) {
			t.Errorf("%s: %d, %v", name, count, err)
		}
	}
}

func TestALineageGoesOnFromTheChainOfWhatIsGone(t *testing.T) {
	clue, numbers := sha([]byte("clue")), []uint64{2, 5, 9, 12, 20}
	for name, c := range map[string]struct {
		from, gone uint64
		kept       []uint64
		change     func(*Leaf, uint64)
		// lie changes the record of the clue, or the cells and what belongs to them.
		lie   func(*clueRecord)
		cells func(records []Record, part *lineagePart, leaves []*Leaf) ([]Record, []*Leaf)
		sound bool
	}{
		"two are gone":                                  {gone: 2, sound: true},
		"one of them is kept":                           {gone: 2, kept: []uint64{1}, sound: true},
		"all of them are kept":                          {gone: 3, kept: []uint64{1, 2, 3}, sound: true},
		"all are gone":                                  {gone: 5, sound: true},
		"all are gone, and the last is kept":            {gone: 5, kept: []uint64{5}, sound: true},
		"the newest, as many as are left":               {from: 2, gone: 2, sound: true},
		"the newest, fewer than are left":               {from: 3, gone: 2, sound: true},
		"the newest, and one that was kept":             {from: 1, gone: 3, kept: []uint64{1, 3}, sound: true},
		"none of the newest":                            {from: 5, gone: 3, kept: []uint64{1}, sound: true},
		"a kept one with another ordinal":               {gone: 2, kept: []uint64{1}, change: ordinalPlus(1, 1)},
		"a kept one with the lowest of the rest":        {gone: 2, kept: []uint64{2}, change: ordinalPlus(2, 1)},
		"one more is said to be gone":                   {gone: 2, lie: func(c *clueRecord) { c.gone++ }},
		"one less is said to be gone":                   {gone: 2, lie: func(c *clueRecord) { c.gone-- }},
		"more are gone than there were":                 {gone: 5, lie: func(c *clueRecord) { c.gone = 6 }},
		"none is gone, but the chain says so":           {gone: 2, lie: func(c *clueRecord) { c.gone = 0 }},
		"another chain of what is gone":                 {gone: 2, lie: func(c *clueRecord) { c.chainGone[0] ^= 1 }},
		"another chain, and all are gone":               {gone: 5, lie: func(c *clueRecord) { c.chainGone[0] ^= 1 }},
		"another last number":                           {gone: 2, lie: func(c *clueRecord) { c.lastJSN++ }},
		"one is left out":                               {gone: 2, cells: without(1)},
		"the newest is left out, and kept ones fill up": {gone: 2, kept: []uint64{1, 2}, cells: without(0)},
		"the lowest that is not gone is left out, and a kept one fills up": {
			gone: 2, kept: []uint64{2}, cells: without(2),
		},
		"a kept one twice": {gone: 2, kept: []uint64{1}, cells: doubled},
		"one that the clue does not count": {
			gone: 5, kept: []uint64{5}, change: ordinalPlus(5, 1),
			cells: func(records []Record, part *lineagePart, leaves []*Leaf) ([]Record, []*Leaf) {
				records[1].Key = part.ledger.cellKey(clue, 6)
				return records, leaves
			},
		},
	} {
		if c.change == nil {
			c.change = func(*Leaf, uint64) {}
		}
		part, records, leaves := lineageOf(clue, c.from, c.gone, c.kept, c.change, numbers...)
		if c.lie != nil {
			record, err := decodeClue(records[0].Value)
			if err != nil {
				t.Fatal(err)
			}
			c.lie(&record)
			records[0].Value = record.encode()
		}
		if c.cells != nil {
			records, leaves = c.cells(records, part, leaves)
		}
		record, err := checkCells(part, records, leaves, c.from)
		if (err == nil) != c.sound || err == nil && (record.gone != c.gone || record.count != 5) {
			t.Errorf("%s: %+v, %v", name, record, err)
		}
	}
	// A cell below the range does not belong to the answer.
	part, records, leaves := lineageOf(clue, 1, 3, []uint64{2}, func(*Leaf, uint64) {}, numbers...)
	if _, err := checkCells(part, records, leaves, 2); err == nil {
		t.Error("a cell below the range is taken")
	}
}

// ordinalPlus changes the leaf of an ordinal, but not its cell.
func ordinalPlus(of, more uint64) func(*Leaf, uint64) {
	return func(leaf *Leaf, ordinal uint64) {
		if ordinal == of {
			leaf.Clues[0].Ordinal += more
		}
	}
}

// without leaves a journal and its cell out, counted from the newest.
func without(at int) func([]Record, *lineagePart, []*Leaf) ([]Record, []*Leaf) {
	return func(records []Record, part *lineagePart, leaves []*Leaf) ([]Record, []*Leaf) {
		part.journals = slices.Delete(part.journals, at, at+1)
		return slices.Delete(records, at+1, at+2), slices.Delete(leaves, at, at+1)
	}
}

// doubled shows the oldest journal twice.
func doubled(records []Record, part *lineagePart, leaves []*Leaf) ([]Record, []*Leaf) {
	last := len(leaves) - 1
	part.journals = append(part.journals, part.journals[last])
	return append(records, records[last+1]), append(leaves, leaves[last])
}
