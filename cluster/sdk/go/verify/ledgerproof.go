package verify

import (
	"bytes"
	"errors"
)

// ProvenJournal is one journal of a ledger, with what the file shows of it.
type ProvenJournal struct {
	Leaf *Leaf
	// Signed is the request that the holder of the leaf's key signed; nil if it is not shown.
	Signed []byte
	// Envelope is nil if it is not shown.
	Envelope *Envelope
}

// Journals is the claim of a journal proof: the ledger's list held these journals.
type Journals struct {
	Ledger LedgerID
	Size   uint64
	Root   Digest
	// KnownSize is 0 if the proof continues no known state.
	KnownSize uint64
	KnownRoot Digest
	Journals  []ProvenJournal
}

// Lineage is the claim of a lineage: these were the newest journals with the clue, newest first.
// All of them are shown if After is 0, but for those that a purge has taken.
type Lineage struct {
	Ledger LedgerID
	Clue   Digest
	Count  uint64
	After  uint64
	// Gone is how many of the oldest journals a purge has swept; those of them that it has kept are
	// among the journals.
	Gone     uint64
	Journals []ProvenJournal
}

// journalCheck takes the steps leaf, request and envelope for the journal parts of a file.
type journalCheck struct {
	cluster ClusterID
	ledger  LedgerID
	header  *Header
	parts   []journalPart
	leaves  []*Leaf
}

func (c *journalCheck) checkLeaves(ascending bool) error {
	for i := range c.parts {
		leaf, err := DecodeLeaf(c.parts[i].leaf)
		switch {
		case err != nil:
			return under(StepLeaf, err)
		case leaf.Ledger != c.ledger:
			return fail(StepLeaf, "a leaf is of another ledger")
		case leaf.Stamp.Epoch > c.header.Epoch || leaf.Stamp.Version > c.header.Version:
			return fail(StepLeaf, "a leaf is newer than the version")
		case ascending && i > 0 && leaf.JSN <= c.leaves[i-1].JSN:
			return fail(StepLeaf, "the numbers of journals do not ascend")
		}
		c.leaves = append(c.leaves, leaf)
	}
	return nil
}

func (c *journalCheck) checkRequests() error {
	for i, part := range c.parts {
		if part.signed != nil {
			if err := c.checkRequest(c.leaves[i], part); err != nil {
				return under(StepRequest, err)
			}
		}
	}
	return nil
}

func (c *journalCheck) checkRequest(leaf *Leaf, part journalPart) error {
	if sha(part.signed) != leaf.Request {
		return errors.New("the request is not the leaf's")
	}
	request, err := DecodeSigned(part.signed)
	if err != nil {
		return err
	}
	ledger := leaf.Ledger
	if leaf.JSN == 0 {
		if FoundedID(c.cluster, part.signed, ledger[15]&1 == 1) != ledger {
			return errors.New("the request does not found the leaf's ledger")
		}
		ledger = LedgerID{}
	}
	if request.Cluster != c.cluster || request.Ledger != ledger || request.Member != leaf.Member ||
		!sameMember(request.Agent, leaf.Agent) || request.Lane != leaf.Lane || request.Number != leaf.Number ||
		request.Items != leaf.Of || request.Epoch != leaf.Stamp.Epoch {
		return errors.New("the request says something else than the leaf")
	}
	item := itemHash(leaf.Kind, leaf.Commitment, leaf.EnvelopeBytes, leaf.clueHashes())
	if err := checkInclusion(item, uint64(leaf.Index), uint64(leaf.Of), part.path, request.ItemsRoot); err != nil {
		return err
	}
	if !verifySignature(leaf.Key, part.signed, leaf.Signature[:]) {
		return errors.New("the leaf's key has not signed the request")
	}
	return nil
}

func sameMember(a, b *MemberID) bool { return (a == nil) == (b == nil) && (a == nil || *a == *b) }

