package coppice

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"iter"
	"time"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// Read chooses the state to read. Nil is head.
type Read struct {
	// At is the version to read; nil is head.
	At *Stamp
	// AnyEpoch reads the version of At in the epoch in which it stands now.
	AnyEpoch bool
	// AtTime reads the newest version that is not later than this time, by the ledger's clock. It
	// excludes At and AnyEpoch, and StaleOK has no effect. Parts of a millisecond are dropped. A time
	// is refused with NotYet as long as a later version might have it, and with NotFound before
	// genesis. A client that trusts a key asks for the proof of the version first.
	AtTime time.Time
	// StaleOK allows a coordinator to answer from the last head that it knows.
	StaleOK bool
	// Cosigned waits for a checkpoint that witnesses have cosigned.
	Cosigned bool
	// Unproven takes the coordinator's word for the answer to Get or BatchGet, without a proof.
	Unproven bool
}

// Record is a key with its value, and the stamp of its last change.
type Record struct {
	Key, Value  []byte
	LastChanged Stamp
}

// Got is the answer to a read of one key.
type Got struct {
	// Record is nil if the key has no value.
	Record *Record
	// ReadAt is the version that was read.
	ReadAt Stamp
	// Proof is the proof file of the answer, for others to verify. An unverified client gets none.
	Proof []byte
}

// BatchGot is the answer to a read of several keys.
type BatchGot struct {
	// Records has one for each key, in the order of the question; nil for a key without a value.
	Records []*Record
	ReadAt  Stamp
	Proof   []byte
}

// readOptions gives the options of a read as a request has them.
func (c *Client) readOptions(read *Read) *v1.ReadOptions {
	options := &v1.ReadOptions{WantProof: c.trust != nil, ValuesInProof: c.trust != nil}
	if read != nil {
		options.AnyEpoch, options.StaleOk, options.Cosigned = read.AnyEpoch, read.StaleOK, read.Cosigned
		if read.Unproven {
			options.WantProof, options.ValuesInProof = false, false
		}
		if read.At != nil {
			options.At = toStamp(*read.At)
		}
		if !read.AtTime.IsZero() {
			ms := uint64(read.AtTime.UnixMilli())
			options.AtTimeMs = &ms
		}
	}
	return options
}

// Get reads a key.
func (c *Client) Get(ctx context.Context, key []byte, read *Read) (*Got, error) {
	got, err := c.BatchGet(ctx, [][]byte{key}, read)
	if err != nil {
		return nil, err
	}
	return &Got{Record: got.Records[0], ReadAt: got.ReadAt, Proof: got.Proof}, nil
}

// BatchGet reads several keys of one version.
func (c *Client) BatchGet(ctx context.Context, keys [][]byte, read *Read) (*BatchGot, error) {
	read, err := c.settled(ctx, "BatchGet", read)
	if err != nil {
		return nil, err
	}
	k := c.known()
	request := &v1.BatchGetRequest{Keys: keys, Read: c.readOptions(read)}
	answer, err := invoke(ctx, c, "BatchGet", safe, request, v1.LedgerClient.BatchGet)
	if err != nil {
		return nil, err
	}
	if len(answer.Records) != len(keys) {
		return nil, distrust("BatchGet", "the answer has other keys than the question")
	}
	for i, record := range answer.Records {
		if !bytes.Equal(record.GetKey(), keys[i]) {
			return nil, distrust("BatchGet", "the answer has other keys than the question")
		}
	}
	got := &BatchGot{ReadAt: stampOf(answer.ReadAt), Proof: answer.Proof, Records: make([]*Record, len(keys))}
	if c.trust == nil || read != nil && read.Unproven {
		if read != nil && read.At != nil && read.At.Version != got.ReadAt.Version {
			return nil, distrust("BatchGet", "the answer is of another version than was asked for")
		}
		for i, record := range answer.Records {
			got.Records[i] = recordOf(record)
		}
		return got, nil
	}
	if _, err := c.checkKeys(ctx, k, answer.Records, read, got); err != nil {
		return nil, distrusted("BatchGet", err)
	}
	return got, nil
}

func recordOf(record *v1.Record) *Record {
	if !record.GetFound() {
		return nil
	}
	return &Record{Key: record.Key, Value: record.Value, LastChanged: stampOf(record.LastChanged)}
}

func proven(record *verify.Record) *Record {
	return &Record{Key: record.Key, Value: record.Value, LastChanged: record.Stamp}
}

// distrusted marks an error of a check. Errors of calls that the check needed stay what they are.
func distrusted(call string, err error) error {
	var failed *Error
	if errors.As(err, &failed) || errors.Is(err, ErrUntrusted) {
		return err
	}
	return &untrusted{call: call, err: err}
}

