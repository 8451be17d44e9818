package verify

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// FileKind is the kind of a proof file (section 12).
type FileKind uint8

// The kinds of proof files.
const (
	FileQuery    FileKind = 0
	FileReceipt  FileKind = 1
	FileStanding FileKind = 2
	FileJournals FileKind = 3
	FileTime     FileKind = 4
	FileLineage  FileKind = 5
	FileInterval FileKind = 6
)

func (k FileKind) String() string {
	names := map[FileKind]string{
		FileQuery: "query", FileReceipt: "receipt", FileStanding: "standing", FileJournals: "journals",
		FileTime: "time", FileLineage: "lineage", FileInterval: "interval",
	}
	return names[k]
}

var fileMagic = []byte("coppice-proof")

const (
	fileFormat      = 3
	fileFormatLater = 4
	leafBytesMin    = 242
)

// proofFile is a parsed proof file, whose content nobody has checked yet. All byte slices in it are
// parts of the file. Parsed, a file takes at most some ten times its size.
type proofFile struct {
	kind    FileKind
	cluster ClusterID
	log     logPart

	header headerPart
	epoch  epochPart

	query    *queryPart
	entry    *entryPart
	standing *standingPart
	journals *journalsPart
	time     *timePart
	lineage  *lineagePart
	interval *intervalPart
}

type logPart struct {
	note    []byte
	newest  []byte
	path    hashList
	changes []headerPart
}

type headerPart struct {
	header []byte
	path   hashList
}

type epochPart struct {
	index  uint32
	pair   Pair
	next   *Pair
	hashes hashList
}

type queryPart struct {
	// keys are those asked for; nil for a range.
	keys      [][]byte
	low, high []byte
	shards    []shardPart
	hashes    hashList
	hasValues bool
	values    [][]byte
}

type shardPart struct {
	index   uint32
	shard   Shard
	version uint64
	trees   []treePart
}

type treePart struct {
	level   uint8
	entries uint64
	// root is nil if the tree is shown by its root's hash alone.
	root *nodePart
	hash Digest
}

type nodePart struct {
	count   int
	entries []partEntry
	hashes  hashList
}

// partEntry is a record in a leaf. In an inner node, it is a separator with a child or the child's
// hash.
type partEntry struct {
	key    []byte
	hash   *Digest
	child  *nodePart
	stamp  Stamp
	length uint32
	index  uint16
	put    bool
}

type entryPart struct {
	index  uint32
	entry  []byte
	hashes hashList
}

type standingPart struct {
	oldSize uint64
	oldRoot Digest
	path    hashList
	pairs   []Pair
}

type knownPart struct {
	size uint64
	root Digest
	path hashList
}

type journalsPart struct {
	known    *knownPart
	journals []journalPart
	paths    []hashList
}

type lineagePart struct {
	ledger   LedgerID
	clue     Digest
	journals []journalPart
}

// journalPart has nil for what is not shown.
type journalPart struct {
	leaf     []byte
	signed   []byte
	path     hashList
	envelope []byte
}

// isFile tells a proof file from a note.
func isFile(b []byte) bool { return bytes.HasPrefix(b, fileMagic) }

func decodeFile(file []byte) (*proofFile, error) {
	if len(file) > fileBytesMax {
		return nil, errors.New("a proof file is above 64 MiB")
	}
	if !isFile(file) || len(file) < len(fileMagic)+checksumBytes {
		return nil, errors.New("not a proof file")
	}
	content := file[:len(file)-checksumBytes]
	if binary.LittleEndian.Uint64(file[len(content):]) != checksum(content) {
		return nil, errors.New("the checksum is another: the file is damaged")
	}
	r := &reader{rest: content[len(fileMagic):]}
	format := r.u8()
	p := &proofFile{kind: FileKind(r.u8()), cluster: r.id()}
	later := p.kind >= FileJournals
	if p.kind.String() == "" || format != fileFormat && !later || format != fileFormatLater && later {
		return nil, errors.New("a proof file of another format or kind")
	}
	p.log = decodeLogPart(r)
	if p.kind != FileStanding {
		p.header = decodeHeaderPart(r)
	}
	if p.kind != FileStanding && p.kind != FileInterval {
		p.epoch = decodeEpochPart(r)
	}
	switch p.kind {
	case FileQuery:
		p.query = decodeQuery(r)
	case FileReceipt:
		p.entry = decodeEntryPart(r)
	case FileStanding:
		p.standing = decodeStanding(r)
	case FileJournals:
		p.entry = decodeEntryPart(r)
		p.journals = decodeJournals(r)
	case FileTime:
		p.time = decodeTime(r)
	case FileLineage:
		p.query = decodeQuery(r)
		p.lineage = decodeLineage(r)
	case FileInterval:
		p.interval = decodeInterval(r)
	}
	return p, r.end()
}

func decodeLogPart(r *reader) logPart {
	log := logPart{note: r.str32(noteBytesMax, "a note"), newest: r.str16(0, headerBytesMax, "a header"), path: r.hashes()}
	n := r.count16(4)
	if n > keyChangesMax {
		r.fail("there are more than 256 key changes")
	}
	for range n {
		log.changes = append(log.changes, decodeHeaderPart(r))
		if r.err != nil {
			break
		}
	}
	return log
}

func decodeHeaderPart(r *reader) headerPart {
	return headerPart{header: r.str16(0, headerBytesMax, "a header"), path: r.hashes()}
}

func decodePair(r *reader) Pair { return Pair{Epoch: r.u64(), Base: r.u64()} }

func decodeEpochPart(r *reader) epochPart {
	part := epochPart{index: r.u32(), pair: decodePair(r)}
	if r.flag() {
		next := decodePair(r)
		part.next = &next
	}
	part.hashes = r.hashes()
	return part
}

