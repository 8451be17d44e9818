package verify

import "errors"

// Pair is an epoch and the version to which its rollback went: its versions are above the base.
type Pair struct {
	Epoch uint64
	Base  uint64
}

// stands tells whether a version of a pair stands, given the next pair, if there is one.
func (p Pair) stands(stamp Stamp, next *Pair) bool {
	if stamp == (Stamp{}) {
		return p == Pair{}
	}
	return stamp.Epoch == p.Epoch && p.Base < stamp.Version && (next == nil || stamp.Version <= next.Base)
}

// checkPairAt checks that rollbacks can leave a pair at an index (sections 11 and 13.5). Epochs and
// bases ascend by at least one a pair up to the newest header's epoch and version.
func checkPairAt(pair Pair, index uint64, newest *Header) error {
	after := uint64(newest.EpochPairs) - 1 - index
	switch {
	case index == 0 && pair != Pair{}:
		return errors.New("the first pair is not (0, 0)")
	case index > 0 && (pair.Epoch < index || pair.Base < index-1):
		return errors.New("a pair is too low for its place")
	case pair.Epoch > newest.Epoch || newest.Epoch-pair.Epoch < after:
		return errors.New("the epoch of a pair is too high for its place")
	case pair.Base > newest.Version:
		return errors.New("the base of a pair is above the newest version")
	case index > 0 && newest.Version-pair.Base < after:
		return errors.New("the base of a pair is too high for its place")
	case after == 0 && pair.Epoch != newest.Epoch:
		return errors.New("the last pair has not the newest header's epoch")
	}
	return nil
}

// checkNeighbours checks the order of section 11 between a pair, at this index, and the next one.
func checkNeighbours(pair, next Pair, index uint64) error {
	if next.Epoch <= pair.Epoch || index > 0 && next.Base <= pair.Base {
		return errors.New("epochs or bases do not ascend")
	}
	return nil
}

// checkPairs checks all pairs of a header against section 11 and against the header's epochs root.
func checkPairs(pairs []Pair, newest *Header) error {
	if uint64(len(pairs)) != uint64(newest.EpochPairs) {
		return errors.New("there are more or fewer pairs than the header counts")
	}
	leaves := make([]Digest, len(pairs))
	for i, pair := range pairs {
		if err := checkPairAt(pair, uint64(i), newest); err != nil {
			return err
		}
		if i > 0 {
			if err := checkNeighbours(pairs[i-1], pair, uint64(i-1)); err != nil {
				return err
			}
		}
		leaves[i] = epochLeafHash(pair)
	}
	if MerkleRoot(leaves) != newest.EpochsRoot {
		return errors.New("the pairs are not those of the epochs root")
	}
	return nil
}

// standsBy tells whether a version stands by a whole list of pairs.
func standsBy(stamp Stamp, pairs []Pair) bool {
	for i, pair := range pairs {
		var next *Pair
		if i+1 < len(pairs) {
			next = &pairs[i+1]
		}
		if pair.Epoch == stamp.Epoch {
			return pair.stands(stamp, next)
		}
	}
	return false
}

// rollBack gives the pairs after a rollback to a version (section 11).
func rollBack(pairs []Pair, epoch, target uint64) []Pair {
	kept := make([]Pair, 0, len(pairs)+1)
	for i, pair := range pairs {
		if i == 0 || pair.Base < target {
			kept = append(kept, pair)
		}
	}
	return append(kept, Pair{Epoch: epoch, Base: target})
}