// checkKeys takes the records from the proof: the coordinator's own words do not count. Values that
// are too many to be sent twice are not in the proof, which then has their hashes. Returns what the
// proof says.
func (c *Client) checkKeys(
	ctx context.Context, k known, told []*v1.Record, read *Read, got *BatchGot,
) (*verify.Query, error) {
	keys := make([][]byte, len(told))
	for i, record := range told {
		keys[i] = record.GetKey()
	}
	v, err := c.verifyProof(ctx, k, got.Proof)
	if err != nil {
		return nil, err
	}
	if err := v.Answers(verify.Question{Subject: verify.AboutKeys(keys)}); err != nil {
		return nil, err
	}
	if err := checkPlace(v, k, read, got.ReadAt); err != nil {
		return nil, err
	}
	for i, key := range keys {
		answer, _ := v.Query.Answer(key)
		if answer.Record == nil {
			continue
		}
		got.Records[i] = proven(answer.Record)
		if v.Query.HasValues {
			continue
		}
		value := told[i].GetValue()
		if sha256.Sum256(value) != answer.Record.Hash {
			return nil, errors.New("the answer and its proof disagree")
		}
		got.Records[i].Value = value
	}
	return v.Query, c.follow(ctx, v, got.Proof)
}

// checkPlace refuses a proof of another version than was asked for, or one that is older than what
// was known before the question.
func checkPlace(v *verify.Verified, k known, read *Read, readAt Stamp) error {
	if read == nil {
		read = &Read{}
	}
	stamp := v.Header.Stamp()
	if stamp != readAt {
		return errors.New("the proof is for another version than the answer names")
	}
	switch {
	case read.At == nil:
		if !read.Cosigned && v.Newest.Version != stamp.Version {
			return errors.New("the proof is not for head")
		}
	case read.At.Version != stamp.Version:
		return errors.New("the proof is for another version than was asked for")
	case !read.AnyEpoch && stamp != *read.At:
		// A rollback gives its target a second name, in the epoch that it begins.
		if v.Next == nil || (Stamp{Epoch: v.Next.Epoch, Version: v.Next.Base}) != *read.At {
			return errors.New("the proof is for another epoch than was asked for")
		}
	}
	if !read.StaleOK && !read.Cosigned && v.Checkpoint.Size < k.size {
		return errors.New("the proof is older than what this client had seen before it asked")
	}
	return nil
}

// Change is one change in the history of a key.
type Change struct {
	// Stamp names the version of the change.
	Stamp Stamp
	// Deleted tells a deletion from a value.
	Deleted bool
	Value   []byte
	// Truncated marks the end of a history that may have older changes, in versions that were pruned.
	// Such a Change says nothing else.
	Truncated bool
}

// History gives the changes of a key, newest first. They are the coordinator's word: no proof
// covers them. A limit of 0 is no limit.
func (c *Client) History(ctx context.Context, key []byte, limit uint32, read *Read) iter.Seq2[Change, error] {
	return func(yield func(Change, error) bool) {
		read, err := c.settled(ctx, "History", read)
		if err != nil {
			yield(Change{}, err)
			return
		}
		request := &v1.HistoryRequest{Key: key, Limit: limit, Read: c.readOptions(read)}
		request.Read.WantProof, request.Read.ValuesInProof = false, false
		var last *uint64
		for message, err := range messages(ctx, c, "History", request, v1.LedgerClient.History, true) {
			if err != nil {
				yield(Change{}, err)
				return
			}
			if change := message.Change; change != nil {
				stamp := stampOf(change.LastChanged)
				if change.LastChanged == nil || last != nil && stamp.Version >= *last {
					yield(Change{}, distrust("History", "changes that do not go back"))
					return
				}
				last = &stamp.Version
				if !yield(Change{Stamp: stamp, Deleted: !change.Found, Value: change.Value}, nil) {
					return
				}
			}
			if message.Truncated {
				yield(Change{Truncated: true}, nil)
				return
			}
		}
	}
}

// Difference is a key whose record differs between two versions. A nil record means that the key
// had no value.
type Difference struct {
	Key           []byte
	Before, After *Record
}

// Diff gives the keys of a range whose records differ between two versions, in ascending order.
// They are the coordinator's word: read a key at both versions to have it proven.
func (c *Client) Diff(ctx context.Context, from, to Stamp, low, high []byte) iter.Seq2[Difference, error] {
	request := &v1.DiffRequest{From: toStamp(from), To: toStamp(to), Low: low, High: high}
	return func(yield func(Difference, error) bool) {
		var last []byte
		for message, err := range messages(ctx, c, "Diff", request, v1.LedgerClient.Diff, true) {
			if err != nil {
				yield(Difference{}, err)
				return
			}
			for _, d := range message.Differences {
				difference := Difference{Key: d.GetAfter().GetKey(), Before: recordOf(d.Before), After: recordOf(d.After)}
				if len(difference.Key) == 0 {
					difference.Key = d.GetBefore().GetKey()
				}
				outside := bytes.Compare(difference.Key, low) < 0 || high != nil && bytes.Compare(difference.Key, high) >= 0
				if outside || last != nil && bytes.Compare(difference.Key, last) <= 0 ||
					difference.Before == nil && difference.After == nil {
					yield(Difference{}, distrust("Diff", "keys that do not ascend, or that were not asked for"))
					return
				}
				last = difference.Key
				if !yield(difference, nil) {
					return
				}
			}
		}
	}
}