func (c *journalCheck) checkEnvelopes() ([]ProvenJournal, error) {
	journals := make([]ProvenJournal, len(c.parts))
	for i, part := range c.parts {
		leaf := c.leaves[i]
		journals[i] = ProvenJournal{Leaf: leaf, Signed: part.signed}
		if part.envelope == nil {
			continue
		}
		if uint64(len(part.envelope)) != uint64(leaf.EnvelopeBytes) || sha(part.envelope) != leaf.Commitment {
			return nil, fail(StepEnvelope, "the envelope is not the leaf's")
		}
		envelope, err := DecodeEnvelope(part.envelope)
		if err != nil {
			return nil, under(StepEnvelope, err)
		}
		if len(envelope.Clues) != len(leaf.Clues) {
			return nil, fail(StepEnvelope, "the clues of the envelope are not the leaf's")
		}
		for at, clue := range envelope.Clues {
			if ClueHash(leaf.Ledger, clue) != leaf.Clues[at].Clue {
				return nil, fail(StepEnvelope, "the clues of the envelope are not the leaf's")
			}
		}
		journals[i].Envelope = envelope
	}
	return journals, nil
}

// checkJournals takes the steps of section 18 for a file of kind 3.
func (p *proofFile) checkJournals(header *Header) (*Journals, error) {
	head, err := p.entry.check(header)
	if err != nil {
		return nil, err
	}
	if head.Kind != EntryHead {
		return nil, fail(StepJournal, "the entry is no head")
	}
	check := journalCheck{cluster: p.cluster, ledger: head.Ledger, header: header, parts: p.journals.journals}
	if err := check.checkLeaves(true); err != nil {
		return nil, err
	}
	if len(check.leaves) == 0 {
		return nil, fail(StepList, "no journal is shown")
	}
	for i, leaf := range check.leaves {
		hash := LeafHash(p.journals.journals[i].leaf)
		if err := checkInclusion(hash, leaf.JSN, head.Size, p.journals.paths[i], head.Root); err != nil {
			return nil, under(StepList, err)
		}
	}
	claim := &Journals{Ledger: head.Ledger, Size: head.Size, Root: head.Root}
	if known := p.journals.known; known != nil {
		if err := checkConsistency(known.size, known.root, head.Size, head.Root, known.path); err != nil {
			return nil, under(StepList, err)
		}
		claim.KnownSize, claim.KnownRoot = known.size, known.root
	}
	if err := check.checkRequests(); err != nil {
		return nil, err
	}
	claim.Journals, err = check.checkEnvelopes()
	return claim, err
}

// checkLineage takes the steps of section 18 for a file of kind 5 whose query was verified.
func (p *proofFile) checkLineage(header *Header, query *Query) (*Lineage, error) {
	part := p.lineage
	from, err := lineageRange(part, query)
	if err != nil {
		return nil, under(StepLineage, err)
	}
	check := journalCheck{cluster: p.cluster, ledger: part.ledger, header: header, parts: part.journals}
	if err := check.checkLeaves(false); err != nil {
		return nil, err
	}
	if err := check.checkRequests(); err != nil {
		return nil, err
	}
	journals, err := check.checkEnvelopes()
	if err != nil {
		return nil, err
	}
	clue, err := checkCells(part, query.Records, check.leaves, from)
	if err != nil {
		return nil, under(StepLineage, err)
	}
	return &Lineage{
		Ledger: part.ledger, Clue: part.clue, Count: clue.count, After: from, Gone: clue.gone, Journals: journals,
	}, nil
}

// lineageRange gives the ordinal above which the range of a lineage has all cells.
func lineageRange(part *lineagePart, query *Query) (uint64, error) {
	low := part.ledger.clueKey(part.clue)
	if !query.IsRange || !query.HasValues || !bytes.Equal(query.Low, low) || !bytes.HasPrefix(query.High, low) ||
		len(query.High) != len(low)+8 {
		return 0, errors.New("the query is not the range of the clue, with values")
	}
	inverted := uint64(0)
	for _, b := range query.High[len(low):] {
		inverted = inverted<<8 | uint64(b)
	}
	return ^inverted, nil
}

// clueRecord is the newest record of a clue.
type clueRecord struct {
	count   uint64
	lastJSN uint64
	chain   Digest
	// gone counts the oldest journals, which a purge has swept or kept.
	gone      uint64
	chainGone Digest
}