func decodeEntryPart(r *reader) *entryPart {
	return &entryPart{index: r.u32(), entry: r.take(uint64(r.u16())), hashes: r.hashes()}
}

func decodeStanding(r *reader) *standingPart {
	part := &standingPart{oldSize: r.u64(), oldRoot: r.digest(), path: r.hashes()}
	part.pairs = make([]Pair, r.count16(16))
	for i := range part.pairs {
		part.pairs[i] = decodePair(r)
	}
	return part
}

func decodeQuery(r *reader) *queryPart {
	q := &queryPart{}
	if !r.flag() {
		q.keys = make([][]byte, r.count16(3))
		for i := range q.keys {
			q.keys[i] = r.str16(1, keyBytesMax, "a key")
			if r.err == nil && i > 0 && bytes.Compare(q.keys[i-1], q.keys[i]) >= 0 {
				r.fail("the keys of a query do not ascend")
			}
		}
		if r.err == nil && len(q.keys) == 0 {
			r.fail("a query without keys")
		}
	} else {
		q.low = r.str16(0, rangeBytesMax, "a bound of a range")
		if r.flag() {
			q.high = r.str16(0, rangeBytesMax, "a bound of a range")
			if r.err == nil && bytes.Compare(q.low, q.high) >= 0 {
				r.fail("the range is empty or inverted")
			}
		}
	}
	n := r.count16(22)
	for range n {
		q.shards = append(q.shards, decodeShardPart(r))
		if r.err != nil {
			return q
		}
	}
	q.hashes = r.hashes()
	if q.hasValues = r.flag(); q.hasValues {
		q.values = make([][]byte, r.count32(4))
		for i := range q.values {
			q.values[i] = r.str32(fileBytesMax, "a value")
		}
	}
	return q
}

func decodeShardPart(r *reader) shardPart {
	part := shardPart{index: r.u32()}
	part.shard.ID = r.u32()
	part.shard.Low = r.str16(0, keyBytesMax, "a bound")
	if r.flag() {
		part.shard.High = r.str16(1, keyBytesMax, "a bound")
	}
	part.version = r.u64()
	n := r.u8()
	switch {
	case r.err != nil:
		return part
	case part.shard.ID == noShard:
		r.fail("a shard has the id that means none")
	case part.shard.High != nil && bytes.Compare(part.shard.Low, part.shard.High) >= 0:
		r.fail("a shard ends where it begins, or below")
	case n == 0 || n > treesMax:
		r.fail("a shard has 1 to 16 trees")
	}
	for range n {
		if r.err != nil {
			return part
		}
		part.trees = append(part.trees, decodeTreePart(r))
	}
	return part
}

func decodeTreePart(r *reader) treePart {
	tree := treePart{level: r.u8()}
	if r.err == nil && tree.level > levelMax {
		r.fail("the level of a root is above 32")
	}
	tree.entries = r.short()
	if r.flag() {
		tree.root = decodeNode(r, tree.level)
	} else {
		tree.hash = r.digest()
	}
	return tree
}

// entryBytesMin is the size of the least entry of a node, with its index: a tombstone.
const entryBytesMin = 6

func decodeNode(r *reader, level uint8) *nodePart {
	const end = 1 << 16
	node := &nodePart{count: int(r.shortBelow(end, "the number of entries"))}
	shown := r.counted(r.shortBelow(end, "the number of shown entries"), entryBytesMin)
	if r.err != nil {
		return node
	}
	node.entries = make([]partEntry, shown)
	for i := range node.entries {
		entry := &node.entries[i]
		entry.index = uint16(r.shortBelow(end, "an index"))
		if level == 0 {
			decodeRecord(r, entry)
		} else {
			entry.key = r.str(0, keyBytesMax, "a separator")
			if r.flag() {
				entry.child = decodeNode(r, level-1)
			} else {
				entry.hash = r.digestAt()
			}
		}
		if r.err != nil {
			return node
		}
	}
	node.hashes = hashList(r.take(32 * r.shortBelow(end, "the number of hashes")))
	return node
}

func decodeRecord(r *reader, entry *partEntry) {
	entry.put = !r.flag()
	entry.stamp = Stamp{Epoch: r.short(), Version: r.short()}
	entry.key = r.str(1, keyBytesMax, "a key")
	if entry.put {
		entry.length = uint32(r.shortBelow(1<<32, "the length of a value"))
		entry.hash = r.digestAt()
	}
}

func decodeJournals(r *reader) *journalsPart {
	part := &journalsPart{}
	if r.flag() {
		part.known = &knownPart{size: r.u64(), root: r.digest(), path: r.hashes()}
	}
	n := r.count16(leafBytesMin)
	for range n {
		part.journals = append(part.journals, decodeJournalPart(r))
		part.paths = append(part.paths, r.hashes())
		if r.err != nil {
			break
		}
	}
	return part
}

func decodeLineage(r *reader) *lineagePart {
	part := &lineagePart{ledger: LedgerID(r.id()), clue: r.digest()}
	n := r.count16(leafBytesMin)
	for range n {
		part.journals = append(part.journals, decodeJournalPart(r))
		if r.err != nil {
			break
		}
	}
	return part
}

func decodeJournalPart(r *reader) (part journalPart) {
	part.leaf = r.str16(leafBytesMin, 1<<16, "a leaf")
	if r.flag() {
		part.signed = r.take(uint64(r.u16()))
		part.path = r.hashes()
		if part.signed == nil {
			part.signed = []byte{}
		}
	}
	if r.flag() {
		part.envelope = r.str32(fileBytesMax, "an envelope")
	}
	return part
}
