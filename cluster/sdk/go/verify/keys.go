package verify

import (
	"errors"
	"fmt"
)

// keyChain has the keys of a ledger as far as key changes tell. Without changes, the trusted key is
// the only one.
type keyChain struct {
	changes []KeyChange
	trusted PublicKey
	// place is the index of the trusted key: 0 is the first key of the ledger.
	place int
}

// newChain joins lists of changes that fit each other, and finds the trusted key in them.
func newChain(trusted PublicKey, lists ...[]KeyChange) (*keyChain, error) {
	chain := &keyChain{trusted: trusted}
	for _, list := range lists {
		joined, err := Join(chain.changes, list)
		if err != nil {
			return nil, err
		}
		chain.changes = joined
	}
	for chain.place = 0; chain.place <= len(chain.changes); chain.place++ {
		if chain.key(chain.place) == trusted {
			return chain, nil
		}
	}
	return nil, errors.New("the trusted key is none of the ledger's keys")
}

// key gives the ledger's key at an index, 0 being the first.
func (c *keyChain) key(at int) PublicKey {
	switch {
	case at > 0:
		return c.changes[at-1].New
	case len(c.changes) > 0:
		return c.changes[0].Old
	}
	return c.trusted
}

// below counts the changes among the first entries of the log.
func (c *keyChain) below(size uint64) int {
	count := 0
	for count < len(c.changes) && c.changes[count].Sequence < size {
		count++
	}
	return count
}

// checkHeader compares a header with the known changes (sections 13.3 and 13.4).
func (c *keyChain) checkHeader(h *Header, origin string) error {
	upTo := c.below(h.Sequence)
	if upTo < len(c.changes) && c.changes[upTo].Sequence == h.Sequence {
		upTo++
	}
	if h.KeyChange != nil && (upTo == 0 || !h.KeyChange.same(&c.changes[upTo-1])) {
		return errors.New("the header is a key change that is not shown")
	}
	if h.Format == format2 && uint64(h.KeyChanges) != uint64(upTo) {
		return fmt.Errorf("the header counts %d key changes, and %d are known", h.KeyChanges, upTo)
	}
	if h.Genesis != nil {
		return h.checkFirst(c.key(0), origin)
	}
	return nil
}

// decodeChanges reads the key changes of a log part. Their inclusion is checked later.
func decodeChanges(parts []headerPart, cluster ClusterID) ([]KeyChange, error) {
	changes := make([]KeyChange, 0, len(parts))
	seen := make(map[PublicKey]bool, len(parts)+1)
	for i, part := range parts {
		h, err := DecodeHeader(part.header)
		if err != nil {
			return nil, err
		}
		if h.KeyChange == nil || h.Cluster != cluster {
			return nil, errors.New("a header among the key changes is none of this cluster")
		}
		change := *h.KeyChange
		if i == 0 {
			seen[change.Old] = true
		}
		switch {
		case uint64(change.Number) != uint64(i)+1:
			return nil, errors.New("key changes are not numbered from 1 on")
		case i > 0 && change.Old != changes[i-1].New:
			return nil, errors.New("a key change begins with another key than the one before gave")
		case i > 0 && change.Sequence <= changes[i-1].Sequence:
			return nil, errors.New("the places of key changes do not ascend")
		case seen[change.New]:
			return nil, errors.New("a key was the ledger's before")
		}
		seen[change.New] = true
		changes = append(changes, change)
	}
	return changes, nil
}

// InForce counts the changes that lie among the first entries of a log. The key in force is the new
// key of the last of them.
func InForce(changes []KeyChange, size uint64) int {
	chain := keyChain{changes: changes}
	return chain.below(size)
}

// Join gives the longer of two lists of key changes, which must begin with the shorter one.
func Join(a, b []KeyChange) ([]KeyChange, error) {
	if len(a) < len(b) {
		a, b = b, a
	}
	for i := range b {
		if !b[i].same(&a[i]) {
			return nil, errors.New("two lists of key changes do not fit: the log was forked")
		}
	}
	return a, nil
}
