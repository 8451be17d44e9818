package verify

import (
	"bytes"
	"encoding/binary"
	"errors"
)

// SessionID names a session, in which each request has a number.
type SessionID [16]byte

// Touched names a shard that an entry writes to, with the hash of its operation list there.
type Touched struct {
	Shard uint32
	List  Digest
}

// EntryKind is the kind of a journal entry.
type EntryKind uint8

// The kinds of journal entries (section 8).
const (
	EntryBatch  EntryKind = 0
	EntryMerge  EntryKind = 1
	EntryAppend EntryKind = 2
	EntryHead   EntryKind = 3
)

// Entry is one entry of a version's journal. Which fields it has follows from its kind.
type Entry struct {
	Kind EntryKind
	// Session is nil for a batch outside of a session.
	Session  *SessionID
	Number   uint64
	Metadata Digest
	// Touched has the shards of a batch, append or head, in ascending order.
	Touched []Touched

	// Shard, Inputs and Output describe a merge.
	Shard  uint32
	Inputs []Digest
	Output Digest

	// Ledger and what follows is of an append or a head.
	Ledger     LedgerID
	Signed     []byte
	Signature  [64]byte
	FirstJSN   uint64
	Journals   uint32
	LeavesRoot Digest
	SizeBefore uint64
	Size       uint64
	Root       Digest
}

// DecodeEntry reads a journal entry.
func DecodeEntry(encoded []byte) (*Entry, error) {
	r := &reader{rest: encoded}
	e := &Entry{Kind: EntryKind(r.u8())}
	switch e.Kind {
	case EntryBatch:
		if r.flag() {
			session := SessionID(r.id())
			e.Session, e.Number = &session, r.u64()
		}
		e.Metadata = r.digest()
		if signature, clues := r.u8(), r.u8(); signature != 0 || clues != 0 {
			r.fail("a batch has a signature or clues, which none has")
		}
		e.Touched = decodeTouched(r)
	case EntryMerge:
		e.Shard = r.u32()
		e.Inputs = make([]Digest, r.count16(32))
		for i := range e.Inputs {
			e.Inputs[i] = r.digest()
		}
		e.Output = r.digest()
		if r.err == nil && len(e.Inputs) < 2 {
			r.fail("a merge has two inputs or more")
		}
	case EntryAppend:
		decodeAppend(r, e)
	case EntryHead:
		e.Ledger, e.SizeBefore, e.Size, e.Root = LedgerID(r.id()), r.u64(), r.u64(), r.digest()
		e.Touched = decodeTouched(r)
		if r.err == nil && e.Size <= e.SizeBefore {
			r.fail("a ledger that has not grown has no head")
		}
	default:
		r.fail("an entry of an unknown kind")
	}
	if err := r.end(); err != nil {
		return nil, err
	}
	return e, nil
}

func decodeAppend(r *reader, e *Entry) {
	e.Ledger = LedgerID(r.id())
	e.Signed = r.take(uint64(r.u16()))
	copy(e.Signature[:], r.take(64))
	e.FirstJSN, e.Journals, e.LeavesRoot = r.u64(), r.u32(), r.digest()
	e.Touched = decodeTouched(r)
	if r.err != nil {
		return
	}
	request, err := DecodeSigned(e.Signed)
	switch {
	case err != nil:
		r.err = err
	case request.Items != e.Journals:
		r.fail("an append has as many journals as were signed")
	case request.Ledger != e.Ledger && request.Ledger != LedgerID{}:
		r.fail("an append is of another ledger than its request")
	}
}

func decodeTouched(r *reader) []Touched {
	touched := make([]Touched, r.count32(36))
	for i := range touched {
		touched[i] = Touched{Shard: r.u32(), List: r.digest()}
		if r.err == nil && i > 0 && touched[i].Shard <= touched[i-1].Shard {
			r.fail("the shards of an entry do not ascend")
		}
	}
	return touched
}

// Operation is a put of a value, or a delete.
type Operation struct {
	Key    []byte
	Delete bool
	// Length and Hash describe the value of a put.
	Length uint32
	Hash   Digest
}

// Put is the operation that gives a key a value.
func Put(key, value []byte) Operation {
	return Operation{Key: key, Length: uint32(len(value)), Hash: sha(value)}
}

