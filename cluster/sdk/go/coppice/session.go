package coppice

import (
	"context"
	"crypto/rand"
	"errors"
	"math"
	"sync"

	v1 "coppice.dev/sdk/v1"
	"coppice.dev/sdk/verify"
)

// SessionID is the only name of a session. It should be random.
type SessionID = verify.SessionID

// NewSessionID makes a random name. Keep it to find the session again after a restart.
func NewSessionID() (id SessionID) {
	// Never fails: the runtime ends the process if there is no randomness.
	_, _ = rand.Read(id[:])
	return id
}

// Session numbers its batches: each is applied at most once, however often it is sent. After an
// error whose outcome is unknown, send the same batch again: its number is still the next one. One
// goroutine at a time commits in a session.
type Session struct {
	client *Client
	id     SessionID
	hash   verify.Digest
	mutex  sync.Mutex
	// highest is the highest number that is known to be committed.
	highest uint64
}

// OpenSession opens a session, or finds it again.
func (c *Client) OpenSession(ctx context.Context, id SessionID) (*Session, error) {
	request := &v1.OpenSessionRequest{SessionId: id[:]}
	answer, err := invoke(ctx, c, "OpenSession", safe, request, v1.LedgerClient.OpenSession)
	if err != nil {
		return nil, err
	}
	s := &Session{client: c, id: id, highest: answer.HighestNumber}
	copy(s.hash[:], answer.BatchHash)
	return s, nil
}

// ID is the session's name.
func (s *Session) ID() SessionID { return s.id }

// Highest is the highest number that is known to be committed, 0 if none is.
func (s *Session) Highest() uint64 {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	return s.highest
}

// BatchHash is the hash of the batch with the highest number when the session was opened: compare
// it with Batch.Hash. It is zero if there was none.
func (s *Session) BatchHash() verify.Digest { return s.hash }

var errNumbers = errors.New("coppice: the numbers of the session are used up")

func (s *Session) next() (uint64, error) {
	highest := s.Highest()
	if highest == math.MaxUint64 {
		return 0, errNumbers
	}
	return highest + 1, nil
}

func (s *Session) reached(number uint64) {
	s.mutex.Lock()
	defer s.mutex.Unlock()
	s.highest = max(s.highest, number)
}

// Commit writes the next batch, and waits until it is durable. It is repeated while the ledger is
// unavailable. A batch that was refused uses up no number.
func (s *Session) Commit(ctx context.Context, batch *Batch) (*Committed, error) {
	number, err := s.next()
	if err != nil {
		return nil, err
	}
	committed, err := s.CommitAs(ctx, number, batch)
	// A batch that was committed and rolled back has used up its number as well.
	if err == nil || errors.Is(err, RolledBack) {
		s.reached(number)
	}
	return committed, err
}

// CommitAs sends a batch under a number that the caller chooses, for instance to learn what became
// of it.
func (s *Session) CommitAs(ctx context.Context, number uint64, batch *Batch) (*Committed, error) {
	return s.client.commit(ctx, safe, s.request(number, batch))
}

func (s *Session) request(number uint64, batch *Batch) *v1.CommitRequest {
	return &v1.CommitRequest{
		Batch: &batch.pb, SessionId: s.id[:], Number: number, WantReceipt: s.client.trust != nil,
	}
}
