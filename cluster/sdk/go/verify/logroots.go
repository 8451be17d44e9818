package verify

// LogRoots has the hashes of a root log, and gives its root at each size that it had. It takes 64
// bytes for each entry.
type LogRoots struct {
	// levels have the roots of complete subtrees, from the entries on.
	levels [][]Digest
}

// Size is the number of entries.
func (l *LogRoots) Size() uint64 {
	if len(l.levels) == 0 {
		return 0
	}
	return uint64(len(l.levels[0]))
}

// Push takes the bytes of the next entry. Whether they are a header is not judged.
func (l *LogRoots) Push(entry []byte) {
	hash := logEntryHash(entry)
	for level := 0; ; level++ {
		if level == len(l.levels) {
			l.levels = append(l.levels, nil)
		}
		hashes := append(l.levels[level], hash)
		l.levels[level] = hashes
		n := len(hashes)
		if n%2 == 1 {
			return
		}
		hash = nodeHash(&hashes[n-2], &hashes[n-1])
	}
}

// Entry is the EntryHash of an entry, if the log has it.
func (l *LogRoots) Entry(sequence uint64) (hash Digest, found bool) {
	if sequence >= l.Size() {
		return Digest{}, false
	}
	return l.levels[0][sequence], true
}

// Root is the root of the first entries, if the log has as many.
func (l *LogRoots) Root(size uint64) (root Digest, found bool) {
	if size > l.Size() {
		return Digest{}, false
	}
	root = emptyRoot
	first := true
	for level, left := 0, size; left > 0; level, left = level+1, left/2 {
		if left%2 == 0 {
			continue
		}
		hash := l.levels[level][left-1]
		if first {
			root, first = hash, false
		} else {
			root = nodeHash(&hash, &root)
		}
	}
	return root, true
}
