package verify

import (
	"errors"
	"slices"
)

// ledgerJudge judges one version of a ledger. It changes nothing of the auditor before keep.
type ledgerJudge struct {
	*LedgerAuditor
	header  *Header
	appends []toldAppend
	need    LedgerNeed
	asked   map[string]bool
	records []PutRecord
	// marked counts the journals that orders occult.
	marked uint64
}

// toldAppend is an append with its leaves, which are those that its entry commits to.
type toldAppend struct {
	*Entry
	leaves   []*Leaf
	hashes   []Digest
	envelope []byte
}

func (t *toldAppend) kind() uint8 { return t.leaves[0].Kind }

func (j *ledgerJudge) lacks() bool { return len(j.need.Leaves) > 0 || len(j.need.Records) > 0 }

// read checks that what was told of an append is what its entry commits to.
func (j *ledgerJudge) read(entry *Entry, told *Told) error {
	first := &entry.FirstJSN
	hashes := make([]Digest, len(told.Leaves))
	for i, leaf := range told.Leaves {
		hashes[i] = LeafHash(leaf)
	}
	if uint64(len(hashes)) != uint64(entry.Journals) || MerkleRoot(hashes) != entry.LeavesRoot {
		err := errors.New("the leaves are not those that the log commits to")
		return j.offence(OffenceAnswer, first, err)
	}
	read := toldAppend{Entry: entry, hashes: hashes, envelope: told.Envelope}
	for i, encoded := range told.Leaves {
		leaf, err := DecodeLeaf(encoded)
		if err != nil {
			jsn := entry.FirstJSN + uint64(i)
			return j.offence(OffenceLeaf, &jsn, err)
		}
		read.leaves = append(read.leaves, leaf)
	}
	if len(read.leaves) == 1 && read.kind() != JournalData {
		switch {
		case len(told.Envelope) == 0:
			return j.offence(OffenceWithheld, first, errors.New("no order may occult its content"))
		case sha(told.Envelope) != read.leaves[0].Commitment:
			return j.offence(OffenceAnswer, first, errors.New("the content is not what its author signed"))
		}
	}
	j.appends = append(j.appends, read)
	return nil
}

// ground gives a record of the version before. One that is not known is asked for, and whatever
// comes out of the judgement then does not count.
func (j *ledgerJudge) ground(key []byte) []byte {
	if value, known := j.LedgerAuditor.records[string(key)]; known {
		return value
	}
	jsn, isLeaf := leafNumber(key)
	switch {
	case isLeaf && jsn >= j.Size():
		return nil
	case isLeaf && jsn >= j.first:
		if leaf, is := j.lent[jsn]; is {
			return leaf
		}
		if !j.asked[string(key)] {
			j.need.Leaves = append(j.need.Leaves, jsn)
		}
	case j.since == nil || key[1] == 0:
		// All that the ledger wrote is known. Names are those of other ledgers, too.
		return nil
	case !j.asked[string(key)]:
		j.need.Records = append(j.need.Records, slices.Clone(key))
	}
	j.asked[string(key)] = true
	return nil
}

// judge judges the appends in their order, and the head that they leave.
func (j *ledgerJudge) judge(heads []*Entry) error {
	round := NewRound(j.header.Cluster, j.header.Stamp(), j.ground, j.seen)
	round.At(j.header.TimestampMS, j.time)
	for i := range j.appends {
		if err := j.append(round, &j.appends[i]); err != nil || j.lacks() {
			return err
		}
	}
	closed := round.Close()
	if len(closed) != 1 || len(heads) != 1 {
		err := errors.New("a version has a head where the ledger is appended to, and only there")
		return j.offence(OffenceHead, nil, err)
	}
	head, wanted := heads[0], &closed[0]
	if head.SizeBefore != wanted.SizeBefore || head.Size != wanted.Size || head.Root != wanted.Root {
		return j.offence(OffenceHead, nil, errors.New("the head is not the one that the appends leave"))
	}
	if !slices.Equal(head.Touched, j.lists(wanted.Records, nil)) {
		err := errors.New("the records of the head are not those that the appends leave")
		return j.offence(OffenceHead, nil, err)
	}
	j.records = append(j.records, wanted.Records...)
	return nil
}

