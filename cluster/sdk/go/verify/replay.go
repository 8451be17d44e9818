package verify

import (
	"bytes"
	"errors"
	"slices"
	"sort"
)

// liveRecord is the newest change of a key in a tree, by length and hash of its value.
type liveRecord struct {
	key    []byte
	stamp  Stamp
	put    bool
	length uint32
	value  Digest
}

// liveNode is a node of a tree that is replayed. Nodes are never changed once they are made.
type liveNode struct {
	level    uint8
	records  []liveRecord
	children []liveChild
	hash     Digest
}

type liveChild struct {
	separator []byte
	node      *liveNode
}

func newLeaf(records []liveRecord) *liveNode {
	hashes := make([]Digest, len(records))
	for i := range records {
		r := &records[i]
		hashes[i] = recordHash(r.key, r.stamp, r.put, r.length, &r.value)
	}
	return &liveNode{records: records, hash: leafNodeHash(len(records), MerkleRoot(hashes))}
}

func newInner(level uint8, children []liveChild) *liveNode {
	children = slices.Clone(children)
	children[0].separator = nil
	hashes := make([]Digest, len(children))
	for i, child := range children {
		hashes[i] = entryHash(child.separator, child.node.hash)
	}
	return &liveNode{level: level, children: children, hash: innerNodeHash(level, len(children), MerkleRoot(hashes))}
}

// cutter is the split rule, or the packing.
type cutter func(weights []uint64) (ends []int)

// leaves makes the leaves of a list of records, which is not empty.
func (p *Params) leaves(records []liveRecord, cut cutter) []liveChild {
	weights := make([]uint64, len(records))
	for i := range records {
		weights[i] = p.recordWeight(len(records[i].key), records[i].put, records[i].length)
	}
	var made []liveChild
	start := 0
	for _, end := range cut(weights) {
		child := liveChild{node: newLeaf(records[start:end:end])}
		if start > 0 {
			child.separator = separator(records[start-1].key, records[start].key)
		}
		made, start = append(made, child), end
	}
	return made
}

// inners makes the nodes of a list of entries, which is not empty.
func (p *Params) inners(level uint8, entries []liveChild, cut cutter) []liveChild {
	entries = slices.Clone(entries)
	entries[0].separator = nil
	weights := make([]uint64, len(entries))
	for i, entry := range entries {
		weights[i] = p.entryWeight(len(entry.separator))
	}
	var made []liveChild
	start := 0
	for _, end := range cut(weights) {
		child := liveChild{separator: entries[start].separator, node: newInner(level, entries[start:end])}
		made, start = append(made, child), end
	}
	return made
}

// change is a record to insert or to replace, or a removal.
type change struct {
	record liveRecord
	remove bool
}

func (p *Params) apply(node *liveNode, changes []change) []liveChild {
	if node.level == 0 {
		records := applyToRecords(node.records, changes)
		if len(records) == 0 {
			return nil
		}
		return p.leaves(records, p.split)
	}
	var entries []liveChild
	for i, child := range node.children {
		end := len(changes)
		if i+1 < len(node.children) {
			next := node.children[i+1].separator
			end = sort.Search(len(changes), func(at int) bool { return bytes.Compare(changes[at].record.key, next) >= 0 })
		}
		own := changes[:end]
		changes = changes[end:]
		if len(own) == 0 {
			entries = append(entries, child)
			continue
		}
		for at, made := range p.apply(child.node, own) {
			if at == 0 {
				made.separator = child.separator
			}
			entries = append(entries, made)
		}
	}
	if len(entries) == 0 {
		return nil
	}
	return p.inners(node.level, entries, p.split)
}

func applyToRecords(records []liveRecord, changes []change) []liveRecord {
	merged := make([]liveRecord, 0, len(records)+len(changes))
	for len(records) > 0 || len(changes) > 0 {
		order := 1
		switch {
		case len(changes) == 0:
			order = -1
		case len(records) > 0:
			order = bytes.Compare(records[0].key, changes[0].record.key)
		}
		if order < 0 {
			merged, records = append(merged, records[0]), records[1:]
			continue
		}
		if order == 0 {
			records = records[1:]
		}
		if !changes[0].remove {
			merged = append(merged, changes[0].record)
		}
		changes = changes[1:]
	}
	return merged
}

// liveTree is a tree of a shard that is replayed. Frozen trees have a filter.
type liveTree struct {
	root    *liveNode
	entries uint64
	filter  *filter
}

func emptyTree() *liveTree { return &liveTree{root: newLeaf(nil)} }

func (t *liveTree) digest() Digest { return treeDigest(t.root.level, t.entries, t.root.hash) }

// grow makes one root of a list of nodes.
func (p *Params) grow(nodes []liveChild, cut cutter) *liveNode {
	for len(nodes) > 1 {
		nodes = p.inners(nodes[0].node.level+1, nodes, cut)
	}
	root := nodes[0].node
	for len(root.children) == 1 {
		root = root.children[0].node
	}
	return root
}

func (p *Params) applyToTree(tree *liveTree, changes []change) *liveTree {
	if len(changes) == 0 {
		return tree
	}
	nodes := p.apply(tree.root, changes)
	if len(nodes) == 0 {
		return emptyTree()
	}
	next := &liveTree{root: p.grow(nodes, p.split)}
	next.entries = tree.entries
	for _, c := range changes {
		_, had := tree.find(c.record.key)
		switch {
		case c.remove && had:
			next.entries--
		case !c.remove && !had:
			next.entries++
		}
	}
	return next
}

