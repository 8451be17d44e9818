package verify

import (
	"errors"
	"math/bits"
)

var (
	errPath    = errors.New("the path has another number of hashes than this place needs")
	errRoot    = errors.New("the path does not lead to the root")
	errIndices = errors.New("the shown indices do not ascend, or lie beyond the list")
	errHashes  = errors.New("the list proof has too few or too many hashes")
	errNothing = errors.New("the list proof shows nothing")
)

// split is the largest power of two below n, which is at least 2.
func split(n uint64) uint64 { return 1 << (bits.Len64(n-1) - 1) }

// MerkleRoot is MTH of section 2 over leaf hashes.
func MerkleRoot(leaves []Digest) Digest {
	switch len(leaves) {
	case 0:
		return emptyRoot
	case 1:
		return leaves[0]
	}
	k := split(uint64(len(leaves)))
	left, right := MerkleRoot(leaves[:k]), MerkleRoot(leaves[k:])
	return nodeHash(&left, &right)
}

// shownLeaf is an element of a list that a list proof shows.
type shownLeaf struct {
	index uint64
	hash  Digest
}

// listRoot computes the root of a list of size elements from those that are shown (section 2).
func listRoot(size uint64, shown []shownLeaf, hashes hashList) (Digest, error) {
	if size == 0 {
		if len(shown) > 0 {
			return Digest{}, errIndices
		}
		if len(hashes) > 0 {
			return Digest{}, errHashes
		}
		return emptyRoot, nil
	}
	if len(shown) == 0 {
		return Digest{}, errNothing
	}
	for i, leaf := range shown {
		if leaf.index >= size || i > 0 && leaf.index <= shown[i-1].index {
			return Digest{}, errIndices
		}
	}
	walk := listWalk{shown: shown, hashes: hashes}
	root := walk.root(0, size)
	if walk.missing || len(walk.hashes) > 0 {
		return Digest{}, errHashes
	}
	return root, nil
}

type listWalk struct {
	shown   []shownLeaf
	hashes  hashList
	missing bool
}

func (w *listWalk) root(start, size uint64) Digest {
	if w.missing {
		return Digest{}
	}
	if len(w.shown) == 0 || w.shown[0].index-start >= size {
		if len(w.hashes) == 0 {
			w.missing = true
			return Digest{}
		}
		next := w.hashes.at(0)
		w.hashes = w.hashes[32:]
		return next
	}
	if size == 1 {
		leaf := w.shown[0].hash
		w.shown = w.shown[1:]
		return leaf
	}
	k := split(size)
	left := w.root(start, k)
	right := w.root(start+k, size-k)
	return nodeHash(&left, &right)
}

// checkInclusion follows the path of RFC 9162, section 2.1.3.2.
func checkInclusion(leaf Digest, index, size uint64, path hashList, root Digest) error {
	if index >= size {
		return errIndices
	}
	hash, fn, sn := leaf, index, size-1
	for i := range path.len() {
		if sn == 0 {
			return errPath
		}
		step := path.at(i)
		if fn&1 == 1 || fn == sn {
			hash = nodeHash(&step, &hash)
			for fn&1 == 0 && fn != 0 {
				fn, sn = fn>>1, sn>>1
			}
		} else {
			hash = nodeHash(&hash, &step)
		}
		fn, sn = fn>>1, sn>>1
	}
	if sn != 0 {
		return errPath
	}
	if hash != root {
		return errRoot
	}
	return nil
}

// checkConsistency follows the path of RFC 9162, section 2.1.4.2. The old list is not empty.
func checkConsistency(oldSize uint64, oldRoot Digest, size uint64, root Digest, path hashList) error {
	if oldSize == 0 || oldSize > size {
		return errors.New("the old size is zero, or above the new one")
	}
	if oldSize == size {
		if len(path) > 0 {
			return errPath
		}
		if oldRoot != root {
			return errRoot
		}
		return nil
	}
	fn, sn := oldSize-1, size-1
	for fn&1 == 1 {
		fn, sn = fn>>1, sn>>1
	}
	next, at := oldRoot, 0
	if oldSize&(oldSize-1) != 0 {
		if path.len() == 0 {
			return errPath
		}
		next, at = path.at(0), 1
	}
	old, whole := next, next
	for ; at < path.len(); at++ {
		if sn == 0 {
			return errPath
		}
		step := path.at(at)
		if fn&1 == 1 || fn == sn {
			old, whole = nodeHash(&step, &old), nodeHash(&step, &whole)
			for fn&1 == 0 && fn != 0 {
				fn, sn = fn>>1, sn>>1
			}
		} else {
			whole = nodeHash(&whole, &step)
		}
		fn, sn = fn>>1, sn>>1
	}
	if sn != 0 {
		return errPath
	}
	if old != oldRoot || whole != root {
		return errRoot
	}
	return nil
}