// Delete is the operation that takes a key's value away.
func Delete(key []byte) Operation { return Operation{Key: key, Delete: true} }

func encodeOperations(w *writer, operations []Operation) {
	w.u32(uint32(len(operations)))
	for _, operation := range operations {
		w.flag(operation.Delete)
		w.str16(operation.Key)
		if !operation.Delete {
			w.u32(operation.Length)
			w.digest(operation.Hash)
		}
	}
}

// OperationListHash is the hash of the operations of one batch on one shard, as sent.
func OperationListHash(operations []Operation) Digest {
	w := writer{}
	encodeOperations(&w, operations)
	return hashOf(tagOperations, w)
}

// EncodeOperations gives an operation list in the bytes that a shard keeps of it.
func EncodeOperations(operations []Operation) []byte {
	w := writer{}
	encodeOperations(&w, operations)
	return w
}

// MetadataHash is the hash of the metadata of a batch.
func MetadataHash(metadata []byte) Digest {
	w := writer{}
	w.str32(metadata)
	return hashOf(tagMetadata, w)
}

// DecodeOperations reads an operation list. Its keys are of any length: limits are for an audit.
func DecodeOperations(encoded []byte) ([]Operation, error) {
	r := &reader{rest: encoded}
	operations := make([]Operation, r.count32(3))
	for i := range operations {
		operation := Operation{Delete: r.flag(), Key: r.take(uint64(r.u16()))}
		if !operation.Delete {
			operation.Length, operation.Hash = r.u32(), r.digest()
		}
		if r.err != nil {
			return nil, r.err
		}
		operations[i] = operation
	}
	return operations, r.end()
}

// Precondition is what a batch demands of a key before it is applied.
type Precondition struct {
	Key []byte
	// LastChanged demands a value that was changed last at a stamp, and ValueHash one with a hash.
	// If both are nil, the key must have no value.
	LastChanged *Stamp
	ValueHash   *Digest
}

// BatchHash names a request in its session (section 8). It is a part of no proof.
func BatchHash(operations []Operation, preconditions []Precondition, metadata []byte) Digest {
	w := writer{}
	encodeOperations(&w, operations)
	w.u32(uint32(len(preconditions)))
	for _, precondition := range preconditions {
		w.str16(precondition.Key)
		switch {
		case precondition.LastChanged != nil:
			w.u8(0)
			w.stamp(*precondition.LastChanged)
		case precondition.ValueHash != nil:
			w.u8(2)
			w.digest(*precondition.ValueHash)
		default:
			w.u8(1)
		}
	}
	w.str32(metadata)
	return hashOf(tagBatch, w)
}

// BatchEntry gives the journal entry of a batch that was sent: its operations are parted by the
// shards of the map in the genesis header. Compare its JournalLeafHash with that of a receipt.
func BatchEntry(
	shards []Shard,
	session *SessionID,
	number uint64,
	operations []Operation,
	metadata []byte,
) ([]byte, error) {
	lists := make(map[uint32][]Operation)
	for _, operation := range operations {
		at := shardOf(shards, operation.Key)
		if at < 0 {
			return nil, errors.New("verify: no shard holds a key of the batch")
		}
		id := shards[at].ID
		lists[id] = append(lists[id], operation)
	}
	w := writer{}
	w.u8(uint8(EntryBatch))
	w.flag(session != nil)
	if session != nil {
		w.bytes(session[:])
		w.u64(number)
	}
	w.digest(MetadataHash(metadata))
	w.u16(0)
	w.u32(uint32(len(lists)))
	for _, id := range ascending(lists) {
		w.u32(id)
		w.digest(OperationListHash(lists[id]))
	}
	return w, nil
}

// shardOf gives the index of the shard whose range has a key, or -1.
func shardOf(shards []Shard, key []byte) int {
	low, high := 0, len(shards)
	for low < high {
		middle := (low + high) / 2
		if bytes.Compare(shards[middle].Low, key) <= 0 {
			low = middle + 1
		} else {
			high = middle
		}
	}
	if low == 0 || !shards[low-1].holds(key) {
		return -1
	}
	return low - 1
}

// be64 is a big-endian integer, as keys of ledgers have them.
func be64(v uint64) []byte { return binary.BigEndian.AppendUint64(nil, v) }