// packTree makes the tree of a merge.
func (p *Params) packTree(records []liveRecord) *liveTree {
	if len(records) == 0 {
		return emptyTree()
	}
	return &liveTree{root: p.grow(p.leaves(records, p.pack), p.pack), entries: uint64(len(records))}
}

func (t *liveTree) find(key []byte) (*liveRecord, bool) {
	node := t.root
	for node.level > 0 {
		at := sort.Search(len(node.children), func(i int) bool {
			return i > 0 && bytes.Compare(node.children[i].separator, key) > 0
		})
		node = node.children[at-1].node
	}
	at := sort.Search(len(node.records), func(i int) bool { return bytes.Compare(node.records[i].key, key) >= 0 })
	if at < len(node.records) && bytes.Equal(node.records[at].key, key) {
		return &node.records[at], true
	}
	return nil, false
}

// collect appends all records of a node.
func (n *liveNode) collect(records []liveRecord) []liveRecord {
	records = append(records, n.records...)
	for _, child := range n.children {
		records = child.node.collect(records)
	}
	return records
}

// forest is the state of a shard at a version (section 6).
type forest struct {
	params  *Params
	active  *liveTree
	frozen  []*liveTree
	version uint64
}

func newForest(p *Params) *forest { return &forest{params: p, active: emptyTree()} }

func (f *forest) digest() Digest {
	digests := []Digest{f.active.digest()}
	for _, tree := range f.frozen {
		digests = append(digests, tree.digest())
	}
	return shardDigest(digests)
}

func (f *forest) freeze(tree *liveTree) *liveTree {
	records := tree.root.collect(nil)
	keys := make([][]byte, len(records))
	for i := range records {
		keys[i] = records[i].key
	}
	tree.filter = newFilter(f.params, keys)
	return tree
}

var errMerge = errors.New("the inputs of a merge are no neighbouring frozen trees")

// merge replaces trees by the packing of their records, and compares its digest with the recorded
// one.
func (f *forest) merge(inputs []Digest, output Digest) error {
	digests := make([]Digest, len(f.frozen))
	for i, tree := range f.frozen {
		digests[i] = tree.digest()
	}
	at := -1
	for i := 0; i+len(inputs) <= len(digests) && at < 0; i++ {
		if slices.Equal(digests[i:i+len(inputs)], inputs) {
			at = i
		}
	}
	if at < 0 || len(inputs) < 2 {
		return errMerge
	}
	older := f.frozen[at+len(inputs):]
	var merged []liveRecord
	for _, record := range youngest(f.frozen[at : at+len(inputs)]) {
		if record.put || admitted(older, record.key) {
			merged = append(merged, record)
		}
	}
	tree := f.params.packTree(merged)
	if tree.digest() != output {
		return errors.New("the output of a merge does not follow from its inputs")
	}
	f.frozen = slices.Concat(f.frozen[:at], []*liveTree{f.freeze(tree)}, older)
	return nil
}

// youngest gives the record of the youngest tree for each key, in order.
func youngest(trees []*liveTree) []liveRecord {
	var all []liveRecord
	for _, tree := range trees {
		all = tree.root.collect(all)
	}
	sort.SliceStable(all, func(i, j int) bool { return bytes.Compare(all[i].key, all[j].key) < 0 })
	return slices.CompactFunc(all, func(a, b liveRecord) bool { return bytes.Equal(a.key, b.key) })
}

func admitted(trees []*liveTree, key []byte) bool {
	for _, tree := range trees {
		if tree.filter.admits(key) {
			return true
		}
	}
	return false
}

// live tells whether a key has a value.
func (f *forest) live(key []byte) bool {
	if record, found := f.active.find(key); found {
		return record.put
	}
	for _, tree := range f.frozen {
		if tree.filter.admits(key) {
			if record, found := tree.find(key); found {
				return record.put
			}
		}
	}
	return false
}

// write takes the operations of a version, in their order in the journal.
func (f *forest) write(stamp Stamp, operations []Operation) {
	f.version = stamp.Version
	if len(operations) == 0 {
		return
	}
	if f.active.entries >= uint64(f.params.Capacity) {
		f.frozen = slices.Insert(f.frozen, 0, f.freeze(f.active))
		f.active = emptyTree()
	}
	last := make(map[string]Operation, len(operations))
	for _, operation := range operations {
		last[string(operation.Key)] = operation
	}
	var changes []change
	for _, key := range ascending(last) {
		if c, changed := f.change(stamp, last[key]); changed {
			changes = append(changes, c)
		}
	}
	f.active = f.params.applyToTree(f.active, changes)
}

// change is what one operation does to the active tree.
func (f *forest) change(stamp Stamp, operation Operation) (change, bool) {
	record := liveRecord{key: bytes.Clone(operation.Key), stamp: stamp}
	if !operation.Delete {
		record.put, record.length, record.value = true, operation.Length, operation.Hash
		return change{record: record}, true
	}
	if !f.live(operation.Key) {
		return change{}, false
	}
	_, inActive := f.active.find(operation.Key)
	return change{record: record, remove: inActive && !admitted(f.frozen, operation.Key)}, true
}
