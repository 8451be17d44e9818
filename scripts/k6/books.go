package main

import (
	"errors"
	"fmt"
	"sync"

	"coppice.dev/sdk/verify"
)

// books hold what clients were told about their requests, for a comparison with the ledger at the
// end. All clients of a run share them.
type books struct {
	mutex sync.Mutex
	// told has the acknowledged requests that the walk has not met yet.
	told map[verify.Digest]place
	// next is the number of the next journal of the walk, and before the leaf of the last one.
	next   uint64
	before *verify.Leaf
	// lanes have the newest number of each lane that the walk has met.
	lanes map[lane]uint64
}

// place is where the journals of a request are.
type place struct {
	first uint64
	count uint32
}

// lane is a lane of a signer.
type lane struct {
	signer verify.MemberID
	number uint8
}

func newBooks() *books {
	return &books{told: map[verify.Digest]place{}, lanes: map[lane]uint64{}}
}

// acknowledged is a request, and its place as an answer tells it.
type acknowledged struct {
	Request  []byte `json:"request"`
	FirstJSN uint64 `json:"firstJsn,string"`
	Count    uint32 `json:"count"`
}

// acknowledge notes an answer. Its error is a contradiction to an earlier answer.
func (b *books) acknowledge(text string) error {
	answer, err := read[acknowledged]([]byte(text))
	if err != nil {
		return err
	}
	if len(answer.Request) != len(verify.Digest{}) {
		return errors.New("the hash of a request has 32 bytes")
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	request, at := verify.Digest(answer.Request), place{answer.FirstJSN, answer.Count}
	if known, again := b.told[request]; again && known != at {
		return fmt.Errorf("a request was acknowledged at journal %d, and then at %d", known.first, at.first)
	}
	b.told[request] = at
	return nil
}

// page has neighbouring journals of a ledger.
type page struct {
	Ledger   []byte    `json:"ledger"`
	FromJSN  uint64    `json:"fromJsn,string"`
	Journals []journal `json:"journals"`
}

// walk goes over the next journals of the ledger. Its first page begins with a request. Its error
// is the first contradiction: a gap, a request that is there twice or in part, or one at another
// place than was acknowledged.
func (b *books) walk(text string) error {
	page, err := read[page]([]byte(text))
	if err != nil {
		return err
	}
	ledger, err := ledgerID(page.Ledger)
	if err != nil {
		return err
	}
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if b.before == nil {
		b.next = page.FromJSN
	}
	for _, journal := range page.Journals {
		leaf, err := verify.DecodeLeaf(journal.Leaf)
		if err != nil {
			return fmt.Errorf("journal %d: %w", journal.JSN, err)
		}
		if leaf.Ledger != ledger || leaf.JSN != b.next || journal.JSN != b.next {
			return fmt.Errorf("journal %d of ledger %v is where %d should be", leaf.JSN, leaf.Ledger, b.next)
		}
		if err := b.pass(leaf); err != nil {
			return fmt.Errorf("journal %d: %w", leaf.JSN, err)
		}
		b.before = leaf
		b.next++
	}
	return nil
}

// pass judges the next journal.
func (b *books) pass(leaf *verify.Leaf) error {
	if leaf.Index > 0 {
		if b.before == nil || b.before.Request != leaf.Request || b.before.Index+1 != leaf.Index {
			return errors.New("its request lies in pieces")
		}
		return nil
	}
	if !b.whole() {
		return errors.New("the request before it is there in part")
	}
	signer := leaf.Member
	if leaf.Agent != nil {
		signer = *leaf.Agent
	}
	at := lane{signer, leaf.Lane}
	if newest, met := b.lanes[at]; met && newest+1 != leaf.Number {
		return fmt.Errorf("number %d of a lane follows %d", leaf.Number, newest)
	}
	b.lanes[at] = leaf.Number
	told, known := b.told[leaf.Request]
	if known && (told != place{leaf.JSN, leaf.Of}) {
		return fmt.Errorf("its request was acknowledged at journal %d, with %d journals", told.first, told.count)
	}
	delete(b.told, leaf.Request)
	return nil
}

// whole tells whether the walk stands behind a request.
func (b *books) whole() bool { return b.before == nil || b.before.Index+1 == b.before.Of }

// finish ends the walk. Its error says that acknowledged journals are not in the ledger.
func (b *books) finish() error {
	b.mutex.Lock()
	defer b.mutex.Unlock()
	if !b.whole() {
		return errors.New("the last request is there in part")
	}
	for _, at := range b.told {
		return fmt.Errorf("%d acknowledged requests are not in the ledger, one of them at journal %d", len(b.told), at.first)
	}
	return nil
}
