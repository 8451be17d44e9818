package verify

import (
	"bytes"
	"errors"
)

// StateParts gathers the state of a version from proofs of ranges that cover all keys together.
// Such a proof shows every record of its range, superseded and deleted ones included, within their
// nodes. So all parts together are the trees themselves. They are the right ones if they give the
// state root of a trusted header, which NewReplayAt checks.
type StateParts struct {
	shards map[uint32]*knownShard
}

type knownShard struct {
	version uint64
	trees   []knownTree
}

type knownTree struct {
	level   uint8
	entries uint64
	root    *knownNode
}

// knownNode is what is known of a node. Its records or children are kept by their index.
type knownNode struct {
	count    int
	records  map[uint16]liveRecord
	children map[uint16]knownChild
}

type knownChild struct {
	separator []byte
	node      *knownNode
}

var (
	errOtherTrees = errors.New("verify: parts of other trees")
	errIncomplete = errors.New("verify: the parts of a state are not complete")
)

// Take adds what a proof file of a query shows. The file may be forged, and then the parts give
// another state root.
func (s *StateParts) Take(file []byte) error {
	parsed, err := decodeFile(file)
	if err != nil {
		return err
	}
	if parsed.query == nil {
		return errors.New("verify: not a proof of a range")
	}
	if s.shards == nil {
		s.shards = make(map[uint32]*knownShard)
	}
	for i := range parsed.query.shards {
		part := &parsed.query.shards[i]
		known := s.shards[part.shard.ID]
		if known == nil {
			known = &knownShard{version: part.version, trees: make([]knownTree, len(part.trees))}
			for at, tree := range part.trees {
				known.trees[at] = knownTree{level: tree.level, entries: tree.entries}
			}
			s.shards[part.shard.ID] = known
		}
		if err := known.take(part); err != nil {
			return err
		}
	}
	return nil
}

func (s *knownShard) take(part *shardPart) error {
	if s.version != part.version || len(s.trees) != len(part.trees) {
		return errOtherTrees
	}
	for at := range s.trees {
		known, tree := &s.trees[at], &part.trees[at]
		if known.level != tree.level || known.entries != tree.entries {
			return errOtherTrees
		}
		var err error
		if known.root, err = known.root.join(tree.root, tree.level); err != nil {
			return err
		}
	}
	return nil
}

// join adds a part of a node to what is known of it. Either may be nil.
func (n *knownNode) join(part *nodePart, level uint8) (*knownNode, error) {
	switch {
	case part == nil:
		return n, nil
	case n == nil:
		n = &knownNode{count: part.count, records: make(map[uint16]liveRecord), children: make(map[uint16]knownChild)}
	case n.count != part.count:
		return nil, errOtherTrees
	}
	for i := range part.entries {
		entry := &part.entries[i]
		if level == 0 {
			// The file is not kept.
			record := liveRecord{key: bytes.Clone(entry.key), stamp: entry.stamp, put: entry.put, length: entry.length}
			if entry.put {
				record.value = *entry.hash
			}
			n.records[entry.index] = record
			continue
		}
		child, err := n.children[entry.index].node.join(entry.child, level-1)
		if err != nil {
			return nil, err
		}
		n.children[entry.index] = knownChild{separator: bytes.Clone(entry.key), node: child}
	}
	return n, nil
}

// whole makes the node, of which nothing may be missing. Indices are unique, so it has all entries
// if each index below their number is there.
func (n *knownNode) whole(level uint8) (*liveNode, error) {
	if n == nil {
		return nil, errIncomplete
	}
	if level == 0 {
		records := make([]liveRecord, n.count)
		for i := range records {
			record, found := n.records[uint16(i)]
			if !found {
				return nil, errIncomplete
			}
			records[i] = record
		}
		return newLeaf(records), nil
	}
	children := make([]liveChild, n.count)
	for i := range children {
		child := n.children[uint16(i)]
		node, err := child.node.whole(level - 1)
		if err != nil {
			return nil, err
		}
		children[i] = liveChild{separator: child.separator, node: node}
	}
	if len(children) == 0 {
		return nil, errIncomplete
	}
	return newInner(level, children), nil
}

func (t *knownTree) whole() (*liveTree, error) {
	if t.entries == 0 {
		// A proof shows an empty tree by its hash alone.
		return emptyTree(), nil
	}
	root, err := t.root.whole(t.level)
	if err != nil {
		return nil, err
	}
	if uint64(len(root.collect(nil))) != t.entries {
		return nil, errIncomplete
	}
	return &liveTree{root: root, entries: t.entries}, nil
}

// forest makes the state of a shard. A nil shard is one that no proof showed.
func (s *knownShard) forest(params *Params) (*forest, error) {
	if s == nil || len(s.trees) == 0 {
		return nil, errIncomplete
	}
	made := &forest{params: params, version: s.version}
	for at := range s.trees {
		tree, err := s.trees[at].whole()
		switch {
		case err != nil:
			return nil, err
		case at == 0:
			made.active = tree
		default:
			made.frozen = append(made.frozen, made.freeze(tree))
		}
	}
	return made, nil
}

// NewReplayAt begins behind a version that stands, whose state was gathered. Only the header of
// that version is trusted: an error tells that the parts are not the state of its state root.
func NewReplayAt(log *HeaderLog, version uint64, parts *StateParts) (*Replay, error) {
	replay, err := NewReplay(log)
	if err != nil {
		return nil, err
	}
	header := log.Header(version)
	if header == nil {
		return nil, errors.New("verify: no such version stands")
	}
	if len(parts.shards) != len(replay.shards) {
		return nil, errIncomplete
	}
	for i := range replay.shards {
		known := parts.shards[replay.shards[i].ID]
		if replay.forests[i], err = known.forest(&log.genesis.Params); err != nil {
			return nil, err
		}
	}
	if replay.stateRoot() != header.StateRoot {
		return nil, errors.New("verify: the gathered state has another state root than the header")
	}
	replay.next = version + 1
	return replay, nil
}