func (j *ledgerJudge) append(round *Round, told *toldAppend) error {
	first := &told.FirstJSN
	if err := j.checkFounding(told); err != nil {
		return j.offence(OffenceRequest, first, err)
	}
	appended, err := j.apply(round, told)
	if j.lacks() {
		return nil
	}
	var refusal Refusal
	if errors.As(err, &refusal) {
		return j.offence(OffenceRequest, first, refusal)
	}
	if err != nil {
		return j.offence(OffenceRecords, first, err)
	}
	if appended.FirstJSN != told.FirstJSN || len(appended.leaves) != len(told.leaves) {
		return j.offence(OffenceLeaf, first, errors.New("it has another number than the next journal"))
	}
	for i, leaf := range appended.leaves {
		if leaf.Hash() != told.hashes[i] {
			err := errors.New("the leaf is not the one that follows from what was signed")
			return j.offence(OffenceLeaf, &leaf.JSN, err)
		}
	}
	if !slices.Equal(told.Touched, j.lists(appended.Records, appended.leaves)) {
		err := errors.New("its records are not those that follow from what was signed")
		return j.offence(OffenceRecords, first, err)
	}
	if order, is := j.orderOf(told); is {
		j.marked += uint64(len(order.Targets))
	}
	j.records = append(j.records, appended.Records...)
	return nil
}

func (j *ledgerJudge) apply(round *Round, told *toldAppend) (*Appended, error) {
	if told.kind() == JournalData {
		return round.appendLeaves(told.Signed, told.Signature, told.leaves)
	}
	request := Request{Signed: told.Signed, Signature: told.Signature}
	for range told.leaves {
		request.Items = append(request.Items, Item{Kind: told.kind(), Envelope: told.envelope})
	}
	return round.Append(request)
}

// checkFounding refuses a request that founds a ledger of another id.
func (j *ledgerJudge) checkFounding(told *toldAppend) error {
	signed, err := DecodeSigned(told.Signed)
	if err != nil {
		return RefusedForm
	}
	if signed.Ledger != (LedgerID{}) {
		return nil
	}
	envelope, err := DecodeEnvelope(told.envelope)
	if err != nil {
		return RefusedForm
	}
	founding, err := DecodeFounding(envelope.Payload)
	if err != nil {
		return RefusedForm
	}
	if FoundedID(j.header.Cluster, told.Signed, founding.Spread) != j.ledger {
		return errors.New("it founds another ledger")
	}
	return nil
}

// seen tells whether the log had a root before the version.
func (j *ledgerJudge) seen(size uint64, root Digest) bool {
	if size > j.header.Sequence {
		return false
	}
	was, found := j.root(size)
	return found && was == root
}

func (j *ledgerJudge) time(version uint64) (uint64, bool) {
	header := j.log.Header(version)
	if header == nil {
		return 0, false
	}
	return header.TimestampMS, true
}

// lists gives the hashes of the operation lists of an entry, by shard. Envelopes count by their
// commitments.
func (j *ledgerJudge) lists(records []PutRecord, leaves []*Leaf) []Touched {
	envelopes := make(map[string]*Leaf, len(leaves))
	for _, leaf := range leaves {
		envelopes[string(j.ledger.envelopeKey(leaf.JSN))] = leaf
	}
	shards := j.log.genesis.Shards
	lists := make(map[uint32][]Operation)
	for _, record := range records {
		operation := Put(record.Key, record.Value)
		if record.Value == nil {
			operation = Delete(record.Key)
		}
		if leaf := envelopes[string(record.Key)]; leaf != nil {
			operation.Length, operation.Hash = leaf.EnvelopeBytes, leaf.Commitment
		}
		id := shards[shardOf(shards, record.Key)].ID
		lists[id] = append(lists[id], operation)
	}
	var touched []Touched
	for _, id := range ascending(lists) {
		touched = append(touched, Touched{Shard: id, List: OperationListHash(lists[id])})
	}
	return touched
}

// keep takes the version.
func (j *ledgerJudge) keep() error {
	a := j.LedgerAuditor
	for i := range j.records {
		record := &j.records[i]
		if !judges(record) {
			continue
		}
		if err := a.Believe(record.Key, record.Value); err != nil {
			return err
		}
	}
	head, err := decodeHead(a.records[string(a.ledger.HeadKey())])
	if err != nil {
		return err
	}
	a.head = head
	a.occulted += j.marked
	a.version++
	clear(a.lent)
	return nil
}

// orderOf reads the order of an append.
func (j *ledgerJudge) orderOf(told *toldAppend) (order *Order, is bool) {
	if told.kind() != JournalOrder {
		return nil, false
	}
	envelope, err := DecodeEnvelope(told.envelope)
	if err != nil {
		return nil, false
	}
	order, err = DecodeOrder(envelope.Payload)
	return order, err == nil
}
