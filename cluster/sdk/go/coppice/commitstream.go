package coppice

import (
	"context"
	"errors"
	"io"
	"math"
	"time"

	v1 "coppice.dev/sdk/v1"
)

// UnderWayMax is how many batches of a stream may be sent and not answered.
const UnderWayMax = 64

// Answer is the answer to a batch of a stream.
type Answer struct {
	// Number is the batch's number in its session.
	Number uint64
	*Committed
}

// CommitStream sends the batches of a session without waiting for each answer. If the stream
// breaks, batches without an answer are sent again under their numbers, to any coordinator that
// answers. So each is applied at most once, and only after the one before it. One goroutine uses a
// stream.
type CommitStream struct {
	session *Session
	number  uint64
	waiting []sentRequest
	live    *liveStream
	err     error
}

// sentRequest is a batch without an answer, with what the client knew when it was first sent.
type sentRequest struct {
	request *v1.CommitStreamRequest
	known   known
}

type liveStream struct {
	picked *route
	calls  v1.Ledger_CommitStreamClient
	end    context.CancelFunc
	// sent counts those of the waiting batches that were sent on this stream.
	sent int
}

// Stream begins a stream of the session's next batches. No other commit of the session may be under
// way.
func (s *Session) Stream() *CommitStream { return &CommitStream{session: s, number: s.Highest()} }

// Push sends the next batch. If UnderWayMax are under way, it waits for the answer to the oldest
// one first and gives that; else the answer is nil.
func (s *CommitStream) Push(ctx context.Context, batch *Batch) (*Answer, error) {
	if s.err != nil {
		return nil, s.err
	}
	if s.number == math.MaxUint64 {
		return nil, errNumbers
	}
	var answer *Answer
	if len(s.waiting) >= UnderWayMax {
		var err error
		if answer, err = s.Next(ctx); err != nil {
			return nil, err
		}
	}
	s.number++
	id := s.session.id
	request := &v1.CommitStreamRequest{
		SessionId:   id[:],
		Number:      s.number,
		Batch:       &batch.pb,
		WantReceipt: s.session.client.trust != nil,
	}
	s.waiting = append(s.waiting, sentRequest{request: request, known: s.session.client.known()})
	// A failure to send shows in the wait for the answer, which connects again.
	_ = s.send(ctx)
	return answer, nil
}

// Next waits for the answer to the oldest batch without one; nil if all are answered. If the ledger
// refuses a batch, the stream is over, and the outcome of the batches without an answer is unknown:
// send them again by Session.CommitAs. If the ledger does not answer in time, the next call asks
// again.
func (s *CommitStream) Next(ctx context.Context) (*Answer, error) {
	if s.err != nil || len(s.waiting) == 0 {
		return nil, s.err
	}
	client := s.session.client
	var until time.Time
	pause := pauseMin
	for count := 1; ; count++ {
		picked, message, err := s.receive(ctx)
		if err == nil {
			return s.settle(ctx, message)
		}
		refused := refusalOf(err)
		failed := &Error{
			Call: "CommitStream", Reason: refused.reason, Code: refused.code, Message: refused.message,
			Endpoint: picked.address, Attempts: count, OutcomeUnknown: true, cause: contextError(ctx),
		}
		if failed.cause != nil {
			return nil, failed
		}
		if refused.kind == kindFinal {
			s.err = failed
			return nil, failed
		}
		client.routes.failed(picked)
		if until.IsZero() {
			until = time.Now().Add(client.patience)
		}
		if time.Now().Add(pause).After(until) {
			return nil, failed
		}
		if failed.cause = sleep(ctx, spread(pause)); failed.cause != nil {
			return nil, failed
		}
		pause = min(2*pause, pauseMax)
	}
}

// Close drops the stream. Batches without an answer may still be applied.
func (s *CommitStream) Close() {
	s.drop()
	if s.err == nil {
		s.err = errors.New("coppice: the stream was closed")
	}
}

func (s *CommitStream) drop() {
	if s.live != nil {
		s.live.end()
		s.live = nil
	}
}

// send connects if there is no stream, and sends the batches that were not sent on it yet.
func (s *CommitStream) send(ctx context.Context) error {
	client := s.session.client
	if s.live == nil {
		picked := client.routes.pick()
		defer picked.release()
		// The stream outlives the call that opens it.
		streamContext, end := context.WithCancel(context.WithoutCancel(ctx))
		s.live = &liveStream{picked: picked.route, end: end}
		var err error
		if s.live.calls, err = picked.link.ledger.CommitStream(streamContext); err != nil {
			return err
		}
	}
	watch := s.guard(ctx)
	defer watch()
	for s.live.sent < len(s.waiting) {
		if err := s.live.calls.Send(s.waiting[s.live.sent].request); err != nil {
			return err
		}
		s.live.sent++
	}
	return nil
}

// guard ends the stream if the caller's context ends, or if nothing happens in time.
func (s *CommitStream) guard(ctx context.Context) (release func()) {
	timer := time.AfterFunc(s.session.client.attempt, s.live.end)
	stop := context.AfterFunc(ctx, s.live.end)
	return func() {
		timer.Stop()
		stop()
	}
}

// receive waits for the next answer. After an error the stream is gone.
func (s *CommitStream) receive(ctx context.Context) (*route, *v1.CommitStreamResponse, error) {
	err := s.send(ctx)
	live := s.live
	if err == nil || errors.Is(err, io.EOF) {
		if live.calls != nil {
			release := s.guard(ctx)
			var message *v1.CommitStreamResponse
			message, err = live.calls.Recv()
			release()
			if err == nil {
				s.session.client.routes.succeeded(live.picked)
				return live.picked, message, nil
			}
		}
	}
	if errors.Is(err, io.EOF) {
		err = errEnded
	}
	s.drop()
	return live.picked, nil, err
}

// settle checks an answer, and takes its batch off the list.
func (s *CommitStream) settle(ctx context.Context, message *v1.CommitStreamResponse) (*Answer, error) {
	oldest := s.waiting[0]
	if message.Number != oldest.request.Number || message.Commit == nil || message.Commit.Stamp == nil {
		s.drop()
		s.err = &untrusted{call: "CommitStream", err: errors.New("the answer is to another number"), written: true}
		return nil, s.err
	}
	sent := sentBatch{pb: oldest.request.Batch, session: oldest.request.SessionId, number: oldest.request.Number}
	committed, err := s.session.client.believeCommit(ctx, "CommitStream", oldest.known, sent, message.Commit)
	if err != nil {
		// An answer comes once: only a new stream brings it again.
		s.drop()
		return nil, err
	}
	s.waiting = s.waiting[1:]
	s.live.sent--
	s.session.reached(message.Number)
	return &Answer{Number: message.Number, Committed: committed}, nil
}