func decodeClue(encoded []byte) (c clueRecord, err error) {
	r := reader{rest: encoded}
	if r.u8() != 1 {
		r.fail("the record of a clue has another format")
	}
	c = clueRecord{count: r.u64(), lastJSN: r.u64(), chain: r.digest(), gone: r.u64(), chainGone: r.digest()}
	if c.gone > c.count || c.gone == 0 && c.chainGone != (Digest{}) {
		r.fail("the record of a clue has others that are gone than it can have")
	}
	return c, r.end()
}

func (c *clueRecord) encode() []byte {
	w := writer{}
	w.u8(1)
	w.u64(c.count)
	w.u64(c.lastJSN)
	w.digest(c.chain)
	w.u64(c.gone)
	w.digest(c.chainGone)
	return w
}

// cell says that a journal has a clue.
type cell struct {
	jsn  uint64
	leaf Digest
}

func decodeCell(encoded []byte) (c cell, err error) {
	r := reader{rest: encoded}
	if r.u8() != 1 {
		r.fail("a cell has another format")
	}
	c = cell{jsn: r.u64(), leaf: r.digest()}
	return c, r.end()
}

func (c *cell) encode() []byte {
	w := writer{}
	w.u8(1)
	w.u64(c.jsn)
	w.digest(c.leaf)
	return w
}

// chained is the chain of a clue behind one more journal.
func chained(before Digest, jsn uint64, leaf Digest) Digest {
	w := writer(before[:])
	w.u64(jsn)
	w.digest(leaf)
	return hashOf(tagChain, w)
}

// checkCells compares the records and leaves of a lineage, and gives the record of the clue.
func checkCells(part *lineagePart, records []Record, leaves []*Leaf, from uint64) (clueRecord, error) {
	if len(records) == 0 {
		if len(leaves) > 0 || from != 0 {
			return clueRecord{}, errors.New("journals of a clue that no journal has")
		}
		return clueRecord{}, nil
	}
	low := part.ledger.clueKey(part.clue)
	if !bytes.Equal(records[0].Key, low) {
		return clueRecord{}, errors.New("the first record is not the clue's")
	}
	clue, err := decodeClue(records[0].Value)
	if err != nil {
		return clueRecord{}, err
	}
	cells := records[1:]
	// Above those that are gone no cell is missing. Further below lie those of kept journals.
	floor := max(from, clue.gone)
	if clue.count < from || uint64(len(cells)) < clue.count-floor || len(leaves) != len(cells) {
		return clueRecord{}, errors.New("there are not as many cells and journals as the clue counts")
	}
	whole := int(clue.count - floor)
	if whole > 0 && leaves[0].JSN != clue.lastJSN {
		return clueRecord{}, errors.New("the newest journal is not the clue's last")
	}
	chain := clue.chainGone
	for i := len(cells) - 1; i >= 0; i-- {
		ordinal := ordinalOf(leaves[i], part.clue)
		follows := ordinal == clue.count-uint64(i)
		if i >= whole {
			follows = ordinal > from && ordinal <= floor &&
				(i == whole || ordinal < ordinalOf(leaves[i-1], part.clue))
		}
		if !follows || !bytes.Equal(cells[i].Key, part.ledger.cellKey(part.clue, ordinal)) {
			return clueRecord{}, errors.New("a record is not the cell of its ordinal")
		}
		at, err := decodeCell(cells[i].Value)
		if err != nil {
			return clueRecord{}, err
		}
		if at.jsn != leaves[i].JSN || at.leaf != LeafHash(part.journals[i].leaf) {
			return clueRecord{}, errors.New("a cell is not that of its journal")
		}
		if i > 0 && leaves[i-1].JSN <= leaves[i].JSN {
			return clueRecord{}, errors.New("the numbers of a lineage do not descend")
		}
		if i < whole {
			chain = chained(chain, at.jsn, at.leaf)
		}
	}
	if from <= clue.gone && chain != clue.chain {
		return clueRecord{}, errors.New("the chain is not the clue's")
	}
	return clue, nil
}

// ordinalOf is the ordinal of a journal among those with a clue, or 0 if it does not name the clue.
func ordinalOf(leaf *Leaf, clue Digest) uint64 {
	for _, own := range leaf.Clues {
		if own.Clue == clue {
			return own.Ordinal
		}
	}
	return 0
}
