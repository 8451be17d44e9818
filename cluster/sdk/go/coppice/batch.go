package coppice

import (
	"context"
	"errors"
	"reflect"

	"google.golang.org/grpc/codes"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// Batch is a list of changes, of which all happen or none. Its methods add to it:
//
//	batch := new(coppice.Batch).Put(key, value).IfAbsent(key)
//
// A batch keeps the slices that it is given.
type Batch struct {
	pb v1.Batch
}

// Put gives a key a value.
func (b *Batch) Put(key, value []byte) *Batch {
	change := &v1.Operation_Put{Put: value}
	b.pb.Operations = append(b.pb.Operations, &v1.Operation{Key: key, Change: change})
	return b
}

// Delete takes a key's value away. It does nothing to a key without one.
func (b *Batch) Delete(key []byte) *Batch {
	change := &v1.Operation_Delete{Delete: true}
	b.pb.Operations = append(b.pb.Operations, &v1.Operation{Key: key, Change: change})
	return b
}

// IfAbsent demands that a key has no value.
func (b *Batch) IfAbsent(key []byte) *Batch {
	condition := &v1.Precondition_Absent{Absent: true}
	b.pb.Preconditions = append(b.pb.Preconditions, &v1.Precondition{Key: key, Condition: condition})
	return b
}

// IfChanged demands that a key has a value, which was changed last at a stamp.
func (b *Batch) IfChanged(key []byte, at Stamp) *Batch {
	condition := &v1.Precondition_LastChanged{LastChanged: toStamp(at)}
	b.pb.Preconditions = append(b.pb.Preconditions, &v1.Precondition{Key: key, Condition: condition})
	return b
}

// IfValueHash demands that a key has a value with a SHA-256.
func (b *Batch) IfValueHash(key []byte, hash [32]byte) *Batch {
	condition := &v1.Precondition_ValueSha256{ValueSha256: hash[:]}
	b.pb.Preconditions = append(b.pb.Preconditions, &v1.Precondition{Key: key, Condition: condition})
	return b
}

// ExpectHead demands that the newest version before the batch has a stamp.
func (b *Batch) ExpectHead(at Stamp) *Batch {
	b.pb.ExpectedHead = toStamp(at)
	return b
}

// Exclusive demands that the batch gets a version of its own.
func (b *Batch) Exclusive() *Batch {
	b.pb.Exclusive = true
	return b
}

// Metadata adds bytes that the ledger commits to by their hash.
func (b *Batch) Metadata(metadata []byte) *Batch {
	b.pb.Metadata = metadata
	return b
}

// Writes gives what the batch leaves: the last value of each key, and nil for a key that it
// deletes. An empty value is not nil.
func (b *Batch) Writes() map[string][]byte {
	writes := make(map[string][]byte, len(b.pb.Operations))
	for _, operation := range b.pb.Operations {
		if put, is := operation.Change.(*v1.Operation_Put); is {
			writes[string(operation.Key)] = append([]byte{}, put.Put...)
		} else {
			writes[string(operation.Key)] = nil
		}
	}
	return writes
}

// operations gives the changes in the form of the journal.
func operationsOf(batch *v1.Batch) []verify.Operation {
	operations := make([]verify.Operation, 0, len(batch.Operations))
	for _, operation := range batch.Operations {
		if put, is := operation.Change.(*v1.Operation_Put); is {
			operations = append(operations, verify.Put(operation.Key, put.Put))
		} else {
			operations = append(operations, verify.Delete(operation.Key))
		}
	}
	return operations
}

// Hash names the batch in a session: Session.BatchHash has it, if the batch was its newest one.
func (b *Batch) Hash() verify.Digest {
	var preconditions []verify.Precondition
	for _, p := range b.pb.Preconditions {
		precondition := verify.Precondition{Key: p.Key}
		switch condition := p.Condition.(type) {
		case *v1.Precondition_LastChanged:
			stamp := stampOf(condition.LastChanged)
			precondition.LastChanged = &stamp
		case *v1.Precondition_ValueSha256:
			hash := verify.Digest(condition.ValueSha256)
			precondition.ValueHash = &hash
		}
		preconditions = append(preconditions, precondition)
	}
	return verify.BatchHash(operationsOf(&b.pb), preconditions, b.pb.Metadata)
}

// Committed is the answer to a commit.
type Committed struct {
	Stamp Stamp
	// Header is the version's header, in canonical bytes.
	Header       []byte
	JournalIndex uint32
	// Receipt is the proof file which shows that the batch was committed. A client that verifies has
	// checked it.
	Receipt []byte
	// Replayed tells that the batch was committed before under its number.
	Replayed bool
}

// Commit writes a batch outside of a session, and waits until it is durable. It is sent again only
// if it certainly had no effect; a Session repeats it safely. After an error, OutcomeUnknown says
// whether the batch may have been written.
func (c *Client) Commit(ctx context.Context, batch *Batch) (*Committed, error) {
	return c.commit(ctx, unsafe, &v1.CommitRequest{Batch: &batch.pb, WantReceipt: c.trust != nil})
}

func (c *Client) commit(ctx context.Context, again repeat, request *v1.CommitRequest) (*Committed, error) {
	k := c.known()
	answer, err := invoke(ctx, c, "Commit", again, request, v1.LedgerClient.Commit)
	if err != nil {
		return nil, err
	}
	sent := sentBatch{pb: request.Batch, session: request.SessionId, number: request.Number}
	return c.believeCommit(ctx, "Commit", k, sent, answer)
}

// sentBatch is a batch as it was sent.
type sentBatch struct {
	pb      *v1.Batch
	session []byte
	number  uint64
}

// entry is the batch's entry in the journal, by the shards of genesis.
func (s *sentBatch) entry(shards []verify.Shard) ([]byte, error) {
	var session *verify.SessionID
	if len(s.session) > 0 {
		id := verify.SessionID(s.session)
		session = &id
	}
	return verify.BatchEntry(shards, session, s.number, operationsOf(s.pb), s.pb.Metadata)
}

// believeCommit checks the receipt of an answer: it is for exactly the batch that was sent.
func (c *Client) believeCommit(
	ctx context.Context,
	call string,
	k known,
	sent sentBatch,
	answer *v1.CommitResponse,
) (*Committed, error) {
	if c.trust != nil {
		if err := c.checkReceipt(ctx, k, sent, answer); err != nil {
			return nil, afterCommit(call, err)
		}
	}
	return &Committed{
		Stamp: stampOf(answer.Stamp), Header: answer.Header, JournalIndex: answer.JournalIndex,
		Receipt: answer.Receipt, Replayed: answer.Replayed,
	}, nil
}

// afterCommit marks an error in proving a commit that was answered: the batch may well be
// committed.
func afterCommit(call string, err error) error {
	var failed *Error
	if errors.As(err, &failed) {
		failed.OutcomeUnknown = true
		return err
	}
	var fork *ForkError
	if errors.As(err, &fork) {
		return err
	}
	return &untrusted{call: call, err: err, written: true}
}

func (c *Client) checkReceipt(ctx context.Context, k known, sent sentBatch, answer *v1.CommitResponse) error {
	if len(answer.Receipt) == 0 {
		return &Error{
			Call: "Commit", Reason: Unavailable, Code: codes.Unavailable, Endpoint: "a coordinator", Attempts: 1,
			Message: "the ledger sent no receipt: the batch may be committed",
		}
	}
	shards, err := c.shards(ctx)
	if err != nil {
		return err
	}
	entry, err := sent.entry(shards)
	if err != nil {
		return err
	}
	v, err := c.verifyProof(ctx, k, answer.Receipt)
	if err != nil {
		return err
	}
	if err := v.Answers(verify.Question{Subject: verify.AboutBatch(verify.JournalLeafHash(entry))}); err != nil {
		return err
	}
	header, err := verify.DecodeHeader(answer.Header)
	switch {
	case err != nil:
		return err
	case !reflect.DeepEqual(header, v.Header) || v.Header.Stamp() != stampOf(answer.Stamp):
		return errors.New("the receipt is for another version")
	case v.Header.ShardMap != verify.ShardMapHash(shards):
		return errors.New("the genesis header that was shown has other shards")
	}
	c.trust.mutex.Lock()
	c.trust.shards = shards
	c.trust.mutex.Unlock()
	return c.follow(ctx, v, answer.Receipt)
}

// shards gives the shards of the genesis header. The header may come from anywhere, because each
// receipt's header names the shards by their hash.
func (c *Client) shards(ctx context.Context) ([]verify.Shard, error) {
	c.trust.mutex.Lock()
	shards := c.trust.shards
	c.trust.mutex.Unlock()
	if shards != nil {
		return shards, nil
	}
	encoded, err := c.HeaderAt(ctx, 0)
	if err != nil {
		return nil, err
	}
	header, err := verify.DecodeHeader(encoded)
	if err != nil {
		return nil, err
	}
	if header.Genesis == nil {
		return nil, errors.New("the first header is not genesis")
	}
	return header.Genesis.Shards, nil
}

// known is what the client knows before it asks.
func (c *Client) known() known {
	if c.trust == nil {
		return known{}
	}
	return c.trust.known()
}
