package coppice

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc/codes"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// VersionTime is the newest version at a time, by the ledger's clock.
type VersionTime struct {
	Stamp Stamp
	// Time is the time in the version's header.
	Time time.Time
	// Next is the version after it, with its time. It is nil if the version is head.
	Next     *Stamp
	NextTime time.Time
	// Final says that no later commit changes the answer. If not, a later version may have the time,
	// too.
	Final bool
	// Proof is the proof file of the answer. An unverified client gets none.
	Proof []byte
}

// VersionAt finds the newest version that stands and is not later than a time, pruned or not. If
// cosigned is set, its proof is under a checkpoint that witnesses have cosigned, which may lag.
// Parts of a millisecond are dropped.
func (c *Client) VersionAt(ctx context.Context, at time.Time, cosigned bool) (*VersionTime, error) {
	ms, err := millis("Time", at)
	if err != nil {
		return nil, err
	}
	k := c.known()
	request := &v1.TimeRequest{TimeMs: ms, WantProof: c.trust != nil, Cosigned: cosigned}
	answer, err := invoke(ctx, c, "Time", safe, request, v1.LedgerClient.Time)
	if err != nil {
		return nil, err
	}
	if c.trust != nil {
		err = c.believe(ctx, k, answer.Proof, verify.AboutTime(ms), func(v *verify.Verified) error {
			if !agrees(answer, v) {
				return errDisagree
			}
			if cosigned {
				return nil
			}
			return checkAge(v, k)
		})
		if err != nil {
			return nil, distrusted("Time", err)
		}
	}
	found := versionTime(answer, answer.Proof)
	return &found, nil
}

func versionTime(answer *v1.TimeResponse, proof []byte) VersionTime {
	found := VersionTime{
		Stamp: stampOf(answer.Stamp), Time: timeOf(answer.TimestampMs), Final: answer.IsFinal, Proof: proof,
	}
	if answer.Next != nil {
		next := stampOf(answer.Next)
		found.Next, found.NextTime = &next, timeOf(answer.NextTimestampMs)
	}
	return found
}

// agrees compares an answer with what its proof shows.
func agrees(answer *v1.TimeResponse, v *verify.Verified) bool {
	next := v.Time.Next
	if (answer.Next == nil) != (next == nil) {
		return false
	}
	if next != nil && (stampOf(answer.Next) != next.Stamp() || answer.NextTimestampMs != next.TimestampMS) {
		return false
	}
	return stampOf(answer.Stamp) == v.Header.Stamp() && answer.TimestampMs == v.Header.TimestampMS &&
		answer.IsFinal == v.Time.Final
}

// settled names the version of a read at a time. A client that trusts a key does not leave that
// choice to the coordinator: it asks for the proof of the version first, and then reads it.
func (c *Client) settled(ctx context.Context, call string, read *Read) (*Read, error) {
	if read == nil || read.AtTime.IsZero() {
		return read, nil
	}
	if read.At != nil || read.AnyEpoch {
		return nil, refused(call, InvalidArgument, codes.InvalidArgument, "a read names a version or a time, not both")
	}
	if _, err := millis(call, read.AtTime); err != nil {
		return nil, err
	}
	if c.trust == nil {
		return read, nil
	}
	found, err := c.VersionAt(ctx, read.AtTime, read.Cosigned)
	if err != nil {
		return nil, err
	}
	if !found.Final {
		message := fmt.Sprintf("a later version may have the time %s, too: no header is later yet", read.AtTime)
		return nil, refused(call, NotYet, codes.FailedPrecondition, message)
	}
	return &Read{At: &found.Stamp, Cosigned: read.Cosigned}, nil
}

// refused is a refusal by the client itself.
func refused(call string, reason Reason, code codes.Code, message string) *Error {
	return &Error{Call: call, Reason: reason, Code: code, Message: message, Endpoint: "the client"}
}

// millis gives a time as the ledger counts it.
func millis(call string, at time.Time) (uint64, error) {
	ms := at.UnixMilli()
	if ms < 0 {
		return 0, refused(call, InvalidArgument, codes.InvalidArgument, "a time before 1970")
	}
	return uint64(ms), nil
}

func timeOf(ms uint64) time.Time { return time.UnixMilli(int64(min(ms, 1<<62))) }

// Interval has the time stamps that lie around an entry of the root log.
type Interval struct {
	// Header is the entry, and Entry the hash of its bytes. An unverified client gets only the proof.
	Header *verify.Header
	Entry  verify.Digest
	// Below and Above are the anchors around the entry. Nobody has judged their tokens yet: the times
	// in them are claims. Anchors may be missing, which makes an interval wider and nothing else.
	Below, Above []verify.ProvenAnchor
	// Proof is the proof file. `coppice verify --tsa-root` judges its tokens.
	Proof []byte
}

// IntervalRead says how to prove an interval. Nil asks for one anchor on each side.
type IntervalRead struct {
	// Anchors is the number of anchors on each side, up to 16. The nearest ones are taken; 0 means 1.
	Anchors uint32
	// Cosigned waits for a checkpoint that witnesses have cosigned.
	Cosigned bool
}

// EntryInterval asks for the anchors around an entry of the root log. The sequence of a version's
// entry is in its header, which comes with a commit and with each proof. Compare Entry with the
// hash of that header (verify.EntryHash, verify.Verified.Entry).
func (c *Client) EntryInterval(ctx context.Context, sequence uint64, read *IntervalRead) (*Interval, error) {
	if read == nil {
		read = &IntervalRead{}
	}
	k := c.known()
	request := &v1.GetIntervalRequest{
		Entry: &v1.GetIntervalRequest_Sequence{Sequence: sequence}, Anchors: read.Anchors, Cosigned: read.Cosigned,
	}
	answer, err := invoke(ctx, c, "GetInterval", safe, request, v1.LedgerClient.GetInterval)
	if err != nil {
		return nil, err
	}
	interval := &Interval{Proof: answer.Proof}
	if c.trust == nil {
		return interval, nil
	}
	err = c.believe(ctx, k, answer.Proof, verify.AboutEntry{Sequence: sequence}, func(v *verify.Verified) error {
		most := int(max(read.Anchors, 1))
		if len(v.Interval.Below) > most || len(v.Interval.Above) > most {
			return errors.New("the proof has more anchors than were asked for")
		}
		interval.Header, interval.Entry = v.Header, v.Entry
		interval.Below, interval.Above = v.Interval.Below, v.Interval.Above
		if read.Cosigned {
			return nil
		}
		return checkAge(v, k)
	})
	if err != nil {
		return nil, distrusted("GetInterval", err)
	}
	return interval, nil
}
