package verify

import (
	"bytes"
	"errors"
)

// treeCheck recomputes a tree's digest from its shown parts, and checks the shape of each node
// (section 13.7).
type treeCheck struct {
	head   Stamp
	shown  uint64
	hidden uint64
}

func (t *treePart) digest(head Stamp) (Digest, error) {
	if t.root == nil {
		empty := t.level == 0 && t.hash == emptyLeafHash
		if empty != (t.entries == 0) {
			return Digest{}, errors.New("a tree without entries is the empty one, and no other is")
		}
		return treeDigest(t.level, t.entries, t.hash), nil
	}
	check := treeCheck{head: head}
	root, err := check.node(t.root, t.level, nil, nil, true)
	if err != nil {
		return Digest{}, err
	}
	if check.hidden == 0 && t.entries != check.shown || t.entries < check.shown+check.hidden {
		return Digest{}, errors.New("the number of a tree's entries does not fit what is shown of it")
	}
	return treeDigest(t.level, t.entries, root), nil
}

// node gives a node's hash. Its keys are at or above low, and below high unless that is nil.
func (c *treeCheck) node(n *nodePart, level uint8, low, high []byte, root bool) (Digest, error) {
	if n.count == 0 && !(root && level == 0) {
		return Digest{}, errors.New("a node without entries is not the root of an empty tree")
	}
	shown := make([]shownLeaf, len(n.entries))
	for i := range n.entries {
		entry := &n.entries[i]
		if i > 0 && bytes.Compare(n.entries[i-1].key, entry.key) >= 0 {
			return Digest{}, errors.New("keys of a node do not ascend")
		}
		if high != nil && bytes.Compare(entry.key, high) >= 0 {
			return Digest{}, errors.New("a key is not below the next entry above")
		}
		var hash Digest
		var err error
		if level == 0 {
			hash, err = c.record(entry, low)
		} else {
			childHigh := high
			if i+1 < len(n.entries) {
				childHigh = n.entries[i+1].key
			}
			hash, err = c.entry(entry, level, low, childHigh)
		}
		if err != nil {
			return Digest{}, err
		}
		shown[i] = shownLeaf{index: uint64(entry.index), hash: hash}
	}
	list, err := listRoot(uint64(n.count), shown, n.hashes)
	if err != nil {
		return Digest{}, err
	}
	if level == 0 {
		c.shown += uint64(n.count)
		return leafNodeHash(n.count, list), nil
	}
	c.hidden += uint64(n.count - len(n.entries))
	return innerNodeHash(level, n.count, list), nil
}

func (c *treeCheck) record(entry *partEntry, low []byte) (Digest, error) {
	if bytes.Compare(entry.key, low) < 0 {
		return Digest{}, errors.New("a record is below the separator above it")
	}
	if entry.stamp.Epoch > c.head.Epoch || entry.stamp.Version > c.head.Version {
		return Digest{}, errors.New("a record is newer than the version")
	}
	return recordHash(entry.key, entry.stamp, entry.put, entry.length, entry.hash), nil
}

func (c *treeCheck) entry(entry *partEntry, level uint8, low, high []byte) (Digest, error) {
	if (entry.index == 0) != (len(entry.key) == 0) {
		return Digest{}, errors.New("the first entry has the empty separator, and no other has")
	}
	if len(entry.key) > 0 {
		if bytes.Compare(entry.key, low) <= 0 {
			return Digest{}, errors.New("a separator is not above the one above it")
		}
		low = entry.key
	}
	if entry.child == nil {
		c.hidden++
		return entryHash(entry.key, *entry.hash), nil
	}
	child, err := c.node(entry.child, level-1, low, high, false)
	return entryHash(entry.key, child), err
}

var errNotProven = errors.New("the file does not prove the answer")

// isEmptyTree tells whether a tree that is shown by its hash alone holds no record.
func (t *treePart) isEmptyTree() bool {
	return t.root == nil && t.level == 0 && t.entries == 0 && t.hash == emptyLeafHash
}

// find walks to a key. It gives the record, or nil if the key is proven absent (section 13).
func (t *treePart) find(key []byte) (*partEntry, error) {
	if t.root == nil {
		if t.isEmptyTree() {
			return nil, nil
		}
		return nil, errNotProven
	}
	node, bounded := t.root, true
	for level := t.level; level > 0; level-- {
		at := lastAtOrBelow(node.entries, key)
		if at < 0 || node.entries[at].child == nil {
			return nil, errNotProven
		}
		index := int(node.entries[at].index)
		followed := at+1 < len(node.entries) && int(node.entries[at+1].index) == index+1
		bounded = followed || index == node.count-1 && bounded
		node = node.entries[at].child
	}
	return findInLeaf(node, key, bounded)
}

func findInLeaf(leaf *nodePart, key []byte, bounded bool) (*partEntry, error) {
	if leaf.count == 0 {
		return nil, nil
	}
	at := lastAtOrBelow(leaf.entries, key)
	if at < 0 {
		if leaf.entries[0].index == 0 {
			return nil, nil
		}
		return nil, errNotProven
	}
	entry := &leaf.entries[at]
	if bytes.Equal(entry.key, key) {
		return entry, nil
	}
	followed := at+1 < len(leaf.entries) && leaf.entries[at+1].index == entry.index+1
	if followed || int(entry.index) == leaf.count-1 && bounded {
		return nil, nil
	}
	return nil, errNotProven
}

// lastAtOrBelow gives the last shown entry whose key is at or below a key, or -1.
func lastAtOrBelow(entries []partEntry, key []byte) int {
	low, high := 0, len(entries)
	for low < high {
		middle := (low + high) / 2
		if bytes.Compare(entries[middle].key, key) <= 0 {
			low = middle + 1
		} else {
			high = middle
		}
	}
	return low - 1
}

// scan appends all records of a range, and fails if the file does not show every one.
func (t *treePart) scan(low, high []byte, found []*partEntry) ([]*partEntry, error) {
	if t.root == nil {
		if t.isEmptyTree() {
			return found, nil
		}
		return nil, errNotProven
	}
	return t.root.scan(t.level, low, high, found)
}

func (n *nodePart) scan(level uint8, low, high []byte, found []*partEntry) ([]*partEntry, error) {
	if n.count == 0 {
		return found, nil
	}
	first := lastAtOrBelow(n.entries, low)
	if first < 0 {
		if n.entries[0].index != 0 {
			return nil, errNotProven
		}
		first = 0
	}
	end := first
	for end < len(n.entries) && (high == nil || bytes.Compare(n.entries[end].key, high) < 0) {
		end++
	}
	last := end
	if end == len(n.entries) {
		last = end - 1
		if int(n.entries[last].index) != n.count-1 {
			return nil, errNotProven
		}
	}
	if int(n.entries[last].index)-int(n.entries[first].index) != last-first {
		return nil, errNotProven
	}
	for i := first; i < end; i++ {
		entry := &n.entries[i]
		if level == 0 {
			if bytes.Compare(entry.key, low) >= 0 {
				found = append(found, entry)
			}
			continue
		}
		if entry.child == nil {
			return nil, errNotProven
		}
		var err error
		if found, err = entry.child.scan(level-1, low, high, found); err != nil {
			return nil, err
		}
	}
	return found, nil
}
